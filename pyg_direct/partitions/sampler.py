"""Sampling from parts, as a `NeighborSampler` of the loaders."""

from __future__ import annotations

import pickle
import weakref
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import NodeType

from ..core.arguments import check_seed
from ..core.types import SampledGraph
from ..files.header import checksum_of
from ..files.parts import PartedGraph, parted_graph
from ..graph.from_pyg import Graph
from ..ops.devices import HOST, backend_for
from ..ranks.channel import GROUP_DAYS, Channel, ExchangeError
from ..ranks.exchange import gathered, gathered_unless_failed
from ..ranks.traffic import ExchangeTraffic
from ..sampling.hops import BatchInput
from ..sampling.keyed import KeyedSampler, Settings
from ..sampling.sampler import NeighborSampler, NumNeighborsLike
from .rounds import Rounds
from .source import PartSource

WINDOW = 4  # batches of a rank whose requests travel together
TIMEOUT_SECONDS = 300.0  # of one exchange, unless a loader has a timeout=
MEETING_SECONDS = 300.0  # that ranks wait for each other, at least, before the first exchange

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
    "input_time": None,
    "edge_label_time": None,
    "directed": True,
    "neighbor_sampler": None,
    "topology": "auto",
    "features": "auto",
    "device_bytes": None,
    "gather_blocks": None,
    "cache": None,
}


class Exchange:
    """Makes the batches of a loader over parts; see `Rounds`.

    Args:
        graph: the partition.
    """

    window = WINDOW

    def __init__(self, graph: PartedGraph) -> None:
        self._graph = graph
        self._rounds: Rounds | None = None
        self.channel: Channel | None = None
        self.source: PartSource | None = None

    def begin(self, sampler: KeyedSampler, group: Any, timeout_seconds: float) -> None:
        """Begin an epoch; at the first one, meet the other ranks: collective then.

        Args:
            sampler: of the loader.
            group: the process group of the ranks, None for this process alone.
            timeout_seconds: of one exchange; 0 for `TIMEOUT_SECONDS`.

        Raises:
            ValueError: more ranks than parts, or another partition on another rank.
            InvalidGraphFileError: a part that this rank holds is missing.
            RuntimeError: another rank could not begin, or an earlier epoch has failed.
        """
        if self._rounds is not None:
            self._rounds.check()
            return
        own = None
        if group is not None and dist.get_world_size(group) > 1:
            if dist.get_world_size(group) > self._graph.num_parts:
                raise ValueError(
                    f"{self._graph.name} has {self._graph.num_parts} parts, too few for "
                    f"{dist.get_world_size(group)} ranks. Partition the graph into as many."
                )
            self._meet(group, max(timeout_seconds, MEETING_SECONDS))
            own = dist.new_group(
                dist.get_process_group_ranks(group),
                timeout=timedelta(days=GROUP_DAYS),
                backend="gloo",
                use_local_synchronization=True,
            )
        channel = Channel(own, timeout_seconds or TIMEOUT_SECONDS)
        plan, error = sampler.plan, None
        try:
            source = PartSource(self._graph, channel, sampler.backend, plan)
        except Exception as caught:
            error = caught
        if own is not None:
            checksum = checksum_of(asdict(self._graph.manifest))
            _check_same(gathered_unless_failed(checksum, error, group, HOST), self._graph.name)
        elif error is not None:
            raise error
        csc, backend = sampler.graph.csc, sampler.backend
        self._rounds = Rounds(
            source, channel, lambda: backend.workspace(csc, plan), len(plan.fanouts), WINDOW
        )
        self.channel, self.source = channel, source
        weakref.finalize(self, self._rounds.close).atexit = False
        self._rounds.start()

    def _meet(self, group: Any, seconds: float) -> None:
        """Wait until all ranks are here, as making a group waits for ever for those that are not.

        Raises:
            RuntimeError: some are not, in time.
        """
        if dist.get_backend(group) != "gloo":  # whose wait cannot be given up
            gathered(None, group, HOST)
            return
        try:
            Channel(group, seconds).gather(b"")
        except ExchangeError as error:
            raise RuntimeError(
                f"Not all ranks have begun to iterate a loader over {self._graph.name}, as they "
                f"must, whose loaders exchange hops and rows. {error}"
            ) from error

    def gathered(self, value: Any) -> list[Any]:
        """Return the values of all ranks, by rank, once all have called it in their loops.

        By the thread of the rounds, so that a rank that waits here learns of another's failure.

        Raises:
            ExchangeError: a rank has failed or is gone.
        """
        assert self._rounds is not None  # an epoch has begun
        return [pickle.loads(found) for found in self._rounds.gather(pickle.dumps(value))]

    def traffic(self) -> ExchangeTraffic:
        """Return what was exchanged so far."""
        if self.channel is None or self.source is None:
            return ExchangeTraffic()
        return replace(self.channel.traffic(), **vars(self.source.traffic))

    def works_for(self, is_working: Callable[[], bool], together: int) -> None:
        """See `Rounds.works_for`."""
        if self._rounds is not None:
            self._rounds.works_for(is_working, together)

    def fail(self, error: BaseException) -> None:
        """See `Rounds.fail`."""
        if self._rounds is not None:
            self._rounds.fail(error)

    def sample(self, batch: BatchInput) -> SampledGraph | None:
        """See `Rounds.sample`.

        Raises:
            RuntimeError: no epoch was begun yet.
        """
        if self._rounds is None:
            raise RuntimeError(
                "A loader over parts meets the other ranks at its first iteration. Call "
                "iter(loader) on all of them before loader(positions)."
            )
        return self._rounds.sample(batch)

    def part_of(self, node_type: NodeType | None, node: Tensor) -> Tensor:
        """Return the part of each node, int64 [n]."""
        part = self._graph.part[self._graph.node_types.index(node_type)]
        return torch.from_numpy(part[node.numpy()]).to(torch.int64)


def _check_same(checksums: Sequence[int], name: str) -> None:
    """Raise a ValueError, on all ranks, if their partitions differ."""
    for rank, checksum in enumerate(checksums):
        if checksum != checksums[0]:
            raise ValueError(
                f"Rank {rank} has opened another partition than rank 0; this rank has opened "
                f"{name}. Copy to all machines what one call of pyg_direct.partition wrote."
            )


@dataclass(frozen=True)
class PartedKeyedSampler(KeyedSampler):
    """A sampler over parts."""

    exchange: Any = field(default=None)

    def _drawn(self, batch: BatchInput) -> SampledGraph | None:
        found: SampledGraph | None = self.exchange.sample(batch)
        return found

    def __reduce__(self) -> Any:
        raise TypeError(
            "A loader over parts cannot be sent to another process, as it answers other ranks. "
            "Build it in the process of each rank."
        )


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
        if is_array or getattr(value, "value", value) not in (default, None, 0):
            given = "an array" if is_array else repr(value)
            raise ValueError(
                f"{name} cannot be used with a partitioned graph, got {given}. Leave it out, or "
                f"use a graph that one machine holds: pyg_direct.save and pyg_direct.open."
            )
    device = options.get("device")
    if device is not None and torch.device(device) != HOST:
        raise ValueError(
            f"device={device!r}: batches of a partitioned graph are made on the CPU. Leave it out, "
            f"and move each by batch.to(device)."
        )
    return PartedSampler(
        data, num_neighbors, options["replace"], options["disjoint"], options["seed"], threads
    )
