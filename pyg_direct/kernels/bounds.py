"""Checks of graphs that nobody has read before: every id and every neighbour list in its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


@kernel
def first_bad_id(ids: Ints, first: int, last: int, end: int) -> int:
    """Return the first place in [first, last) where `ids` is not in [0, end), or -1.

    Example: ids = [1, 5, -1] and end = 5 give 1.
    """
    for i in range(first, last):
        if ids[i] < 0 or ids[i] >= end:
            return i
    return -1


@kernel
def first_decrease(indptr: Ints, first: int, last: int) -> int:
    """Return the first list in [first, last) that ends before it begins, or -1.

    Example: indptr = [0, 3, 2] gives 1.
    """
    for v in range(first, last):
        if indptr[v + 1] < indptr[v]:
            return v
    return -1


@kernel
def first_bad_list(start: Ints, degree: Ints, first: int, last: int, begin: int, end: int) -> int:
    """Return the first list in [first, last) that is not within the positions [begin, end), or -1.

    Example: start = [0, 4], degree = [2, 3] and end = 6 give 1, as list 1 ends at 7.
    """
    for item in range(first, last):
        # No sum that could overflow: positions of a damaged file may be anything.
        if start[item] < begin or degree[item] < 0 or degree[item] > end - start[item]:
            return item
    return -1


@kernel
def first_bad_weights(
    indptr: Ints, weight: Doubles, cumulative: Doubles, other: Ints, first: int, last: int
) -> int:
    """Return the first list in [first, last) whose weights or tables cannot be drawn from, or -1.

    Weights must be finite and not negative, `cumulative` their running sums, and the entries of
    `other` (see `alias`; [0] without alias tables) edges of the list.

    Example: the list of weights [1, 2] with cumulative = [1, 4] is bad.
    """
    for v in range(first, last):
        total, degree = 0.0, indptr[v + 1] - indptr[v]
        for p in range(indptr[v], indptr[v + 1]):
            total += weight[p]
            if not (0.0 <= weight[p] < np.inf) or cumulative[p] != total:
                return v
            if other.shape[0] > 0 and np.int64(other[2 * p + 1]) >= degree:
                return v
    return -1
