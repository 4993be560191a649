"""What one rank has of a batch that several ranks make together, and what it sends and receives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor


class RowsBetween(NamedTuple):
    """Rows of one node type that go between this rank and each other one, one way.

    Attributes:
        rows: P x int64 [n_p], hop by hop; none between a rank and itself.
        by_hop: P x [hops + 1], how many of them are first read by the edges of each hop. The first
            is 0, and number h + 1 is about hop h.

    Example: rows = [[], [4, 0, 2]] and by_hop = [[0, 0, 0], [0, 1, 2]]: row 4 is first read by the
    edges of the first hop, and 0 and 2 by those of the second.
    """

    rows: Sequence[Tensor]
    by_hop: Sequence[Sequence[int]]

    def counts_within(self, hop: int) -> list[int]:
        """Return how many rows of each rank the edges up to a hop read, as `by_hop` numbers it."""
        return [sum(counts[: hop + 1]) for counts in self.by_hop]


class NodesInCommon(NamedTuple):
    """The nodes of one type that a rank has of a batch.

    They are the seeds of its loop, which have no edges; then its own nodes, by the hop that found
    them; then nodes that other ranks own, by the hop whose edges first read them.

    Attributes:
        num_seeds: of the rank's loop; 0 of all types but the loader's.
        own_by_hop: [hops + 1], own nodes that each hop found; the first are the seeds of all ranks'
            loops that this rank owns.
        others_by_hop: [hops + 1], nodes of others; the first is 0, and number h + 1 is about hop h.
        send: numbers among the own nodes, which each rank reads as sources.
        receive: numbers among the others' nodes, as each rank sends them.

    Example: the loop has the seeds 7 and 4, of which this rank owns 4. It draws the sources 9, its
    own, and 5, another's, and for 9 the source 4: the rows are 7, 4 | 4, 9 | 5, own_by_hop is
    [1, 1, 0] and others_by_hop is [0, 1, 0].
    """

    num_seeds: int
    own_by_hop: Sequence[int]
    others_by_hop: Sequence[int]
    send: RowsBetween
    receive: RowsBetween


class SeedOutputs(NamedTuple):
    """Which rank computes the seeds of which loop; both lists include this rank.

    Attributes:
        send: P x int64 [n_p], numbers among the own nodes of the seeds of each rank's loop.
        receive: P x int64 [n_p], which seeds of this rank's loop each rank owns.
    """

    send: Sequence[Tensor]
    receive: Sequence[Tensor]


@dataclass(frozen=True, repr=False)
class Cooperation:
    """What a batch of ``cooperative=True`` says of its ranks, as ``batch.cooperation``.

    Rows that rank q sends to p are in the same order in both lists, and equally many in each hop,
    so no rank has to be asked for the size of a message. Copies to other processes have no group.

    Attributes:
        rank: of this process.
        size: number of ranks, P.
        step: number of the batch in its epoch; the same on all ranks.
        group: of gloo, for exchanges of the thread that iterates; None for one rank.
        timeout_seconds: how long to wait in one of them.
        nodes: by node type; of a homogeneous graph, by None.
        input_type: type of the seeds.
        outputs: where the seeds' rows are computed.
        channel: of the loader that made the batch, over that group, which counts what is exchanged.
    """

    rank: int
    size: int
    step: int
    group: Any
    timeout_seconds: float
    nodes: Mapping[Any, NodesInCommon]
    input_type: Any
    outputs: SeedOutputs
    channel: Any = None

    def __repr__(self) -> str:
        return f"Cooperation(rank={self.rank}, size={self.size}, step={self.step})"

    def __reduce__(self) -> Any:
        without = replace(self, group=None, channel=None)
        return Cooperation, tuple(vars(without).values())
