"""Weighted sums of rows by heads, and their gradients: attention without messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .gather import LINE_BYTES, prefetch_lines
from .jit import kernel

Ints = npt.NDArray[Any]
Floats = npt.NDArray[Any]

PREFETCH_DISTANCE = np.uint64(8)  # rows asked for in advance
ONE = np.uint64(1)
LANES = np.uint64(8)  # sums that run side by side, as each addition waits for the one before


@kernel
def sum_by_heads(
    indptr: Ints,  # [n + 1]
    position: Ints,  # [E], the edges of each list, each in [0, E)
    index: Ints,  # [E], the source of each edge in the order of `position`, each in [0, m)
    weight: Floats,  # [E, H], by edge
    x: Floats,  # [m, H * C], C-contiguous
    first: int,  # the range of rows to do
    last: int,
    out: Floats,  # [n, H * C] out
) -> None:
    """Sum the rows that each list names, head by head, times the weight of edge and head.

    Example: two heads of one column, x = [[1, 10], [2, 20]], weights [[3, 0], [1, 2]] of edges
    from the rows 0 and 1; the list [0, 1] gives [[3 + 2, 0 + 40]].
    """
    heads, end = np.uint64(weight.shape[1]), np.uint64(indptr[last])
    columns = np.uint64(x.shape[1]) // heads
    address, row_bytes = x.ctypes.data, x.strides[0]
    # All lines: the loop over a head is too short for the processor to see that the row goes on.
    lines = (row_bytes + LINE_BYTES - 1) // LINE_BYTES
    for i in range(np.uint64(first), np.uint64(last)):
        for c in range(np.uint64(x.shape[1])):
            out[i, c] = 0
        for at in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            if at + PREFETCH_DISTANCE < end:
                prefetch_lines(address + index[at + PREFETCH_DISTANCE] * row_bytes, lines)
            e, j = np.uint64(position[at]), np.uint64(index[at])
            for h in range(heads):
                w, begin = weight[e, h], h * columns
                for c in range(begin, begin + columns):
                    out[i, c] += w * x[j, c]


@kernel
def dot_by_heads(
    first_index: Ints,  # [E], each in [0, n)
    second_index: Ints,  # [E], each in [0, m)
    first_rows: Floats,  # [n, H * C], C-contiguous
    second_rows: Floats,  # [m, H * C], C-contiguous
    begin: int,  # the range of edges to do
    end: int,
    out: Floats,  # [E, H] out
) -> None:
    """Multiply the rows at both ends of each edge, and sum up head by head.

    Example: two heads of one column; the edge (0, 1) of rows [[1, 2]] and [[7, 8], [1, 10]] gives
    [1 * 1, 2 * 10].
    """
    heads, last = np.uint64(out.shape[1]), np.uint64(end)
    columns = np.uint64(first_rows.shape[1]) // heads
    whole = columns // LANES * LANES
    address, row_bytes = second_rows.ctypes.data, second_rows.strides[0]
    lines = (row_bytes + LINE_BYTES - 1) // LINE_BYTES
    lanes = np.empty(LANES, first_rows.dtype)
    for e in range(np.uint64(begin), last):
        if e + PREFETCH_DISTANCE < last:
            prefetch_lines(address + second_index[e + PREFETCH_DISTANCE] * row_bytes, lines)
        i, j = np.uint64(first_index[e]), np.uint64(second_index[e])
        for h in range(heads):
            start = h * columns
            for lane in range(LANES):
                lanes[lane] = 0
            for c in range(start, start + whole, LANES):
                for lane in range(LANES):
                    lanes[lane] += first_rows[i, c + lane] * second_rows[j, c + lane]
            for c in range(start + whole, start + columns):
                lanes[np.uint64(0)] += first_rows[i, c] * second_rows[j, c]
            total = lanes[np.uint64(0)]
            for lane in range(ONE, LANES):
                total += lanes[lane]
            out[e, h] = total
