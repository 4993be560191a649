"""Checks of graphs that nobody has read before: every id and every neighbour list in its bounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

# A slot of an alias table keeps its share as a float32, and rounding of a list of n edges adds up
# to no more than n^2 units of a double.
SHARE_ERROR, LIST_ERROR = 2.0**-20, 2.0**-50


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
    indptr: Ints, weight: Doubles, cumulative: Doubles, first: int, last: int
) -> int:
    """Return the first list in [first, last) whose weights cannot be drawn from, or -1.

    Weights must be finite and not negative, and `cumulative` their running sums.

    Example: the list of weights [1, 2] with cumulative = [1, 4] is bad.
    """
    for v in range(first, last):
        total = 0.0
        for p in range(indptr[v], indptr[v + 1]):
            total += weight[p]
            if not (0.0 <= weight[p] < np.inf) or cumulative[p] != total:
                return v
    return -1


@kernel
def first_bad_alias(
    indptr: Ints, weight: Doubles, cumulative: Doubles, keep: Singles, other: Ints,
    first: int, last: int,
) -> int:  # fmt: skip
    """Return the first list in [first, last) whose alias table is not one of its weights, or -1.

    Of a list of n edges, each slot gives `keep` / n to its own edge and the rest of 1 / n to that
    of `other` (see `alias`). What an edge gets must be its share of the weights, and nothing if it
    has no weight. The weights were checked before.

    Example: for weights [1, 3], keep = [0.5, 1] and other = [1, any] are right, as edge 1 gets 1.5
    slots of 2; keep = [0, 0] and other = [0, 0] are bad.
    """
    most = 0
    for v in range(first, last):
        most = max(most, indptr[v + 1] - indptr[v])
    left = np.empty(most)
    for v in range(first, last):
        start, degree = indptr[v], indptr[v + 1] - indptr[v]
        if degree == 0 or cumulative[start + degree - 1] == 0.0:
            continue
        for i in range(degree):
            left[i] = weight[start + i] / cumulative[start + degree - 1] * degree
        for i in range(degree):
            at = 2 * (start + i)
            kept = keep[at] + np.float64(keep[at] < 0.0)
            if not 0.0 <= kept <= 1.0 or (kept > 0.0 and weight[start + i] == 0.0):
                return v
            left[i] -= kept
            if kept < 1.0:
                instead = np.int64(other[at + 1])
                if instead >= degree or weight[start + instead] == 0.0:
                    return v
                left[instead] -= 1.0 - kept
        slack = LIST_ERROR * degree * degree
        for i in range(degree):
            share = weight[start + i] / cumulative[start + degree - 1] * degree
            if not abs(left[i]) <= SHARE_ERROR * share + slack:
                return v
    return -1


@kernel
def first_parallel(indptr: Ints, indices: Ints, seen: Ints) -> int:
    """Return the first edge whose source is in its list before it; -1 if there is none.

    Args:
        indptr: [lists + 1], of one relation.
        indices: sources by position.
        seen: [sources], of -1: scratch memory.

    Example: the lists [4, 9] and [9, 4, 9] give position 4.
    """
    for v in range(indptr.shape[0] - 1):
        for p in range(indptr[v], indptr[v + 1]):
            if seen[indices[p]] == v:
                return p
            seen[indices[p]] = v
    return -1
