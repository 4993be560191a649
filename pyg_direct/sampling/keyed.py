"""Sampling as a function of a key: what `NeighborSampler` is made of, and the loaders use."""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor
from torch_geometric.sampler import NumNeighbors
from torch_geometric.typing import NodeType

from ..core.arguments import check_ids, check_partner, shown
from ..core.pyg import SubgraphType
from ..core.types import (
    NO_RULES,
    BatchKey,
    Ends,
    ExcludedEdges,
    ExtendedKey,
    Rules,
    SampledGraph,
    SamplingPlan,
    SeedVisits,
)
from ..graph.from_pyg import Graph
from ..graph.verify import verified
from ..graph.visits import expected_visits, out_degrees
from ..ops.backend import Backend, Workspace
from ..ops.host import keys as rng
from ..ops.host.search import breadth_first_ranks
from .exclusion import EdgeLookup, SeedEdges
from .fanouts import Fanouts, check_fanouts, check_law, fanout_table, fanouts_of
from .hops import BatchInput, HopSource, sample_window
from .time_bounds import NO_BOUNDS, TimeBounds


class Settings(NamedTuple):
    """The arguments that decide which neighbours are taken; each may change between batches."""

    num_neighbors: NumNeighbors
    replace: bool
    disjoint: bool
    subgraph_type: SubgraphType
    temporal_strategy: str
    time_window: int | None
    sample_direction: str
    exclude_seed_edges: Any = None  # 'self', 'reverse', or the edge type of the reverse edges
    sampling: str = "uniform"  # or 'labor', 'adaptive'
    layer_dependency: bool = False
    strict_negatives: bool = False

    @classmethod
    def plain(cls, num_neighbors: NumNeighbors, replace: bool, disjoint: bool) -> Settings:
        """Return settings of draws that nothing else bounds, of the edges that were drawn."""
        directional = SubgraphType.directional
        return cls(num_neighbors, replace, disjoint, directional, "uniform", None, "forward")


class NumberedPlan(NamedTuple):
    """A plan, and a number that distinguishes it from the other plans of a graph."""

    number: int
    plan: SamplingPlan


MAX_IDLE_KINDS = 4  # such as training and validation, each on two streams


class WorkspacePool:
    """Idle workspaces by kind, those of the kinds that were used last. Thread-safe.

    Each holds a table over all nodes, so the kinds that were not used for longest, as after
    `num_neighbors` was set anew, are freed.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Hashable, list[Workspace]] = {}
        self._used: dict[Hashable, int] = {}  # the larger, the later a kind was used
        self._uses = itertools.count()

    def take(self, kind: Hashable) -> Workspace | None:
        """Return an idle workspace of a kind, which is the caller's from now on, or None."""
        try:
            return self._idle[kind].pop()  # of no other thread from then on, without a lock
        except (KeyError, IndexError):
            return None

    def give_back(self, kind: Hashable, workspace: Workspace) -> None:
        """Keep a workspace for the next batch of its kind."""
        self._used[kind] = next(self._uses)
        idle = self._idle.get(kind)
        if idle is None:
            with self._lock:
                idle = self._idle.setdefault(kind, [])
                while len(self._idle) > MAX_IDLE_KINDS:
                    oldest = min(self._idle, key=lambda other: self._used.get(other, 0))
                    del self._idle[oldest]
                    self._used.pop(oldest, None)
        idle.append(workspace)

    def __reduce__(self) -> tuple[type[WorkspacePool], tuple[()]]:
        """Workspaces stay in their process."""
        return WorkspacePool, ()


@dataclass(frozen=True)
class _PlacedGraph:
    """What all samplers over one placed graph share; plans and workspaces are kept by settings."""

    calls: Iterator[int] = field(default_factory=itertools.count)
    plan_numbers: Iterator[int] = field(default_factory=itertools.count)
    plans: dict[Any, NumberedPlan] = field(default_factory=dict)
    workspaces: WorkspacePool = field(default_factory=WorkspacePool)


