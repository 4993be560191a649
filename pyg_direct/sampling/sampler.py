"""`NeighborSampler`: PyG's `BaseSampler` with all sampling policy."""

from __future__ import annotations

import copy
import itertools
import warnings
from dataclasses import replace as replace_fields
from functools import partial
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import (
    BaseSampler,
    EdgeSamplerInput,
    NegativeSampling,
    NodeSamplerInput,
)
from torch_geometric.sampler.base import DataType, NumNeighbors, SubgraphType
from torch_geometric.sampler.neighbor_sampler import edge_sample, node_sample
from torch_geometric.typing import EdgeType, NodeType

from ..arguments import (
    check_bytes,
    check_choice,
    check_count,
    check_data,
    check_flag,
    check_ids,
    check_mode,
    check_seed,
    check_subgraph_type,
    check_window,
)
from ..config import as_device
from ..graph.from_pyg import Graph, graph_of
from ..ops.backend import Backend
from ..ops.devices import backend_for
from ..types import BatchKey, Ends, SampledGraph, SamplingPlan
from . import rng
from .fanouts import Fanouts, as_num_neighbors, check_fanouts, fanout_table, fanouts_of
from .negatives import KeyedNegatives, sample_ends
from .outputs import Output, output_of
from .workspaces import WorkspacePool

NumNeighborsLike: TypeAlias = NumNeighbors | list[int] | dict[EdgeType, list[int]]


