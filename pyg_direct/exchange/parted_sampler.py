"""Sampling from parts, as a `NeighborSampler` of the loaders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import NodeType

from ..core.arguments import check_seed
from ..core.types import NO_RULES, BatchKey, Rules, SampledGraph
from ..files.header import checksum_of
from ..files.parts import PartedGraph, parted_graph
from ..graph.from_pyg import Graph
from ..ops.backend import Backend
from ..ops.devices import HOST, backend_for
from ..ranks.channel import Channel
from ..sampling.hops import BatchInput, sample_window
from ..sampling.keyed import KeyedSampler, Settings
from ..sampling.sampler import NeighborSampler, NumNeighborsLike, keyed
from .batches import BatchExchange, Maker
from .parted_hops import PartSource

# What is not exact on parts yet, and its value where it is not asked for.
REFUSED: dict[str, Any] = {
    "subgraph_type": "directional",
    "temporal_strategy": "uniform",
    "time_attr": None,
    "weight_attr": None,
    "time_window": None,
    "sampling": "uniform",
    "layer_dependency": False,
    "strict_negatives": False,
    "input_start_time": None,
    "input_end_time": None,
    "exclude_seed_edges": None,
    "neg_sampling": None,
    "neg_sampling_ratio": None,
    "transform_sampler_output": None,
    "directed": True,
    "neighbor_sampler": None,
    "topology": "auto",
    "features": "auto",
    "device_bytes": None,
    "gather_blocks": None,
    "cache": None,
}
ZERO_IS_A_VALUE = {"time_window", "device_bytes"}  # 0 of the others asks for nothing


class Exchange(BatchExchange):
    """Makes the batches of a loader over parts.

    Args:
        graph: the partition.
    """

    _travels = False  # a sampler that is sent has nothing to sample from
    orders = ("parts",)

    def __init__(self, graph: PartedGraph) -> None:
        super().__init__(graph.name)
        self._graph = graph

    def _check_world_size(self, size: int) -> None:
        if size > self._graph.num_parts:
            raise ValueError(
                f"{self._graph.name} has {self._graph.num_parts} parts, too few for {size} ranks. "
                f"Partition the graph into as many."
            )

    def _maker(self, channel: Channel, sampler: Any, backend: Backend, window: int) -> Maker:
        """See `BatchExchange`.

        Raises:
            InvalidGraphFileError: a part that this rank holds is missing.
        """
        csc, plan = keyed(sampler).graph.csc, keyed(sampler).plan
        source = PartSource(self._graph, channel, backend, plan)
        works = [backend.workspace(csc, plan) for _ in range(window)]
        hops = len(plan.fanouts)

        def make(batches: list[BatchInput]) -> list[SampledGraph | None]:
            """Return the batches, whose rows are kept with their ids; see `sample_window`."""
            made = sample_window(works[: len(batches)], batches, hops, False, source)
            source.fetch([graph for graph in made if graph is not None])
            return made

        return Maker(make, source.traffic)

    def _said(self) -> Any:
        return checksum_of(asdict(self._graph.manifest))

    def _check_same(self, said: Sequence[Any]) -> None:
        """See `BatchExchange`.

        Raises:
            ValueError: ranks have opened other partitions.
        """
        for rank, checksum in enumerate(said):
            if checksum != said[0]:
                raise ValueError(
                    f"Rank {rank} has opened another partition than rank 0; this rank has opened "
                    f"{self._graph.name}. Copy to all machines what one call of "
                    f"pyg_direct.partition wrote."
                )

    def part_of(self, node_type: NodeType | None, node: Tensor) -> Tensor:
        """Return the part of each node, int64 [n]."""
        part = self._graph.part[self._graph.node_types.index(node_type)]
        return torch.from_numpy(part[node.numpy()]).to(torch.int64)


@dataclass(frozen=True)
class PartedKeyedSampler(KeyedSampler):
    """A sampler over parts."""

    exchange: Any = field(default=None)

    def sample(
        self, seeds: list[Tensor | None], key: BatchKey, rules: Rules = NO_RULES
    ) -> SampledGraph:
        """See `KeyedSampler`; the graph here has no edges to sample."""
        with torch.inference_mode(False):
            found: SampledGraph | None = self.exchange.made(BatchInput(seeds, key, rules))
        if found is None:
            self._refuse(seeds)
        return found


class PartedSampler(NeighborSampler):
    """A `NeighborSampler` over a partition, for one loader."""

    def __init__(
        self,
        data: Data | HeteroData,
        num_neighbors: NumNeighborsLike,
        replace: bool,
        disjoint: bool,
        seed: int | None,
        threads: int,
    ) -> None:
        parted: Any = parted_graph(data)
        graph = Graph(parted.csc, parted.node_types, parted.edge_types, parted.id_dtype)
        self._take_graph(data, graph)
        settings = Settings.plain(self._checked_fanouts(num_neighbors, replace), replace, disjoint)
        self.exchange = Exchange(parted)
        self._keyed = PartedKeyedSampler(
            graph, backend_for(HOST, threads), ("auto", None), check_seed(seed), settings,
            exchange=self.exchange,
        )  # fmt: skip
        self.num_nodes = self._keyed.num_nodes


def parted_sampler(
    data: Any, num_neighbors: NumNeighborsLike, options: dict[str, Any], threads: int
) -> PartedSampler | None:
    """Return the sampler of a loader over parts; None for data that is not in parts.

    Args:
        data: of the loader.
        num_neighbors: of the loader.
        options: arguments of the loader by name, with `replace`, `disjoint` and `seed`.
        threads: CPU threads that may share one batch.

    Raises:
        ValueError: arguments that parts do not honour, named.
    """
    if parted_graph(data) is None:
        return None
    for name, default in REFUSED.items():
        value = options.get(name, default)
        is_array = hasattr(value, "shape")
        nothing = (default, None) if name in ZERO_IS_A_VALUE else (default, None, 0)
        if is_array or getattr(value, "value", value) not in nothing:
            given = "an array" if is_array else repr(value)
            raise ValueError(
                f"{name} cannot be used with a partitioned graph, got {given}. Leave it out, or "
                f"use a graph that one machine holds: pyg_direct.save and pyg_direct.open."
            )
    return PartedSampler(
        data, num_neighbors, options["replace"], options["disjoint"], options["seed"], threads
    )