@dataclass(frozen=True)
class KeyedSampler:
    """A graph in place, and how it is sampled. `keyed.sample` is a function of its arguments.

    The loaders of this package use it through `sampler.keyed(neighbor_sampler)`. A pickled one
    places its graph again, by its own backend.
    """

    graph: Graph
    """The user's graph; its CSC is the placed one, which may be on a GPU."""
    backend: Backend
    """Samples, and gathers for the loader."""
    where: tuple[str, int | None]
    """`topology` and `device_bytes`, as `NeighborSampler` takes them."""
    seed: int | None
    """Base seed of the keys of batches that are asked for alone."""
    settings: Settings
    seed_edges: SeedEdges | None = None
    """Finds the edges that `settings.exclude_seed_edges` leaves out."""
    edges: EdgeLookup | None = None
    """Tells edges from other pairs, for `settings.strict_negatives`."""
    source: HopSource | None = None
    """Decides the edges of each hop, in place of the plan's draws; None for those."""
    shared: _PlacedGraph = field(default_factory=_PlacedGraph)

    @classmethod
    def placed(
        cls,
        graph: Graph,
        backend: Backend,
        where: tuple[str, int | None],
        seed: int | None,
        settings: Settings,
        source: HopSource | None = None,
    ) -> KeyedSampler:
        """Place a graph of NumPy arrays by a backend, and keep no copy on the host.

        Where seed edges are to be found in it, a copy stays there.
        """
        mode, backward = settings.exclude_seed_edges, settings.sample_direction == "backward"
        seed_edges = None if mode is None else SeedEdges(graph, mode, backward)
        edges = EdgeLookup(graph, backward) if settings.strict_negatives else None
        # Without checks all is copied or page-locked, so all of it is read anyway.
        csc = graph.csc if backend.memory.checks_reads else verified(graph.csc)
        csc = backend.memory.place_graph(csc, *where)
        if csc is not graph.csc:  # else other samplers may share the graph, as long as it lives
            graph = replace(graph, csc=csc)
        return cls(graph, backend, where, seed, settings, seed_edges, edges, source)

    def moved(self, backend: Backend, where: tuple[str, int | None]) -> KeyedSampler:
        """Return a sampler over the same graph, placed anew by another backend."""
        graph = self._graph_on_host()
        return self.placed(graph, backend, where, self.seed, self.settings, self.source)

    def __reduce__(self) -> Any:
        graph = self._graph_on_host()
        parts = (graph, self.backend, self.where, self.seed, self.settings, self.source)
        return KeyedSampler.placed, parts

    def _graph_on_host(self) -> Graph:
        return replace(self.graph, csc=self.backend.memory.to_numpy(self.graph.csc))

    def with_setting(self, name: str, value: Any) -> KeyedSampler:
        """Return a sampler over the same placed graph with one other setting."""
        return replace(self, settings=self.settings._replace(**{name: value}))

    @property
    def is_hetero(self) -> bool:
        """Whether the graph has named node and edge types."""
        return list(self.graph.node_types) != [None]

    @property
    def disjoint(self) -> bool:
        """Whether every seed has a subgraph of its own; always so with times."""
        return self.settings.disjoint or self.graph.node_times is not None

    @property
    def emits_as_drawn(self) -> bool:
        """Whether the output edges are exactly the drawn ones, from source to destination."""
        given = self.settings
        mirrored = given.subgraph_type == SubgraphType.bidirectional
        return given.sample_direction == "forward" and not mirrored

    @property
    def num_nodes(self) -> Any:
        """The number of nodes; a dict by type for heterogeneous graphs."""
        counts = dict(self.ends.node)
        return counts if self.is_hetero else counts[None]

    @property
    def ends(self) -> Ends:
        """The numbers of nodes and edges by type: all ids in an output are below them."""
        csc = self.graph.csc
        edges = np.diff(csc.edge_base).tolist()
        return Ends(
            dict(zip(self.graph.node_types, csc.num_nodes.tolist(), strict=True)),
            dict(zip(self.graph.edge_types, edges, strict=True)),
        )

    def num_nodes_of(self, node_type: NodeType | None) -> int:
        """Return how many nodes of a type there are; None is the type of a homogeneous graph.

        Raises:
            ValueError: no such type.
        """
        types = self.graph.node_types
        if node_type not in types:
            raise ValueError(f"node type must be one of {types}, got {shown(node_type)}.")
        return int(self.graph.csc.num_nodes[types.index(node_type)])

    def proximity(self, node_type: NodeType | None) -> Tensor:
        """Return for each node of a type how early a breadth-first search meets it, int64 [N]."""
        csc = verified(self.backend.memory.to_numpy(self.graph.csc))
        return breadth_first_ranks(csc)[self.graph.node_types.index(node_type)]

    def expected_visits(
        self, seeds: Mapping[Any, SeedVisits], found: Mapping[Any, list[float]] | None = None
    ) -> dict[Any, Tensor]:
        """Return how likely each node is in a batch, float64 [N_t] by node type.

        Args:
            seeds: how often batches have each node as a seed, by node type.
            found: how many new nodes batches find in each hop, by node type; see there.
        """
        csc = verified(self.backend.memory.to_numpy(self.graph.csc))
        given = [seeds.get(kind) for kind in self.graph.node_types]
        by_hop = None if found is None else np.array([found[k] for k in self.graph.node_types]).T
        fanouts, replace = self._plan.plan.fanouts, self.settings.replace
        visits = expected_visits(csc, given, fanouts, replace, by_hop)
        return dict(zip(self.graph.node_types, map(torch.from_numpy, visits), strict=True))

    def out_degrees(self) -> dict[Any, Tensor]:
        """Return how many edges leave each node, float64 [N_t] by node type."""
        csc = verified(self.backend.memory.to_numpy(self.graph.csc))
        degrees = map(torch.from_numpy, out_degrees(csc))
        return dict(zip(self.graph.node_types, degrees, strict=True))

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
            if own is None:
                return None
            check_ids(seed, len(own), "seeds")
            return torch.from_numpy(own)[seed]
        check_partner(name, "time_attr", times is not None)
        if time.shape != seed.shape or time.is_floating_point():
            raise ValueError(
                f"{name} must hold one integer for each of {len(seed)} seeds, got {time.dtype} "
                f"of shape {tuple(time.shape)}."
            )
        return time.to(torch.int64).contiguous()

    def next_key(self) -> BatchKey:
        """Return the key of a batch that is asked for alone, outside an epoch."""
        if self.seed is not None and torch.utils.data.get_worker_info() is None:
            return rng.derive(self.seed, 0, next(self.shared.calls), rng.CALL_DOMAIN)
        # In a worker process of PyG's loader a call counter would repeat itself, in every worker
        # and every epoch; torch's generator was seeded for this worker and epoch.
        return rng.derive(rng.draw_seed(None), 0, self.seed or 0, rng.CALL_DOMAIN)

    def sample_around(
        self,
        nodes: Mapping[Any, Tensor],
        times: Mapping[Any, Tensor],
        key: BatchKey,
        excluded: Callable[[int], ExcludedEdges] | None = None,
        bounds: Callable[[int], TimeBounds] | None = None,
    ) -> SampledGraph:
        """Sample around seeds of some node types, which may have times of their own.

        Args:
            nodes: integers [n_t] by node type.
            times: int64 [n_t] by node type; of the others, their nodes' times hold.
            key: of the draws.
            excluded: returns the edges to leave out, for so many seeds; None for none.
            bounds: returns the windows of so many seeds; None where they follow from their times.
        """
        seeds: list[Tensor | None] = [None] * len(self.graph.node_types)
        given, count = [], 0
        for t, kind in enumerate(self.graph.node_types):
            node = nodes.get(kind)
            if node is not None:
                if node.dtype != torch.int64 or not node.is_contiguous():
                    node = node.to(torch.int64).contiguous()
                seeds[t] = node
                if times or self.graph.node_times is not None:
                    given.append(self.seed_time(kind, node, times.get(kind)))
                count += node.shape[0]
        time, start = None, None
        if self.graph.node_times is not None:
            time = torch.cat([t for t in given if t is not None])
            of_seeds = NO_BOUNDS if bounds is None else bounds(count)
            time, start = of_seeds.cut(time, self.settings.time_window)
        rules = NO_RULES
        if time is not None or excluded is not None:
            rules = Rules(time, excluded and excluded(count), seed_since=start)
        return self.sample(seeds, key, rules)

    def sample(
        self, seeds: list[Tensor | None], key: BatchKey, rules: Rules = NO_RULES
    ) -> SampledGraph:
        """Sample around seeds, as a function of `key`.

        Args:
            seeds: one int64 tensor [n_t] or None for each node type.
            key: of the draws.
            rules: what the batch may take of the graph.
        """
        if torch.is_inference_mode_enabled():  # which a workspace outlives, if it is made there
            with torch.inference_mode(False):
                return self.sample(seeds, key, rules)
        source, sizes = self.source, None
        if isinstance(key, ExtendedKey):
            sizes = key.sizes
            rules = rules._replace(variates=key.variates)
            source = source if key.source is None else key.source.of(self)
        number, plan = self._plan
        # A workspace belongs to one stream, which orders what is done with it.
        streams, pool = self.backend.streams, self.shared.workspaces
        kind = (number, 0 if streams.in_order else streams.stream_id())
        work = pool.take(kind) or self.backend.workspace(self.graph.csc, plan)
        induced = self.settings.subgraph_type == SubgraphType.induced
        if sizes is not None:
            sampled = work.sample_padded(seeds, key, rules, sizes)
        elif source is None:
            sampled = work.sample(seeds, key, rules, induced)
        else:
            batch = BatchInput(seeds, key, rules)
            (sampled,) = sample_window([work], [batch], len(plan.fanouts), induced, source)
        # Not after an exception: the workspace may be in any state then.
        pool.give_back(kind, work)
        if sampled is None:
            self._refuse(seeds)
        return sampled

    def _refuse(self, seeds: list[Tensor | None]) -> NoReturn:
        """Raise the error of a batch in which a seed is not a node."""
        for seed, num_nodes in zip(seeds, self.graph.csc.num_nodes.tolist(), strict=True):
            if seed is not None:
                check_ids(seed, num_nodes, "seeds")
        raise AssertionError("a seed is not a node, and each of them is one")

    @property
    def plan(self) -> SamplingPlan:
        """What does not change from batch to batch."""
        return self._plan.plan

    @functools.cached_property
    def _plan(self) -> NumberedPlan:
        given, fanouts = self.settings, self.fanouts()
        disjoint = self.disjoint
        key = (
            fanouts, given.replace, disjoint, given.temporal_strategy, given.sampling,
            given.layer_dependency,
        )  # fmt: skip
        known = self.shared.plans.get(key)
        if known is None:
            self.check_law()
            check_fanouts(given.num_neighbors, fanouts, given.replace)  # both can be set
            table = fanout_table(fanouts, np.diff(self.graph.csc.edge_base), given.replace)
            recent = given.temporal_strategy == "last"
            plan = SamplingPlan(
                table, given.replace, disjoint, recent, self.graph.id_dtype,
                excluding=given.exclude_seed_edges is not None, labor=given.sampling == "labor",
                layer_dependency=given.layer_dependency, adaptive=given.sampling == "adaptive",
            )  # fmt: skip
            # Two threads may number a plan at the same time; the one that is kept counts for both.
            numbered = NumberedPlan(next(self.shared.plan_numbers), plan)
            known = self.shared.plans.setdefault(key, numbered)
        return known

    def check_law(self) -> None:
        """Raise a ValueError if a law is asked for beside what it cannot honour."""
        given, csc = self.settings, self.graph.csc
        check_law(
            given.sampling,
            {
                "replace=True": given.replace,
                "time_attr": self.graph.node_times is not None,
                "disjoint=True": given.disjoint,
                "weight_attr": csc.weights is not None,
                "negative fan-outs": any(k < 0 for hop in self.fanouts() for k in hop),
            },
        )

    def fanouts(self) -> Fanouts:
        """Return the fan-outs by edge type and hop."""
        return fanouts_of(self.settings.num_neighbors, self.graph.edge_types, self.is_hetero)

    def fingerprint_parts(self) -> tuple[dict[str, Any], list[Any]]:
        """Return the arguments that decide what is sampled, by name, and the graph's arrays."""
        given = self.settings
        arguments = {
            **given._asdict(),
            "num_neighbors": str(self.fanouts()),
            "disjoint": self.disjoint,
            "subgraph_type": given.subgraph_type.value,
            "num_nodes": str(self.num_nodes),
            "num_edges": str(self.ends.edge),
            "id_dtype": str(self.graph.id_dtype),
            "exclude_seed_edges": str(given.exclude_seed_edges),
        }
        return arguments, [array for _, array in self.graph.csc.arrays()]
