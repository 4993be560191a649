"""The node lists of a batch, and the table from global to local ids."""

from __future__ import annotations

import numpy as np
import torch

from ...core.types import IntTable
from . import memory as device_memory
from .arrays import Arrays, prefix_sums

DENSE_LIMIT_BYTES = 1 << 30  # a map over all nodes up to here, a hash table above
WINDOW_TOP = 0xFFFFFFFF  # the entry of an empty table: see table.cuh


class NodeLists:
    """A list for each node type, one after the other in the arrays `node` and `seed_of`.

    Args:
        num_types: T.
        arrays: of the workspace.
        disjoint: whether nodes belong to subgraphs.
        given_locals: whether the array `local` goes along, which says what their local ids are.

    Attributes:
        start: [T]: first entry of each list.
        room: [T]: entries of each list.
    """

    def __init__(
        self, num_types: int, arrays: Arrays, disjoint: bool, given_locals: bool = False
    ) -> None:
        self._arrays = arrays
        self._names = ["node"] + disjoint * ["seed_of"] + given_locals * ["local"]
        self.start: IntTable = np.zeros(num_types, np.int64)
        self.room: IntTable = np.zeros(num_types, np.int64)

    @property
    def longest(self) -> int:
        """Entries of the longest list."""
        return int(self.room.max(initial=0))

    def make_room(self, need: IntTable, known: IntTable) -> None:
        """Have room for `need` [T] nodes, keeping the `known` [T] first ones."""
        if not (need > self.room).any():
            return
        room = np.maximum(need + need // 2 + 1, self.room)
        ends = prefix_sums(room)
        pieces = list(zip(self.start.tolist(), ends.tolist(), known.tolist(), strict=False))
        for name in self._names:
            old = self._arrays[name]
            longer = device_memory.empty(int(ends[-1]), old.dtype, old.device)
            for before, after, kept in pieces:
                device_memory.copy(longer[after : after + kept], old[before : before + kept])
            self._arrays.replace(name, longer)
        self.start, self.room = ends[:-1], room


class NodeTable:
    """The table, which keeps its memory from batch to batch, and the window of the batch in it.

    Args:
        num_nodes: [T]: nodes of the graph.
        arrays: of the workspace.
        disjoint: whether a node counts once for each subgraph.

    Attributes:
        hashed: a hash table, or one with an entry for every node.
        slots: [T]: entries of each type.
        base, width, locals: the window: see table.cuh.
    """

    def __init__(self, num_nodes: IntTable, arrays: Arrays, disjoint: bool) -> None:
        self._arrays = arrays
        self.hashed = self.is_hashed(num_nodes, disjoint)
        self.slots: IntTable = np.zeros_like(num_nodes) if self.hashed else num_nodes
        self.base, self.width, self.locals = WINDOW_TOP, 0, 0
        self._renew(self.slots)

    @staticmethod
    def is_hashed(num_nodes: IntTable, disjoint: bool) -> bool:
        """Whether a graph of `num_nodes` [T] nodes gets a hash table."""
        return disjoint or 4 * int(num_nodes.sum()) > DENSE_LIMIT_BYTES

    def make_room(self, need: IntTable) -> bool:
        """Have room for `need` [T] nodes, and return whether the table is a new one."""
        if not self.hashed or not (2 * need > self.slots).any():
            return False
        self._renew(np.maximum(self.slots, [power_of_two(3 * int(n)) for n in need]))
        return True

    def holds(self, locals: int, edges: int) -> bool:
        """Whether the window has room for so many local ids, and so many edges of a hop."""
        return locals <= self.locals and edges <= self.width - self.locals

    def next_window(self, locals: int, edges: int) -> None:
        """Forget what the table holds, and take a window for so many local ids and edges."""
        self.locals, self.width = locals, locals + edges
        if self.width > self.base:
            self._arrays["table"].fill_(-1)
            self.base = WINDOW_TOP
        self.base -= self.width

    def _renew(self, slots: IntTable) -> None:
        """Begin an empty table of `slots` [T] entries for each type."""
        self.slots, self.base = slots, WINDOW_TOP
        self._arrays.replace(
            "table",
            torch.full((int(slots.sum()),), -1, dtype=torch.int32, device=self._arrays.device),
        )


def power_of_two(at_least: int) -> int:
    """Return the smallest power of two that is not below `at_least`."""
    return 1 << max(0, at_least - 1).bit_length()
