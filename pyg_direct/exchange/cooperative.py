"""Batches that all ranks make together: the rank that owns a node samples and loads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..batch.sampled import Sampled, of_graph
from ..core.cooperation import Cooperation
from ..core.pyg import SubgraphType
from ..core.types import BatchKey, ExtendedKey, SampledGraph
from ..ops.backend import Backend
from ..ranks.channel import Channel
from ..ranks.split import Split
from ..ranks.windows import Terms
from ..sampling.keyed import KeyedSampler
from ..sampling.sampler import NeighborSampler, keyed
from .batches import Maker
from .common_hops import CommonBatches, of_one_rank
from .shared_rows import RowsInCommon


class _Asked(NamedTuple):
    """What a rank asks for in a step: the batch around its seeds."""

    seeds: list[Tensor | None]  # T x int64 [n_t]
    key: ExtendedKey


class _Made(NamedTuple):
    """What a rank has of a batch."""

    graph: SampledGraph
    describe: Callable[..., Cooperation]  # see `CommonBatches.sample`
    rows: list[dict[str, Tensor]]  # T x its rows of the attributes that travel


class CooperativeBatches(RowsInCommon):
    """Makes one batch in each step with all other ranks; see `CommonBatches`.

    Args:
        data, split, feature_dtype: as of `RowsInCommon`.
    """

    argument = "cooperative=True"
    _computes = True

    def __init__(self, data: Any, split: Split, feature_dtype: torch.dtype | None) -> None:
        super().__init__(data, split, feature_dtype)
        self._name = "batches that ranks make together"
        self._sampler: NeighborSampler | None = None

    def _check_effect(self) -> None:
        """Do nothing: it has one, also without rows to share."""

    def check_sampler(self, sampler: Any, changes_output: bool) -> None:
        """See `BatchExchange`."""
        check_cooperative(sampler, changes_output)

    def begin(self, sampler: Any, backend: Backend, terms: Terms) -> int:
        """See `BatchExchange`."""
        window = super().begin(sampler, backend, terms)
        self._sampler = sampler
        if terms.board is None:
            self.loop_channel = Channel(None, terms.timeout_seconds)
        return window

    def _maker(self, channel: Channel, sampler: Any, backend: Backend, window: int) -> Maker:
        """See `BatchExchange`."""
        owners, graph = self._owners(channel), keyed(sampler)
        fetcher = self._fetcher(channel, backend, owners)
        traffic = fetcher.traffic
        common = CommonBatches(graph.graph.csc, graph.plan, owners, channel, backend, traffic)
        shared, alone = self._formats(), list[int]()

        def make(asked: list[_Asked]) -> list[_Made]:
            """Return what this rank has of the batch of a step. Must not keep the loader alive."""
            ((seeds, key),) = asked
            if keyed(sampler).plan is not common.plan:
                raise ValueError(
                    "The arguments of sampling have changed since the loader was first iterated, "
                    "and all ranks must change them together. Build a new loader on all ranks."
                )
            if not alone:
                sizes = zip(common.sizes_alone(seeds, key), shared, strict=True)
                alone.append(sum(size for size, of_type in sizes if of_type))
            traffic.rows_alone += alone[0]
            graph, describe = common.sample(seeds, key)
            (rows,) = fetcher.fetch([[node.numpy() for node in graph.node]])
            return [_Made(graph, describe, rows)]

        return Maker(make, traffic)

    def window_of(self, is_ahead: bool, completes_in_loop: bool) -> int:
        """See `BatchExchange`: a step is one batch of all ranks."""
        return 1

    def bring_rows(self, nodes: Any, padded: bool = False) -> None:
        """Do nothing: rows came with the nodes."""

    def sampled(self, inputs: Any, key: BatchKey | None) -> Sampled:
        """Return this rank's nodes and edges of the batch of a step; waits for all ranks.

        Args:
            inputs: the seeds of its loop.
            key: of the batch.

        Raises:
            RuntimeError: it was called outside of an epoch, or twice for one step.
            ExchangeError: see `Windows.made`.
        """
        if not isinstance(key, ExtendedKey) or key.step < 0 or self._sampler is None:
            raise RuntimeError(
                "cooperative=True: all ranks make a batch together, once in each step of an epoch. "
                "Iterate the loader on all of them; for a batch of your own build one without it."
            )
        types = self._sampler.node_types
        seeds = [inputs.node if kind == inputs.input_type else None for kind in types]
        if self.has_begun:
            graph, describe, rows = self.made(_Asked(seeds, key))
            self._keep(graph.node, rows)
        else:  # there is one rank
            core = keyed(self._sampler)
            alone = core.sample(seeds, key)
            graph, describe = of_one_rank(alone, seeds, core.graph.csc, key.step)
        metadata = inputs.input_id, inputs.time
        sampled = of_graph(graph, types, self._sampler.edge_types, metadata)
        sampled.cooperation = describe(types, self.loop_channel)
        return sampled


def check_cooperative(sampler: Any, changes_output: bool) -> None:
    """Raise a ValueError if ranks cannot sample in common what a sampler is to sample.

    Args:
        sampler: of the loader.
        changes_output: whether there is a `transform_sampler_output`.
    """
    if type(sampler) is not NeighborSampler:
        raise ValueError(
            f"cooperative=True needs pyg_direct's own NeighborSampler, got "
            f"neighbor_sampler= of {type(sampler).__name__}."
        )
    given: KeyedSampler = keyed(sampler)
    refused = {
        "disjoint=True": given.settings.disjoint and "subgraphs of seeds share no nodes",
        "time_attr=": given.disjoint and "what a node may see depends on the seed it is found from",
        f"subgraph_type={given.settings.subgraph_type.value!r}": (
            given.settings.subgraph_type != SubgraphType.directional
            and "edges between nodes of other ranks are with no rank"
        ),
        "sample_direction='backward'": (
            given.settings.sample_direction != "forward" and "owners have the in-edges of nodes"
        ),
        "negative fan-outs": (
            any(k < 0 for hop in given.fanouts() for k in hop)
            and "how many edges a node has is known to its owner only"
        ),
        "sampling='adaptive'": (
            given.settings.sampling == "adaptive" and "fan-outs depend on all nodes of a hop"
        ),
        "transform_sampler_output=": changes_output and "it would see a part of a batch",
    }
    for name, reason in refused.items():
        if reason:
            raise ValueError(
                f"cooperative=True cannot be used with {name}: {reason}. Leave out one of them; "
                f"share_rows=True loads rows in common with any sampler."
            )
