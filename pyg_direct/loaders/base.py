"""What the loaders of this room share: the CPU draws a batch, the device's backend fills it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import (
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import BaseSampler

from ..batch.gather import Gatherer
from ..batch.roles import KnownRoles, Roles
from ..batch.sampled import Sampled
from ..batch.subgraph import attributes_of
from ..core.config import resolve_device
from ..core.placing import Placing
from ..core.pyg import store_of
from ..core.types import BatchKey
from ..exchange.cooperative import CooperativeBatches
from ..exchange.shared_rows import RowsInCommon
from ..graph.from_pyg import check_ends
from ..loading.base import DirectLoader
from ..loading.options import Given
from ..loading.order import ClusterOrder, PartOrder, check_order, ranks_among
from ..loading.seeds import integers
from ..ops.devices import HOST
from ..sampling.sampler import NeighborSampler, keyed

# What DataLoader's `__init__` takes from a loader of ours and a user (or Lightning) may pass again.
OWN_OPTIONS = ("dataset", "collate_fn")


class _Positions:
    """The input of a loader whose batches are known only by the positions of their seeds.

    Args:
        count: how many there are.
        what: is at each position; "" where a position stands for nothing.
    """

    def __init__(self, count: int, what: str) -> None:
        self._count, self._what = count, what

    def __getitem__(self, index: Any) -> Tensor:
        """Return positions as int64 [n], those from the end as those from the begin.

        Raises:
            IndexError: there are not so many.
        """
        positions, count = integers(index), self._count
        numbers = positions.numpy()  # whose bounds are found sooner
        if not self._what or len(numbers) == 0 or 0 <= numbers.min() <= numbers.max() < count:
            return positions
        wrong = numbers[(numbers < -count) | (numbers >= count)]
        if len(wrong) > 0:
            raise IndexError(
                f"A batch asks for position {wrong[0]}, but there are {count} {self._what}, "
                f"positions 0 to {count - 1}. Positions come from sampler=, batch_sampler= or a "
                f"call of the loader, and count {self._what}."
            )
        return torch.where(positions < 0, positions + count, positions)


def check_sampler(sampler: Any, count: int, what: str) -> None:
    """Raise a ValueError if a sampler can be seen to name positions that a loader does not have.

    Args:
        sampler: as of `torch.utils.data.DataLoader`.
        count: how many positions there are.
        what: is at each of them.
    """
    highest = highest_position(sampler)
    if highest >= count:
        raise ValueError(
            f"sampler= names position {highest}, but there are {count} {what}, positions 0 to "
            f"{count - 1}. A sampler names places among the {what}."
        )


def highest_position(sampler: Any) -> int:
    """Return the highest position that a sampler of torch's, or a list, names; -1 if unknown."""
    goes_through = getattr(type(sampler), "__iter__", None)  # of subclasses, unless they have one
    if goes_through in (RandomSampler.__iter__, SequentialSampler.__iter__):
        return len(sampler.data_source) - 1
    if goes_through is WeightedRandomSampler.__iter__:  # as PyG's `ImbalancedSampler`
        drawn = sampler.weights.nonzero()
        return int(drawn.max()) if len(drawn) > 0 else -1
    named = sampler.indices if goes_through is SubsetRandomSampler.__iter__ else sampler
    if not isinstance(named, (list, tuple, range, Tensor)) or len(named) == 0:
        return -1
    try:
        return max(map(int, named))
    except (TypeError, ValueError):
        return -1


