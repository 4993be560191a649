"""Data structures that the stages exchange.

Inside, a graph is always heterogeneous: a list of node types and a list of relations (edge types).
A homogeneous graph has one node type and one relation, both named ``None``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .mapped_files import MappedFile, checksum_of_arrays

Array = Any
"""An array of a backend: a NumPy array (CPU) or a CUDA tensor. Opaque to everything above `ops`."""

IntTable = npt.NDArray[np.int64]
"""A small table of integers that lives on the host, whatever the backend."""


EDGE_TIME, NO_TIME = -1, -2
"""Sentinels in `TimeTable.base`; kernels/temporal.py and cuda/times.cuh have the same values."""


T = TypeVar("T", bound=tuple[Any, ...])


def maker(record: type[T]) -> Callable[[Iterable[Any]], T]:
    """Return what makes a NamedTuple of the values of all its fields.

    Its own initialiser is a function of Python, of which a small batch calls some ten.
    """
    return partial(tuple.__new__, record)


class BatchKey(NamedTuple):
    """The 64-bit Philox key of one batch, as two 32-bit words."""

    low: int
    high: int


class Variates(NamedTuple):
    """What the variates of LABOR follow from: key `next` for a share of the nodes, else `first`."""

    first: BatchKey
    next: BatchKey
    share: int  # of 2^32, in [0, 2^32)


class ExtendedKey(BatchKey):
    """The key of a batch whose draws follow more than its two words."""

    variates: Variates | None = None  # of LABOR, shared with the batches around it
    step: int = -1  # in the epoch, of a batch that all ranks make together; -1 of others
    source: Any = None  # of the hops of this batch alone; see `sampling/hops.py`
    sizes: Sizes | None = None  # that the batch is padded to, by `Workspace.sample_padded`

    @classmethod
    def of(cls, key: BatchKey, **more: Any) -> ExtendedKey:
        """Return a key with more attributes."""
        made = cls(*key)
        vars(made).update(getattr(key, "__dict__", {}), **more)
        return made


class Ends(NamedTuple):
    """The numbers of nodes and of edges, by type; a homogeneous graph has the one type None."""

    node: Mapping[Any, int]
    edge: Mapping[Any, int]


ONCE = np.empty(0)


class SeedVisits(NamedTuple):
    """How often batches have each node of a type among their seeds."""

    share: npt.NDArray[np.float64]  # [N]: probability that a batch has it
    times: npt.NDArray[np.float64] = ONCE
    """[N]: how often then, each time with draws of its own; [0] where once."""


class Table(NamedTuple):
    """A table that a backend gathers rows of, as `Memory.readable` returned its tensors."""

    rows: Tensor  # [N, ...], contiguous
    dtype: torch.dtype | None = None
    """float32, float16 or bfloat16, which rows of int8, float16 or bfloat16 are decoded to; None:
    they are copied as they are."""
    scale: Tensor | None = None  # float32 [F] or [N, 1], factors of rows of int8


class Traffic:
    """What the rows of a batch asked of the link to host memory."""

    requests = 0.0  # of a line of 128 bytes each, as if nothing was cached
    num_bytes = 0.0  # that were sent, in sectors of 32

    def __init__(self, found: dict[tuple[float, float], Tensor] | None = None) -> None:
        """Begin to count.

        Args:
            found: by requests and bytes of a row, int64 [1] on the device: the rows that a cache
                in device memory had, which the kernels count. Several batches may share it.
        """
        self.found = {} if found is None else found


class TimeTable(NamedTuple):
    """The times of a graph; every neighbour list is sorted by them."""

    time: Array  # int64, of all nodes [sum_t N_t] or of all edges by position [E]
    base: IntTable
    """[R]: first entry of the source type in `time`; `EDGE_TIME` if `time` is by position, and
    `NO_TIME` if the relation is not bound by time."""


class WeightTable(NamedTuple):
    """The edge weights of a graph, and what weighted draws read in their place."""

    weight: Array  # float64 [E] by position, each >= 0 and finite
    cumulative: Array  # float64 [E], running sums of `weight` within each neighbour list
    alias: Array | None
    """int64 [E] by position, of the weighted relations that are not bound by time; None if there
    are none such."""
    relations: npt.NDArray[np.bool_]  # [R]: which relations have weights
    positive: bool  # whether all weights of these relations are known to be above 0


@dataclass(frozen=True)
class Csc:
    """All relations of a graph in one compressed sparse column (CSC) structure.

    The in-neighbours of node ``v`` under relation ``r`` are
    ``indices[indptr[b + v] : indptr[b + v + 1]]`` with ``b = indptr_base[r]``; so positions in
    `indices` are global over all relations, and relation ``r`` owns the positions from
    ``edge_base[r]`` to ``edge_base[r + 1]``.

    Example: two node types of 2 and 3 nodes, relation 0 from type 1 to type 0 with the edges
    2->0, 0->1, 1->1, and relation 1 from type 0 to type 1 with the edge 1->2::

        indptr      = [0, 1, 3,   3, 3, 3, 4]
        indices     = [2, 0, 1,   1]
        indptr_base = [0, 3]           edge_base = [0, 3, 4]
        src_type    = [1, 0]           dst_type  = [0, 1]        num_nodes = [2, 3]
    """

    indptr: Array  # int32 or int64 [sum_r (num_nodes[dst_type[r]] + 1)], non-decreasing
    indices: Array  # int32 or int64 [E], each in [0, num_nodes[src_type[r]])
    perm: Array | None  # int32 or int64 [E]: position -> column of the relation's `edge_index`
    src_type: IntTable  # [R], each in [0, T)
    dst_type: IntTable  # [R], each in [0, T)
    indptr_base: IntTable  # [R]
    edge_base: IntTable  # [R + 1]
    num_nodes: IntTable  # [T]
    times: TimeTable | None = None
    weights: WeightTable | None = None
    verified: bool = True  # False: `indptr` and `indices` may hold anything, as in a damaged file
    file_bytes: int = 0  # of the files of the whole graph that the arrays are mapped to; 0: no such
    files: tuple[MappedFile, ...] = ()  # these files, as they were when they were mapped
    saved: tuple[int, ...] = ()  # checksums of these files that tell the edges from others
    node_base: IntTable = field(init=False)  # [T + 1], prefix sum of `num_nodes`

    def __post_init__(self) -> None:
        if (
            len(self.src_type) != len(self.dst_type)
            or len(self.edge_base) != len(self.src_type) + 1
        ):
            raise ValueError(
                f"The relations of a CSC must agree in number, got {len(self.src_type)} source "
                f"types, {len(self.dst_type)} destination types, {len(self.edge_base)} edge bases."
            )
        base = np.zeros(len(self.num_nodes) + 1, np.int64)
        np.cumsum(self.num_nodes, out=base[1:])
        object.__setattr__(self, "node_base", base)
        relations = len(self.src_type)
        if len(self.time_base) != relations or len(self.weighted) != relations:
            raise ValueError(
                f"A CSC of {relations} relations needs as many entries in times.base (got "
                f"{len(self.time_base)}) and weights.relations (got {len(self.weighted)})."
            )
        whole = self.weighted & (self.time_base == NO_TIME)
        if whole.any() and self.weights is not None and self.weights.alias is None:
            raise ValueError(
                f"There is no alias table for relation {np.flatnonzero(whole)[0]}, which has "
                f"weights and is not bound by time."
            )

    @property
    def time_base(self) -> IntTable:
        """`TimeTable.base` [R], also of a graph without times: `NO_TIME` then."""
        no_times = np.full(self.num_relations, NO_TIME, np.int64)
        return no_times if self.times is None else self.times.base

    @property
    def weighted(self) -> npt.NDArray[np.bool_]:
        """`WeightTable.relations` [R], also of a graph without weights: False then."""
        no_weights = np.zeros(self.num_relations, np.bool_)
        return no_weights if self.weights is None else self.weights.relations

    @cached_property
    def checksum(self) -> tuple[str, Any]:
        """How the edges are known, and what tells them from others; arrays in memory are read."""
        if self.saved:
            return "saved", self.saved
        return "held", checksum_of_arrays(array for _, array in self.arrays())

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays that the graph has, with names, the most often read first."""
        tables = {
            "indptr": self.indptr,
            "indices": self.indices,
            "time": self.times and self.times.time,
            "alias": self.weights and self.weights.alias,
            "weight": self.weights and self.weights.weight,
            "cumulative": self.weights and self.weights.cumulative,
            "perm": self.perm,
        }
        yield from ((name, array) for name, array in tables.items() if array is not None)

    def with_arrays(self, arrays: Mapping[str, Array]) -> Csc:
        """Return the graph with other arrays, named as by `arrays`, in place of its own."""
        found: dict[str, Any] = {"perm": None, "alias": None, **arrays}
        times, weights = self.times, self.weights
        if times is not None:
            times = times._replace(time=found["time"])
        if weights is not None:
            named = {name: found[name] for name in ("weight", "cumulative", "alias")}
            weights = weights._replace(**named)
        topology = {name: found[name] for name in ("indptr", "indices", "perm")}
        return replace(self, **topology, times=times, weights=weights)

    @property
    def num_types(self) -> int:
        """Number of node types, T."""
        return len(self.num_nodes)

    @property
    def num_relations(self) -> int:
        """Number of relations (edge types), R."""
        return len(self.src_type)


