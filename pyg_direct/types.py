"""What the stages hand to each other, and nothing else.

Inside, a graph is always heterogeneous: a list of node types and a list of relations (edge types).
A homogeneous graph has one node type and one relation, both named ``None``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Array = Any
"""An array of a backend: a NumPy array (CPU) or a CUDA tensor. Opaque to everything above `ops`."""

IntTable = npt.NDArray[np.int64]
"""A small table of integers that lives on the host, whatever the backend."""


EDGE_TIME, NO_TIME = -1, -2
"""Entries of `Csc.time_base` that are no index; the kernels know them by value."""


class BatchKey(NamedTuple):
    """The 64-bit Philox key of one batch, as two 32-bit words."""

    low: int
    high: int


class Ends(NamedTuple):
    """The numbers of nodes and of edges, by type; a homogeneous graph has the one type None."""

    node: Mapping[Any, int]
    edge: Mapping[Any, int]


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
    time: Array | None = None  # int64, of all nodes [sum_t N_t] or of all edges by position [E]
    time_base: IntTable = field(default_factory=lambda: np.empty(0, np.int64))
    """[R]: first entry of the source type in `time`; `EDGE_TIME` if `time` is by position, and
    `NO_TIME` if the relation is not bound by time. Lists are sorted by time."""
    weight: Array | None = None  # float64 [E] by position, each >= 0 and finite
    cumulative: Array | None = None  # float64 [E], running sums of `weight` within each list
    alias: Array | None = None  # int64 [E] by position, of lists with weights and without times
    positive: bool = False  # whether all weights of weighted relations are known to be above 0
    weighted: npt.NDArray[np.bool_] = field(default_factory=lambda: np.empty(0, np.bool_))
    """[R]: whether the relation has weights."""
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
        if self.time is None:
            object.__setattr__(self, "time_base", np.full(relations, NO_TIME, np.int64))
        if self.weight is None:
            object.__setattr__(self, "weighted", np.zeros(relations, np.bool_))
        if len(self.time_base) != relations or len(self.weighted) != relations:
            raise ValueError(
                f"A CSC of {relations} relations needs as many entries in time_base (got "
                f"{len(self.time_base)}) and weighted (got {len(self.weighted)})."
            )

    @property
    def num_types(self) -> int:
        """Number of node types, T."""
        return len(self.num_nodes)

    @property
    def num_relations(self) -> int:
        """Number of relations (edge types), R."""
        return len(self.src_type)


@dataclass(frozen=True)
class SampledGraph:
    """One sampled subgraph, per node type and per relation, as tensors a user may keep."""

    node: Sequence[Tensor]  # T x int64 [n_t], global ids, seeds first
    seed_of: Sequence[Tensor] | None  # T x int64 [n_t], the seed's position; only when disjoint
    edge_index: Sequence[Tensor]  # R x [2, e_r], local ids, rows = (source, destination)
    edge: Sequence[Tensor]  # R x int64 [e_r], columns of the user's `edge_index`
    num_sampled_nodes: Sequence[Sequence[int]]  # T x [hops + 1]
    num_sampled_edges: Sequence[Sequence[int]] | None  # R x [hops]; None for induced subgraphs


class SamplingPlan(NamedTuple):
    """How to sample: everything about the law, nothing about one batch."""

    fanouts: IntTable  # [hops, R]; a negative fan-out means all neighbours
    replace: bool
    disjoint: bool
    recent: bool  # with times: the latest neighbours, not any of those in the past
    id_dtype: torch.dtype  # dtype of the `edge_index` handed out: int64 or int32
