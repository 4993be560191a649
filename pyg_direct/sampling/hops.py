"""The loop over the hops of batches, and the sources of edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from ..core.types import NO_RULES, BatchKey, Rules, SampledGraph
from ..ops.backend import Workspace


class BatchInput(NamedTuple):
    """What a batch is sampled from; see `Workspace.begin`."""

    seeds: Sequence[Tensor | None]  # T x int64 [n_t] or None
    key: BatchKey
    rules: Rules = NO_RULES


class BatchInProgress(NamedTuple):
    """A batch between two hops, for a source of hops."""

    work: Workspace
    key: BatchKey
    rules: Rules


class HopSource(Protocol):
    """Decides which edges a hop takes: an exchange with other processes, or another law."""

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        """Do one hop of each batch, by `Workspace.hop` or by `Workspace.enter`.

        Args:
            window: the batches whose requests may travel together; those with a seed that is not a
                node are left out, so there may be none.
            hop: called for 0, 1, ..., one after another, whatever the window holds.
        """


def sample_window(
    works: Sequence[Workspace],
    batches: Sequence[BatchInput],
    hops: int,
    induced: bool,
    source: HopSource,
) -> list[SampledGraph | None]:
    """Sample some batches, hop by hop together.

    Args:
        works: a workspace for each batch, all of one graph and plan.
        batches: their seeds, keys and rules.
        hops: of the plan.
        induced: as in `Workspace.finish`.
        source: of the edges of each hop.

    Returns:
        The subgraphs; None for a batch with a seed that is not a node.
    """
    begun = [w.begin(*batch) for w, batch in zip(works, batches, strict=True)]
    window = [
        BatchInProgress(work, batch.key, batch.rules)
        for work, batch, is_good in zip(works, batches, begun, strict=True)
        if is_good
    ]
    for hop in range(hops):
        source.hop(window, hop)
    return [
        work.finish(induced) if is_good else None
        for work, is_good in zip(works, begun, strict=True)
    ]