class Sizes(NamedTuple):
    """How many nodes and edges a subgraph has with padding."""

    nodes: list[int]  # [T]
    edges: list[int]  # [R]


class Padded(NamedTuple):
    """What is known of a subgraph with padding whose counts are still on their way."""

    node_id: Sequence[Tensor]  # T x int64 [size], as `SampledGraph.node`, and -1 in padding
    edge_id: Sequence[Tensor]  # R x int64 [size], the same of `SampledGraph.edge`
    real_nodes: Sequence[Tensor]  # T x int64 [], how many are not padding
    real_edges: Sequence[Tensor]  # R x int64 []
    read: Callable[[], tuple[list[list[int]], list[list[int]]]]
    """Returns `num_sampled_nodes` and `num_sampled_edges` without padding, having waited for them.
    What is more than there was room for is missing."""


class SampledGraph(NamedTuple):
    """One sampled subgraph, per node type and per relation, as tensors a user may keep."""

    node: Sequence[Tensor]  # T x int64 [n_t], global ids, seeds first
    seed_of: Sequence[Tensor] | None  # T x int64 [n_t], the seed's position; only when disjoint
    edge_index: Sequence[Tensor]  # R x [2, e_r], local ids, rows = (source, destination)
    edge: Sequence[Tensor]  # R x int64 [e_r], columns of the user's `edge_index`
    num_sampled_nodes: Sequence[list[int]]  # T x [hops + 1]
    num_sampled_edges: Sequence[list[int]] | None  # R x [hops]; None for induced subgraphs
    padded: Padded | None = None  # of `Workspace.sample_padded`, where the counts are [] until then


