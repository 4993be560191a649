"""COO to CSC: a stable counting sort by destination, in chunks that threads can share."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import kernel, prefetch

Ints = npt.NDArray[Any]

PREFETCH_DISTANCE = 32  # in edges

OK, UNSORTED, BAD_SOURCE, BAD_DESTINATION = 0, 1, 2, 3


@kernel
def copy_sorted(row: Ints, col: Ints, num_src: int, num_dst: int, indices: Ints) -> tuple[int, int]:
    """Copy `row` to `indices` [E] and return (OK, -1) if `col` is non-decreasing, all ids in range.

    Otherwise stop, and return (what is wrong, the edge where it shows).

    Example: sources 5, 6 and destinations 0, 2 give indices = [5, 6]; destinations 2, 0 give
    (UNSORTED, 1).
    """
    previous = 0
    for e in range(row.shape[0]):
        if row[e] < 0 or row[e] >= num_src:
            return BAD_SOURCE, e
        if col[e] < 0 or col[e] >= num_dst:
            return BAD_DESTINATION, e
        if col[e] < previous:
            return UNSORTED, e
        previous = col[e]
        indices[e] = row[e]
    return OK, -1


@kernel
def count(
    row: Ints, col: Ints, first: int, last: int, num_src: int, counts: Ints
) -> tuple[int, int]:
    """Add the in-degrees of the edges in [first, last) to `counts` [N]; checks every id.

    Example: destinations 2, 0, 2 give counts = [1, 0, 2].
    """
    for e in range(first, last):
        if e + PREFETCH_DISTANCE < last:
            prefetch(counts, col[e + PREFETCH_DISTANCE])
        if row[e] < 0 or row[e] >= num_src:
            return BAD_SOURCE, e
        v = col[e]
        if v < 0 or v >= counts.shape[0]:
            return BAD_DESTINATION, e
        counts[v] += 1
    return OK, -1


@kernel
def scan(counts: Ints, base: int, indptr: Ints) -> None:
    """Turn counts [chunks, N] into each chunk's first position, and fill indptr [N + 1].

    Example: one chunk with counts [1, 0, 2] and base 0 gives indptr = [0, 1, 1, 3] and leaves the
    positions [0, 1, 1] in `counts`.
    """
    position = base
    for v in range(counts.shape[1]):
        indptr[v] = position
        for c in range(counts.shape[0]):
            n = counts[c, v]
            counts[c, v] = position
            position += n
    indptr[counts.shape[1]] = position


@kernel
def fill(
    row: Ints, col: Ints, first: int, last: int, next_position: Ints, indices: Ints, perm: Ints
) -> None:
    """Place the edges [first, last) after those of earlier chunks, in their own order.

    Example: edges 5->2, 6->0, 7->2 with next_position [0, 1, 1] give indices = [6, 5, 7] and
    perm = [1, 0, 2].
    """
    for e in range(first, last):
        v = col[e]
        p = next_position[v]
        next_position[v] = p + 1
        indices[p] = row[e]
        perm[p] = e


@kernel
def index_to_ptr(col: Ints, base: int, indptr: Ints) -> None:
    """Fill indptr [N + 1] from sorted destinations: col [0, 2, 2] gives [0, 1, 1, 3]."""
    v = 0
    for e in range(col.shape[0]):
        while v <= col[e]:
            indptr[v] = base + e
            v += 1
    while v < indptr.shape[0]:
        indptr[v] = base + col.shape[0]
        v += 1