class NeighborSampler(BaseSampler):
    """Samples neighbourhoods, with PyG's `NeighborSampler` signature.

    Works in `pyg_direct.NeighborLoader` and in PyG's own `NodeLoader`. Without replacement each
    node gets ``min(k, degree)`` of its in-edges, every subset equally likely (Floyd's algorithm);
    with replacement, k independent uniform draws if it has any. A negative fan-out takes all
    in-edges, in their order. Parallel edges count one by one. Nodes are numbered by first
    occurrence, seeds first; duplicated seeds keep their places and draw independently.

    Args:
        data: `torch_geometric.data.Data` or `HeteroData`. Its edges are grouped by destination
            once, here; features are not touched.
        num_neighbors: fan-out of each hop; negative for all neighbours, [] for the seeds alone.
        subgraph_type: 'directional', 'bidirectional' or 'induced', each with any other argument.
            With `time_attr` an induced edge, too, is no later than its seed.
        replace: sample with replacement.
        disjoint: give every seed a subgraph of its own.
        temporal_strategy: with `time_attr`, 'uniform' draws from all neighbours that are no later
            than the seed, 'last' takes the latest of them.
        time_attr: integer attribute of nodes or of edges. No neighbour is later than the seed of
            its subgraph, at any hop; makes the sampler disjoint. Node types (or edge types) without
            it are not bound.
        weight_attr: attribute of edges, finite and not negative. With replacement, each draw takes
            an edge with probability weight / sum of weights, up to a factor of 1 +- 2^-24. Without,
            draws follow one another, each from the edges left in proportion to weight (the law of
            Efraimidis and Spirakis, 2006). An edge of weight 0 is taken only by a negative fan-out.
            Edge types without it are sampled uniformly. Both backends take the same edges, bit for
            bit: a draw is made of sums and products of doubles in one order, each rounded alone.
        is_sorted: `edge_index` is sorted by column and, with `time_attr`, by time within a column.
            Sorted edges are found without it, too.
        share_memory: accepted for PyG's sake; nothing is copied to other processes.
        directed: deprecated in PyG; False means ``subgraph_type='induced'``.
        sample_direction: 'forward' samples the sources of edges into the frontier, 'backward' the
            destinations of edges out of it. Edges keep their direction in the output.
        device: where to sample; None means the CPU, as PyG's own loaders select the features there
            (those of pyg_direct choose for themselves).
        topology: where the graph lies for a GPU: 'host' (pinned, read over the link), 'device', or
            'auto' for the device as far as `device_bytes` go.
        device_bytes: device memory that may be used in 'auto'; None for half of what is free.
        seed: base seed in [0, 2^64) of all draws. None draws a key from torch's default generator
            at every call, so that `torch.manual_seed` governs.
        threads: CPU threads that may share one batch.
        time_window: with `time_attr`: no neighbour is older than its seed's time minus this.

    Raises:
        ValueError: bad edges, fan-outs or options; times that are no integers, or on nodes and
            edges at once; weights that are not on edges, negative, infinite or NaN.
    """

    def __init__(
        self,
        data: Any,
        num_neighbors: NumNeighborsLike,
        subgraph_type: SubgraphType | str = "directional",
        replace: bool = False,
        disjoint: bool = False,
        temporal_strategy: str = "uniform",
        time_attr: str | None = None,
        weight_attr: str | None = None,
        is_sorted: bool = False,
        share_memory: bool = False,
        directed: bool = True,
        sample_direction: Literal["forward", "backward"] = "forward",
        *,
        device: torch.device | str | None = None,
        topology: str = "auto",
        device_bytes: int | None = None,
        seed: int | None = None,
        threads: int = 1,
        time_window: int | None = None,
    ) -> None:
        check_data(data)
        if not check_flag("directed", directed):
            subgraph_type = SubgraphType.induced
            text = "directed=False is deprecated; use subgraph_type='induced'."
            warnings.warn(text, FutureWarning, stacklevel=2)
        check_choice("sample_direction", sample_direction, ("forward", "backward"))
        check_choice("temporal_strategy", temporal_strategy, ("uniform", "last"))
        self.time_window = check_window(time_window, time_attr)
        self.data_type = DataType.from_data(data)
        backward, is_sorted = sample_direction == "backward", check_flag("is_sorted", is_sorted)
        check_flag("share_memory", share_memory)
        self.replace = check_flag("replace", replace)
        self.subgraph_type = check_subgraph_type(subgraph_type)
        self._disjoint = check_flag("disjoint", disjoint)
        threads = check_count("threads", threads, least=1)
        self._where = (check_mode("topology", topology), check_bytes("device_bytes", device_bytes))
        self.graph: Graph = graph_of(data, is_sorted, time_attr, weight_attr, backward)
        home = as_device("cpu" if device is None else device, "device")
        self._backend: Backend = backend_for(home, threads)
        self._csc = self._backend.memory.place_graph(self.graph.csc, *self._where)
        self.graph = replace_fields(self.graph, csc=self._csc)  # lets go of a copy on the host
        self.node_types, self.edge_types = self.graph.node_types, self.graph.edge_types
        counts = self._csc.num_nodes.tolist()
        self.num_nodes: Any = (  # as in PyG: a dict for heterogeneous graphs
            dict(zip(self.node_types, counts, strict=True)) if self.is_hetero else counts[0]
        )
        self.num_neighbors = num_neighbors
        self.temporal_strategy = temporal_strategy
        self.sample_direction = sample_direction
        self.keep_orig_edges = False
        self._seed = check_seed(seed)
        self._calls = itertools.count()
        # Shared by shallow copies, which may have other fan-outs: so everything is kept by plan.
        self._plans: dict[Any, SamplingPlan] = {}
        self._workspaces = WorkspacePool()

    @property
    def num_neighbors(self) -> NumNeighbors:
        """The fan-out of each hop; can be set, also on a shallow copy (as Lightning does)."""
        return self._num_neighbors

    @num_neighbors.setter
    def num_neighbors(self, value: NumNeighborsLike) -> None:
        if isinstance(value, (np.ndarray, Tensor)):
            value = value.tolist()
        self._num_neighbors = as_num_neighbors(value)
        check_fanouts(self._num_neighbors, self._fanouts(), self.replace)

    @property
    def is_hetero(self) -> bool:
        """Whether the graph has named node and edge types."""
        return list(self.node_types) != [None]

    @property
    def is_temporal(self) -> bool:
        """Whether sampling respects time."""
        return self.graph.node_times is not None

    @property
    def disjoint(self) -> bool:
        """Whether every seed has a subgraph of its own; always so with times."""
        return self._disjoint or self.is_temporal

    @disjoint.setter
    def disjoint(self, value: bool) -> None:
        self._disjoint = bool(value)

    @property
    def edge_permutation(self) -> None:
        """None: `SamplerOutput.edge` holds columns of the user's `edge_index` already."""
        return None

    @property
    def ends(self) -> Ends:
        """The numbers of nodes and edges by type: all ids in an output are below them."""
        counts = np.diff(self._csc.edge_base).tolist()
        return Ends(
            dict(zip(self.node_types, self._csc.num_nodes.tolist(), strict=True)),
            dict(zip(self.edge_types, counts, strict=True)),
        )

    def fingerprint_parts(self) -> tuple[dict[str, Any], list[Any]]:
        """Return the arguments that decide what is sampled, by name, and the graph's arrays."""
        arguments = {
            "num_neighbors": str(self._fanouts()),
            "replace": self.replace,
            "disjoint": self.disjoint,
            "subgraph_type": self.subgraph_type.value,
            "temporal_strategy": self.temporal_strategy,
            "time_window": self.time_window,
            "sample_direction": self.sample_direction,
            "num_nodes": str(self.num_nodes),
            "num_edges": str(self.ends.edge),
            "id_dtype": str(self.graph.id_dtype),
        }
        return arguments, [array for _, array in self._csc.arrays()]

    @property
    def backend(self) -> Backend:
        """The backend that samples, which also gathers for the loader."""
        return self._backend

    def sample_from_nodes(self, index: NodeSamplerInput, **kwargs: Any) -> Output:
        """Sample the neighbourhood of the seeds `index.node`, with a new key.

        Raises:
            IndexError: a seed out of range.
        """
        if kwargs:
            raise TypeError(f"sample_from_nodes takes no argument {', '.join(kwargs)}.")
        return self.sample_nodes(index, self.next_key())

    def num_nodes_of(self, node_type: NodeType | None) -> int:
        """Return how many nodes of a type there are; None is the type of a homogeneous graph.

        Raises:
            ValueError: no such type.
        """
        if node_type not in self.node_types:
            raise ValueError(f"node type must be one of {self.node_types}, got {node_type!r}.")
        return int(self._csc.num_nodes[self.node_types.index(node_type)])

    def sample_nodes(self, inputs: NodeSamplerInput, key: BatchKey) -> Output:
        """Sample as a function of `key`.

        Raises:
            IndexError: a seed out of range. They are checked for each batch, as they may be changed
                while a loader goes through them.
        """
        check_ids(inputs.node, self.num_nodes_of(inputs.input_type), "seeds")
        out: Output = node_sample(inputs, partial(self._sample, key))
        if self.subgraph_type == SubgraphType.bidirectional:
            out = out.to_bidirectional(keep_orig_edges=self.keep_orig_edges)
        return out

    def sample_from_edges(
        self, index: EdgeSamplerInput, neg_sampling: NegativeSampling | None = None
    ) -> Output:
        """Sample the neighbourhoods of both ends of links and of negatives, with a new key.

        Raises:
            IndexError: an end out of range.
        """
        return self.sample_links(index, neg_sampling, self.next_key())

    def sample_links(
        self, inputs: EdgeSamplerInput, neg_sampling: NegativeSampling | None, key: BatchKey
    ) -> Output:
        """Sample as a function of `key`.

        The rules of links and negatives are PyG's own function; only the draws are ours.

        Raises:
            IndexError: an end out of range; see `sample_nodes`.
        """
        ends = (None, None) if inputs.input_type is None else inputs.input_type[::2]
        check_ids(inputs.row, self.num_nodes_of(ends[0]), "sources of seed links")
        check_ids(inputs.col, self.num_nodes_of(ends[1]), "destinations of seed links")
        times = self.graph.node_times
        node_time: Any = None
        if times:
            own = {kind: torch.from_numpy(value) for kind, value in times.items()}
            node_time = own if self.is_hetero else own[None]
        keyed = None if neg_sampling is None else KeyedNegatives(neg_sampling, key)
        sample = partial(self._sample, key)
        if self.disjoint and keyed is not None and keyed.is_binary():
            sample = partial(sample_ends, sample)
        out: Output = edge_sample(inputs, sample, self.num_nodes, self.disjoint, node_time, keyed)
        if self.subgraph_type == SubgraphType.bidirectional:
            out = out.to_bidirectional(keep_orig_edges=self.keep_orig_edges)
        return out

    def _sample(self, key: BatchKey, seed: Any, seed_time: Any = None) -> Output:
        """Sample around seeds as PyG's helper passes them: a tensor, or a dict by node type."""
        nodes = seed if self.is_hetero else {None: seed}
        given = {} if seed_time is None else (seed_time if self.is_hetero else {None: seed_time})
        seeds: list[Tensor | None] = [None] * len(self.node_types)
        times = []
        for t, kind in enumerate(self.node_types):
            if kind in nodes:
                node = nodes[kind].to(torch.int64).contiguous()
                seeds[t] = node
                times.append(self.seed_time(kind, node, given.get(kind)))
        time = torch.cat([t for t in times if t is not None]) if self.is_temporal else None
        sampled = self.sample(seeds, key, time)
        backward = self.sample_direction == "backward"
        return output_of(sampled, self.node_types, self.edge_types, backward)

    def seed_time(
        self,
        node_type: NodeType | None,
        seed: Tensor,
        time: Tensor | None,
        name: str = "input_time",
    ) -> Tensor | None:
        """Return the time of each seed, int64 [n]: as given, or its node's own; None without times.

        Raises:
            ValueError: times given where there is no `time_attr`, not one integer for each seed, or
                none given where the nodes have none of their own.
        """
        times = self.graph.node_times
        if time is None:
            own = None if times is None else times.get(node_type)
            if times is not None and own is None:
                kind = "nodes" if node_type is None else f"nodes of type {node_type!r}"
                raise ValueError(
                    f"{name} is needed: the {kind} have no time of their own to sample before."
                )
            return None if own is None else torch.from_numpy(own)[seed]
        if times is None:
            raise ValueError(f"{name} has no meaning without time_attr.")
        if time.shape != seed.shape or time.is_floating_point():
            raise ValueError(
                f"{name} must hold one integer for each of {len(seed)} seeds, got {time.dtype} "
                f"of shape {tuple(time.shape)}."
            )
        return time.to(torch.int64).contiguous()

    def sample(
        self, seeds: list[Tensor | None], key: BatchKey, seed_time: Tensor | None = None
    ) -> SampledGraph:
        """Sample around `seeds`, one int64 tensor [n_t] or None for each node type.

        `seed_time`, int64 [n], holds the times of all seeds, type by type.
        """
        if torch.is_inference_mode_enabled():  # which a workspace outlives, if it is made there
            with torch.inference_mode(False):
                return self._run(seeds, key, seed_time)
        return self._run(seeds, key, seed_time)

    def _run(
        self, seeds: list[Tensor | None], key: BatchKey, seed_time: Tensor | None
    ) -> SampledGraph:
        plan_key, plan = self._plan()
        # A workspace belongs to one stream, which orders what is done with it.
        kind = (plan_key, self._backend.streams.stream_id())
        work = self._workspaces.take(kind) or self._backend.workspace(self._csc, plan)
        work.start(seeds, key, seed_time)
        work.sample_hops(0, len(plan.fanouts))
        induced = self.subgraph_type == SubgraphType.induced
        sampled = work.emit_induced() if induced else work.emit()
        # Not after an exception: the workspace may be in any state then.
        self._workspaces.give_back(kind, work)
        return sampled

    def _plan(self) -> tuple[Any, SamplingPlan]:
        fanouts = self._fanouts()
        key = (fanouts, self.replace, self.disjoint, self.temporal_strategy, self.time_window)
        plan = self._plans.get(key)
        if plan is None:
            check_fanouts(self._num_neighbors, fanouts, self.replace)  # which can be set, too
            table = fanout_table(fanouts, np.diff(self._csc.edge_base), self.replace)
            recent = self.temporal_strategy == "last"
            window = -1 if self.time_window is None else self.time_window
            plan = SamplingPlan(
                table, self.replace, self.disjoint, recent, self.graph.id_dtype, window
            )
            self._plans[key] = plan
        return key, plan

    def _fanouts(self) -> Fanouts:
        return fanouts_of(self._num_neighbors, self.edge_types, self.is_hetero)

    def next_key(self) -> BatchKey:
        """Return the key of a batch that is asked for alone, outside an epoch."""
        if self._seed is not None and torch.utils.data.get_worker_info() is None:
            return rng.derive(self._seed, 0, next(self._calls), rng.CALL_DOMAIN)
        # In a worker process of PyG's loader a call counter would repeat itself, in every worker
        # and every epoch; torch's generator was seeded for this worker and epoch.
        return rng.derive(rng.draw_seed(None), 0, self._seed or 0, rng.CALL_DOMAIN)

    def copy_to(self, device: torch.device, where: tuple[str, int | None]) -> NeighborSampler:
        """Return a copy that samples on `device`; `where` is its (topology, device_bytes)."""
        twin, backend = copy.copy(self), backend_for(device)
        twin.__setstate__({**self.__getstate__(), "_backend": backend, "_where": where})
        return twin

    def __copy__(self) -> NeighborSampler:
        twin = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        graph = replace_fields(self.graph, csc=self._backend.memory.to_numpy(self._csc))
        state.update(_calls=None, _plans={}, _csc=None, graph=graph)
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _calls=itertools.count())
        self._csc = self._backend.memory.place_graph(self.graph.csc, *self._where)
        self.graph = replace_fields(self.graph, csc=self._csc)