class RankLoader(DirectLoader):
    """A loader of this package, whose batches ranks may make together."""

    _direct = False  # whether batches are sampled by the core `_direct_for` itself

    def _sample_for_batch(self, inputs: Any, key: BatchKey) -> Any:
        """As `_sample`; a `Sampled` if nobody looks at it but `filter_fn` of this class."""
        sampler = self._site.sampler
        core = keyed(sampler) if isinstance(sampler, NeighborSampler) else None
        if self._direct_for is not core:
            self._direct_for, self._direct = core, core is not None and self._samples_directly()
        return self._sampled_by(core, inputs, key) if self._direct else self._sample(inputs, key)

    def _labels(self, out: Any) -> dict[Any, dict[str, Any]]:
        """Return what seed nodes add: their positions in the input, their times, their number."""
        input_id, seed_time = out.metadata
        fields = {"input_id": input_id, "seed_time": seed_time, "batch_size": input_id.numel()}
        return {self.input_data.input_type: fields}

    def _samples_directly(self) -> bool:
        """Whether batches come from what our sampler draws, and nobody looks at it in between."""
        return False

    def _sampled_by(self, core: Any, inputs: Any, key: BatchKey) -> Sampled:
        """Sample by the core of our sampler, if `_samples_directly`."""
        raise NotImplementedError

    def _exchange_for(self, data: Any, placing: Placing) -> tuple[Any, Placing]:
        """See `DirectLoader`.

        Raises:
            ValueError, TypeError: arguments of the loader that do not fit it.
        """
        split, exchange = self._split, self._exchange
        if split.share_rows or split.cooperative:
            exchange = self._shared(data)
        if exchange is None:
            return None, placing
        if resolve_device(placing.device) in (None, HOST):
            return exchange, placing._replace(device=HOST, cpu_for=exchange.argument)
        for name, refused in (("topology", placing.topology == "device"), ("cache", placing.cache)):
            if refused:
                raise ValueError(
                    f"{name}={getattr(placing, name)!r} cannot be used with {exchange.argument}: "
                    f"hops and rows of nodes come from other ranks by way of the host, and then go "
                    f"to {str(placing.device)!r}. Leave it out."
                )
        return exchange, placing

    def _shared(self, data: Any) -> RowsInCommon:
        """Return what ranks share of the batches of a graph in memory.

        Raises:
            ValueError, TypeError: arguments of the loader that do not fit it.
        """
        split, name = self._split, type(self).__name__
        if split.share_rows and self._gives_whole_subgraphs:
            raise ValueError(
                f"share_rows=True cannot be used with {name}: it is for NeighborLoader, "
                f"LinkNeighborLoader and HGTLoader."
            )
        if split.cooperative and not self._can_cooperate:
            raise ValueError(
                f"cooperative=True cannot be used with {name}: it is for NeighborLoader. "
                f"share_rows=True loads rows in common with others, too."
            )
        kind = RowsInCommon if split.share_rows else CooperativeBatches
        if self._exchange is not None:
            raise ValueError(
                f"{kind.argument} cannot be used with a partitioned graph, whose ranks exchange "
                f"rows already. Leave it out."
            )
        # So that a model that was accelerated with one loader knows the batches of any other.
        self._hands_out_hops = self._hands_out_hops or split.cooperative
        return kind(data, split, self._feature_dtype)

    def _begin_order(self, order: Any, options: dict[str, Any]) -> None:
        """Put the sampler of `order` into the options of DataLoader; comes before its initialiser.

        With a seed, it follows that, as `shuffle` does.
        """
        if order is None:
            return
        check_order(order, options, *([] if self._exchange is None else [self._exchange.orders]))
        if self._progress.seed is not None and options.get("generator") is None:
            self._shuffle_generator = options["generator"] = torch.Generator()
        kind = PartOrder if isinstance(order, str) and order == "parts" else ClusterOrder
        options["sampler"] = kind(options.get("generator"), options.get("batch_size", 1))

    def _finish_order(self, order: Any, nodes: Tensor, node_type: Any) -> None:
        """Say where the seeds are; comes after the initialiser.

        Args:
            order: as the user gave it.
            nodes: int64 [seeds], which stand for the seeds in 'proximity'.
            node_type: of these.
        """
        if order is None:
            return
        sampler = self.__dict__["sampler"]
        if isinstance(order, Tensor):
            if len(order) != len(nodes):
                raise ValueError(
                    f"order must hold one integer for each of {len(nodes)} seeds, got {len(order)}."
                )
            sampler.cluster = order.to("cpu", torch.int64, copy=True)
        elif isinstance(sampler, PartOrder):
            sampler.cluster = self._exchange.part_of(node_type, nodes)
        elif not isinstance(self._sampler, NeighborSampler):
            raise ValueError(
                f"order='proximity' needs pyg_direct's own NeighborSampler, which knows the graph, "
                f"got {type(self._sampler).__name__}. Pass a tensor of clusters instead."
            )
        else:
            rank = keyed(self._sampler).proximity(node_type)[nodes]
            sampler.cluster, sampler.by_rank = ranks_among(rank), True

    def _reads_graphs_of(self, method: Any) -> bool:
        """Whether `filter_fn` alone reads what a method of our sampler draws, as it was drawn."""
        sampler: Any = self._site.sampler
        return (
            getattr(type(sampler), method.__name__, None) is method
            and type(sampler)._sample is NeighborSampler._sample
            and self.transform_sampler_output is None
            and getattr(self.filter_fn, "__func__", None) is DirectLoader.filter_fn
            and isinstance(self.data, (Data, HeteroData))
            and keyed(sampler).emits_as_drawn
        )


