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
