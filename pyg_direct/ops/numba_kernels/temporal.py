"""Which part of a neighbour list lies in the past of a seed."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]

EDGE_TIME, NO_TIME = -1, -2  # in place of a first index into the times of nodes


@kernel
def time_at(position: int, indices: Ints, time: Ints, time_base: int) -> int:
    """Return the time of one neighbour: of its edge (`time_base` < 0), else of its node."""
    return time[position] if time_base < 0 else time[time_base + indices[position]]  # type: ignore[no-any-return]


@kernel
def count_until(
    start: int, degree: int, indices: Ints, time: Ints, time_base: int, latest: int
) -> int:
    """Return how many neighbours of a list, sorted by time, are no later than `latest`.

    Example: times 3, 5, 5, 9 and latest 5 give 3.
    """
    first, last = start, start + degree
    while first < last:
        middle = (first + last) // 2
        if time_at(middle, indices, time, time_base) <= latest:
            first = middle + 1
        else:
            last = middle
    return first - start


@kernel
def first_unsorted(
    indptr: Ints, first: int, last: int, indices: Ints, time: Ints, time_base: int
) -> int:
    """Return a position whose neighbour is earlier than the one before it in its list, or -1."""
    for v in range(first, last):
        for p in range(indptr[v] + 1, indptr[v + 1]):
            if time_at(p, indices, time, time_base) < time_at(p - 1, indices, time, time_base):
                return p
    return -1
