"""A set of the nodes of one batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...kernels import emit

Ints = npt.NDArray[Any]


class NodeSet:
    """A bit for each node of all types, which is 32 times less than the table of local ids has.

    Args:
        num_nodes: of all types. The memory, an eighth of that in bytes, is taken at the first use.
    """

    def __init__(self, num_nodes: int) -> None:
        self._num_nodes = num_nodes
        self.words = np.zeros(0, np.uint64)

    def add(self, node: Ints, start: Ints, count: Ints, base: Ints) -> None:
        """Add the nodes that each type lists at node[start : start + count].

        Args:
            node: ids within their type.
            start: [T], where each type's list begins.
            count: [T], how long it is.
            base: [T + 1], the first bit of each type.
        """
        if len(self.words) == 0:
            self.words = np.zeros(-(-self._num_nodes // 64), np.uint64)
        self._change(node, start, count, base, True)

    def remove(self, node: Ints, start: Ints, count: Ints, base: Ints) -> None:
        """Empty the set, which these nodes were added to."""
        self._change(node, start, count, base, False)

    def _change(self, node: Ints, start: Ints, count: Ints, base: Ints, add: bool) -> None:
        for t, (first, size) in enumerate(zip(start.tolist(), count.tolist(), strict=True)):
            emit.change_set(node, first, first + size, int(base[t]), self.words, add)
