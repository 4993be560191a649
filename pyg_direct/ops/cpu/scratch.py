"""The scratch arrays of one batch, the set of its nodes, and the tensors that are handed out."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import split
from ...core.types import Csc, SamplingPlan
from ...kernels import emit, relabel
from ..backend import ID_LIMIT, batch_too_large
from ..buffers import NUMPY_DTYPES, Resources, grown

Ints = npt.NDArray[Any]

STAMP_LIMIT = ID_LIMIT  # half of the stamps, so that a batch that begins below it never wraps


Outputs = tuple[list[Tensor], list[Tensor], list[Tensor]]
"""Of each relation its edges [2, e_r] and their ids, int64 [e_r]; of each type its nodes [n_t]."""

MIN_EDGES_PER_THREAD = 1 << 15
NO_IDS = {dtype: np.empty(0, NUMPY_DTYPES[dtype]) for dtype in (torch.int32, torch.int64)}


class Scratch:
    """Memory that a workspace uses again for each of its batches."""

    def __init__(self, csc: Csc, plan: SamplingPlan, resources: Resources) -> None:
        self._resources = resources
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

        self._arrays: tuple[Ints, ...] | None = None  # for a kernel; None once one has grown
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
            self._items, self._arrays = np.empty((3, room), np.int64), None
            self._item_low = np.empty(room if self._csc.weights is not None else 0, np.float64)

    def _make_edge_room(self, hop: int) -> None:
        """Have room for the edges of a hop that was planned, keeping those before it."""
        kept, edges = int(self._edge_ptr[hop, 0]), int(self._edge_ptr[hop, -1])
        if edges > len(self._row):
            self._grow_edges(edges + edges // 2, kept)

    def _grow_edges(self, room: int, known: int) -> None:
        """Have room for `room` edges, keeping the first `known` ones."""
        self._arrays = None
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
            self._node, self._seed_of, self._arrays = node, seed_of, None
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

    def _copy_out(
        self,
        edge_ptr: Ints,
        edge_base: Ints,
        sizes: Iterable[int],
        lists: Iterable[tuple[int, int]] = (),
    ) -> Outputs:
        """Return the edges of each relation, and the nodes of each type, in recycled memory.

        Args:
            edge_ptr: [hops, R + 1], where each relation begins in `_row` and the others.
            edge_base: [R], subtracted from positions that are ids.
            sizes: how many edges each relation has.
            lists: of each type, where its list in `_node` begins and how long it is.
        """
        id_dtype, sizes, lists = self._plan.id_dtype, [*sizes], [*lists]
        wanted: list[tuple[tuple[int, ...], torch.dtype]] = []
        for size in sizes:
            wanted += ((2, size), id_dtype), ((size,), torch.int64)
        for _, size in lists:
            wanted.append(((size,), torch.int64))
        made = self._resources.pool.empties(wanted)
        out: list[int] = []
        of_edges, nodes = made[: 2 * len(sizes)], made[2 * len(sizes) :]
        outputs: Outputs = (of_edges[::2], of_edges[1::2], nodes)
        for size, edge_index, edge in zip(sizes, *outputs[:2], strict=True):
            at = edge_index.data_ptr()
            out += at, at + size * id_dtype.itemsize, edge.data_ptr()
        for (start, size), node in zip(lists, outputs[2], strict=True):
            out += start, size, node.data_ptr()
        # Where there are no edges, the ids of those that were entered are given.
        perm = self._csc.perm if len(self._csc.indices) > 0 else None
        arguments = (edge_ptr, self._row, self._col, self._position, perm, edge_base)
        targets, total = (NO_IDS[id_dtype], self._node, np.array(out, np.int64)), sum(sizes)
        threads = min(self._resources.threads, total // MIN_EDGES_PER_THREAD)
        if threads <= 1:
            emit.emit_edges(*arguments, 0, total, *targets)
        else:
            split(total, threads, lambda a, b: emit.emit_edges(*arguments, a, b, *targets))
        return outputs


class NodeSet:
    """A bit for each node of all types, which is 32 times less than the table of local ids has.

    Args:
        base: [T + 1], the first bit of each type.

    Attributes:
        words: uint64, 64 nodes in each. The memory is taken at the first use; until then [0].
    """

    def __init__(self, base: Ints) -> None:
        self._base: list[int] = base.tolist()
        self.words = np.zeros(0, np.uint64)

    def add(self, node: Ints, start: Ints, count: Ints) -> None:
        """Add the nodes that each type lists at node[start : start + count].

        Args:
            node: ids within their type.
            start: [T], where each type's list begins.
            count: [T], how long it is.
        """
        if len(self.words) == 0:
            self.words = np.zeros(-(-self._base[-1] // 64), np.uint64)
        self._change(node, start, count, True)

    def remove(self, node: Ints, start: Ints, count: Ints) -> None:
        """Empty the set of all nodes that were added to it."""
        if len(self.words) > 0:
            self._change(node, start, count, False)

    def _change(self, node: Ints, start: Ints, count: Ints, add: bool) -> None:
        lists = zip(start.tolist(), count.tolist(), self._base, strict=False)  # _base has T + 1
        for first, size, base in lists:
            emit.change_set(node, first, first + size, base, self.words, add)


Lists = list[tuple[int, int]]
"""For each node type: where its list begins in an array of all of them, and how long it is."""


def copy_lists(resources: Resources, source: Ints, lists: Lists) -> list[Tensor]:
    """Return int64 copies of some lists in an array."""
    copies = []
    for start, size in lists:
        out = resources.pool.empty((size,), torch.int64)
        out.numpy()[:] = source[start : start + size]
        copies.append(out)
    return copies