class CpuDrawnLoader(RankLoader):
    """A loader whose subgraphs are drawn on the CPU, wherever the batches shall be.

    On a GPU the attributes are gathered by the GPU's backend, and the batch arrives there.
    """

    _draws_on_cpu = True


class SubgraphLoader(CpuDrawnLoader):
    """A loader over positions (seeds, steps, parts) that PyG has no sampler class for.

    Subclasses say how to `_sample` a batch and how to make it in `filter_fn`.
    """

    _gives_whole_subgraphs = True
    input_data: Any = None
    _at_positions = "seeds"  # what an epoch goes over; "" where positions stand for nothing
    transform = None
    transform_sampler_output = None
    filter_per_worker = True
    custom_cls = None

    def _begin(
        self,
        data: Any,
        sampler: BaseSampler,
        num_items: int,
        given: Given,
    ) -> None:
        """Set up producers and keys, and run torch's initialiser.

        Args:
            data: the graph that batches are gathered from.
            sampler: samples on the CPU.
            num_items: over how many positions an epoch goes.
            given: the keyword arguments of the loader.
        """
        options = given.passed_on
        for name in OWN_OPTIONS:
            options.pop(name, None)
        self._num_items = num_items
        what = self._at_positions
        self.input_data = _Positions(num_items, what)
        if what:
            check_sampler(options.get("sampler"), num_items, what)
        self._prepare(data, [], {}, sampler, given)
        torch.utils.data.DataLoader.__init__(
            self,
            range(num_items),  # type: ignore[arg-type]
            collate_fn=self.collate_fn,
            **options,
        )

    def __call__(self, index: Tensor | list[int]) -> Any:
        """Return the batch of the items at positions `index`."""
        return self.collate_fn(index)

    def _tell_roles(self, num_nodes: int, num_edges: int) -> None:
        """Say how many nodes and edges the graph has, which tells what its attributes are of."""
        self._counts = (num_nodes, num_edges)
        self._roles = KnownRoles(self._counts)

    def _roles_there(self) -> Roles:
        return self._roles.of(None, store_of(self.data, None))

    def _attributes(
        self, node: Tensor, edge: Tensor | Callable[[], Tensor], gatherer: Gatherer
    ) -> Iterator[tuple[str, Any]]:
        """Yield the attributes of a subgraph; see `attributes_of`."""
        yield from attributes_of(self.data, self._roles_there(), self._counts, node, edge, gatherer)

    def _gatherer(self) -> Gatherer:
        """Return what gathers the rows of one batch."""
        ids = self._backend.memory.ids(self._host_ids)
        return Gatherer(self._backend, ids, self._feature_dtype, self._recorder.found)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def _labels(self, out: Any) -> dict[Any, dict[str, Any]]:
        return {}

    def _num_seeds(self) -> int:
        return self._num_items

    def _seed_parts(self) -> tuple[dict[str, Any], list[Tensor | None]]:
        return {"loader": type(self).__name__, **self._law()}, []

    def _law(self) -> dict[str, Any]:
        """Return the arguments that decide what is drawn and that the sampler does not know."""
        return {}

    def _sample(self, inputs: Any, key: BatchKey | None) -> Any:
        raise NotImplementedError


def check_homogeneous(data: Any, method: str) -> None:
    """Raise a ValueError unless `data` is a `Data` of a known number of nodes."""
    if not isinstance(data, Data):
        raise ValueError(f"{method} needs a homogeneous graph (a Data), got {type(data).__name__}.")
    if not isinstance(data.num_nodes, int):
        raise ValueError("The number of nodes is unknown: set data.num_nodes or data.x.")


def check_edges(data: Any, method: str) -> None:
    """Raise a ValueError unless `data` is a `Data` with edges between its nodes as `edge_index`."""
    check_homogeneous(data, method)
    if "edge_index" not in data:
        raise ValueError(f"{method} needs data.edge_index.")
    check_ends(data.edge_index, (data.num_nodes, data.num_nodes), "data.edge_index")