class ExcludedEdges(NamedTuple):
    """Edges that one batch does without, by position in the CSC.

    Example: two subgraphs, of which the first does without position 7 and the second without 3 and
    7: position = [7, 3, 7], bounds = [[0, 1], [1, 3]].
    """

    position: Tensor  # int64 [n], ascending and distinct within each group
    bounds: Tensor
    """int64 [2, groups]: where each group begins and ends in `position`. A group is a subgraph;
    where batches are not disjoint, there is one group for all."""


class Rules(NamedTuple):
    """What one batch may take of the graph, beside its plan."""

    seed_time: Tensor | None = None
    """int64 [seeds], all types one after another; needed if and only if the CSC has times. No
    neighbour is later than the seed of its subgraph."""
    excluded: ExcludedEdges | None = None
    """Edges that are neither drawn nor induced. If the batch is not disjoint, their destinations
    must be seeds: no other lists are looked at."""
    variates: Variates | None = None
    """Of LABOR; None for those that follow from the batch's key."""
    seed_since: Tensor | None = None
    """int64 [seeds], beside `seed_time`: no neighbour is earlier than this of its subgraph; None
    where neighbours may be of any age."""


NO_RULES = Rules()


class Frontier(NamedTuple):
    """Nodes whose neighbours a hop draws, by node type. Several batches or ranks may share a draw.

    Example: the hop after the seeds 7 and 4 found 9 and 2: node = [[9, 2]], local = [[2, 3]].
    """

    node: Sequence[Tensor]  # T x [f_t], ids within their type, of the dtype of the CSC's `indices`
    local: Sequence[Tensor]  # T x int32 [f_t], their local ids, which their draws depend on
    seed_of: Sequence[Tensor] | None  # T x int32 [f_t], their subgraphs; only when disjoint


class Picks(NamedTuple):
    """The edges that were drawn for a `Frontier`: the items of a hop and the picks of each.

    An item is a pair of a relation and a frontier node of its destination type; items go relation
    by relation, and in the order of the frontier. Edges go item by item.

    Example: two relations into the type of two nodes, which draw [a, b], [] and [c], [d]: counts =
    [2, 0, 1, 1] and source = [a, b, c, d].
    """

    counts: Tensor  # int32 [items], edges of each item
    source: Tensor  # [edges], ids within the relation's source type, dtype of the CSC's `indices`
    position: Tensor | None  # [edges] in the CSC of the workspace, dtype of `indptr`
    edge: Tensor | None = None
    """int64 [edges], columns of the user's `edge_index`, in place of `position` where the lists lie
    in another workspace's graph."""


class SamplingPlan(NamedTuple):
    """How to sample: all parameters that do not change from batch to batch."""

    fanouts: IntTable  # [hops, R]; a negative fan-out means all neighbours
    replace: bool
    disjoint: bool
    recent: bool  # with times: the latest neighbours, not any of those in the past
    id_dtype: torch.dtype  # dtype of the `edge_index` handed out: int64 or int32
    excluding: bool = False  # whether batches may do without some edges
    labor: bool = False  # fan-outs take the edges of smallest variates; see `kernels/labor.py`
    layer_dependency: bool = False  # of LABOR: all hops have the same variates
    adaptive: bool = False  # fan-outs, at least 0, adapt by metapath; see `ops/metapaths.py`

    @property
    def growth(self) -> float:
        """How many times more nodes than seeds the last hop may look at, at most."""
        if (self.fanouts < 0).any():
            return math.inf
        return float(np.maximum(1, self.fanouts[:-1].sum(1)).prod(dtype=np.float64))


def damaged_graph(what: str, name: str = "the graph") -> str:
    """Return the message of an error for a graph that holds what it cannot hold."""
    return (
        f"The file of {name} is damaged: {what}. Save or convert the graph again; "
        f"pyg_direct.open(path, verify=True) names the file that was changed."
    )


def unknown_node(node: int, end: int) -> str:
    """Return what is wrong with an id."""
    return f"it refers to node {node}, but ids must be in [0, {end})"
