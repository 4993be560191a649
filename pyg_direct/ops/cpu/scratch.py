"""The scratch arrays of one batch, and how they grow."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import numpy.typing as npt

from ...core.types import Csc, SamplingPlan
from ...kernels import relabel
from ..backend import ID_LIMIT, batch_too_large
from ..buffers import grown

Ints = npt.NDArray[Any]

STAMP_LIMIT = ID_LIMIT  # half of the stamps, so that a batch that begins below it never wraps


class Scratch:
    """Memory that a workspace uses again for each of its batches."""

    def __init__(self, csc: Csc, plan: SamplingPlan) -> None:
        depth, types, relations = len(plan.fanouts), csc.num_types, csc.num_relations
        self._csc, self._plan = csc, plan
        id_dtype, position_dtype = csc.indices.dtype, csc.indptr.dtype

        self._ends = np.zeros((depth + 2) * types + depth * (relations + 1), np.int64)
        of_nodes, of_edges = np.split(self._ends, [(depth + 2) * types])
        self._node_ptr = of_nodes.reshape(depth + 2, types)
        self._edge_ptr = of_edges.reshape(depth, relations + 1)
        self._hop_nodes = np.zeros((types, depth + 1), np.int64)  # new ones
        self._hop_edges = np.zeros((relations, depth), np.int64)
        self._node_start = np.zeros(types, np.int64)  # each type's region of `_node`
        self._starts = [0] * types  # the same
        self._node_room = np.zeros(types, np.int64)
        self._rooms = [0] * types  # the same
        self._most_nodes = 0  # of one type, at any time so far: no local id is above it
        self._node_bound = np.zeros(types, np.int64)  # what the next hop may need of it
        self._node = np.empty(0, id_dtype)
        self._seed_of = np.empty(0, np.int32)

        self._item_base = np.zeros(relations + 1, np.int64)
        self._items = np.empty((3, 0), np.int64)  # start, degree and first edge of each
        self._item_low = np.empty(0, np.float64)

        self._row = np.empty(0, id_dtype)
        self._col = np.empty(0, np.int32)
        self._position = np.empty(0, position_dtype)

        # 0 is below every stamp, so fresh tables are empty tables.
        self._table: Ints = np.zeros(0, np.uint64)
        if not plan.disjoint:
            self._table = np.zeros(int(csc.node_base[-1]), np.uint32)
        self._stamp = 1

    def _begin(self, sizes: list[int]) -> None:
        """Forget the last batch, and have room for so many seeds of each type."""
        # Zeros also after a batch that was interrupted by an error.
        self._ends.fill(0)
        for size, room in zip(sizes, self._rooms, strict=True):
            if size >= room:
                self._node_bound[:] = sizes
                self._make_room()
                break
        self._stamp += self._most_nodes
        if self._stamp >= STAMP_LIMIT:
            self._table[:] = 0
            self._stamp = 1

    def _make_item_room(self, items: int) -> None:
        """Have room for more than `items` items; what is known of them is lost."""
        if items >= self._items.shape[1]:
            room = items + items // 2 + 1
            self._items = np.empty((3, room), np.int64)
            self._item_low = np.empty(room if self._csc.weights is not None else 0, np.float64)

    def _make_edge_room(self, hop: int) -> None:
        """Have room for the edges of a hop that was planned, keeping those before it."""
        kept, edges = int(self._edge_ptr[hop, 0]), int(self._edge_ptr[hop, -1])
        if edges > len(self._row):
            self._grow_edges(edges + edges // 2, kept)

    def _grow_edges(self, room: int, known: int) -> None:
        """Have room for `room` edges, keeping the first `known` ones."""
        self._row = grown(self._row, room, known)
        self._col = grown(self._col, room, known)
        self._position = grown(self._position, room, known)

    def _make_room(self) -> None:
        """Have room for more than `_node_bound` nodes of each type, keeping what is known.

        More, because `relabel_dense` writes past the end of a list before it knows whether a node
        is new.
        """
        bound = self._node_bound
        # Of few numbers: a function of NumPy would take longer than all of them in Python.
        if any(map(operator.ge, bound.tolist(), self._rooms)):
            if bound.max() >= STAMP_LIMIT:
                raise batch_too_large(int(bound.max()), int(self._edge_ptr.max(initial=0)))
            room = np.maximum(bound + bound // 2 + 1, self._node_room)
            start = np.zeros_like(room)
            np.cumsum(room[:-1], out=start[1:])
            node = np.empty(int(room.sum()), self._node.dtype)
            seed_of = np.empty(len(node) if self._plan.disjoint else 0, np.int32)
            for t, known in enumerate(self._node_ptr.max(0)):
                old, new = self._node_start[t], start[t]
                node[new : new + known] = self._node[old : old + known]
                if self._plan.disjoint:
                    seed_of[new : new + known] = self._seed_of[old : old + known]
            self._node, self._seed_of = node, seed_of
            self._node_start, self._node_room = start, room
            self._starts, self._rooms = start.tolist(), room.tolist()
            self._most_nodes = int(room.max(initial=0))
        if self._plan.disjoint:
            slots = 2 * int(bound.sum())
            if 2 * slots > len(self._table):
                self._rehash(slots)

    def _rehash(self, at_least: int) -> None:
        """Move the known nodes of this batch to a hash table of `at_least` slots."""
        slots = 1 << max(10, at_least.bit_length())
        self._table = np.zeros(2 * slots, np.uint64)
        total = int(self._csc.node_base[-1])
        for t, known in enumerate(self._node_ptr.max(0).tolist()):
            first = int(self._node_start[t])
            relabel.enter_disjoint(
                self._node, self._seed_of, first, first + known, 0, int(self._csc.node_base[t]),
                total, self._table, np.uint32(self._stamp),
            )  # fmt: skip
