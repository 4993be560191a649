"""Sums and extrema of rows over the lists of a CSR matrix: message passing without messages.

The sums are weighted by edge, and by heads for attention. `reduce_rows` and its like go through the
lists of a relation of the graph.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .gather import LINE_BYTES, prefetch_lines
from .jit import inlined, kernel, prefetch_address, widened

Ints = npt.NDArray[Any]
Floats = npt.NDArray[Any]

PREFETCH_DISTANCE = np.uint64(8)  # rows asked for in advance
ONE = np.uint64(1)


@kernel
def transpose_csr(
    indptr: Ints,  # [n + 1]
    index: Ints,  # [E], each in [0, m)
    out_indptr: Ints,  # int64 [m + 2], zeros; [:m + 1] out
    out_index: Ints,  # [E] out
    out_position: Ints,  # [E] out, or [0] if it is not wanted: where each entry stood
) -> None:
    """Transpose an n x m CSR matrix; the entries of a row keep the order of their columns.

    Example: rows [0, 1], [1] give the columns [0], [0, 1], at positions 0, 1, 2.
    """
    n, m = indptr.shape[0] - 1, out_indptr.shape[0] - 2
    # Counted one place further, so that filling moves each start to where the row begins.
    for e in range(np.uint64(indptr[0]), np.uint64(indptr[n])):
        out_indptr[np.uint64(index[e]) + ONE + ONE] += 1
    for j in range(m):
        out_indptr[j + 2] += out_indptr[j + 1]
    for i in range(n):
        for e in range(np.uint64(indptr[i]), np.uint64(indptr[i + 1])):
            place = np.uint64(index[e]) + ONE
            at = np.uint64(out_indptr[place])
            out_index[at] = i
            if out_position.shape[0] > 0:
                out_position[at] = e
            out_indptr[place] = at + ONE


@kernel
def sum_rows(
    indptr: Ints,  # [n + 1]
    index: Ints,  # [E], each in [0, len(x))
    weight: Floats,  # [E], or [0] for weights of 1
    x: Floats,  # [m, C], C-contiguous
    mean: bool,  # divide by the number of entries
    first: int,  # the range of rows to do
    last: int,
    out: Floats,  # [n, C] out
) -> None:
    """Sum the rows of `x` that each list names, from its beginning to its end.

    Example: x = [[1], [2], [4]] with the lists [0, 2], [] gives [[5], [0]].
    """
    width, end = np.uint64(x.shape[1]), np.uint64(indptr[last])
    address, row_bytes = x.ctypes.data, x.strides[0]
    for i in range(np.uint64(first), np.uint64(last)):
        for c in range(width):
            out[i, c] = 0
        for e in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            if e + PREFETCH_DISTANCE < end:
                prefetch_address(address + index[e + PREFETCH_DISTANCE] * row_bytes)
            j = np.uint64(index[e])
            if weight.shape[0] == 0:
                for c in range(width):
                    out[i, c] += x[j, c]
            else:
                w = weight[e]
                for c in range(width):
                    out[i, c] += w * x[j, c]
        count = indptr[i + ONE] - indptr[i]
        if mean and count > 1:
            for c in range(width):
                out[i, c] /= count


@kernel
def extreme_rows(
    indptr: Ints,  # [n + 1]
    index: Ints,  # [E], each in [0, len(x))
    x: Floats,  # [m, C], C-contiguous
    largest: bool,
    first: int,  # the range of rows to do
    last: int,
    out: Floats,  # [n, C] out
) -> None:
    """Take the largest or the smallest value of each column over each list; 0 over an empty one.

    A list with NaN gives NaN.

    Example: x = [[1], [2], [2]] with the list [0, 1, 2] gives [[2]].
    """
    width = np.uint64(x.shape[1])
    for i in range(np.uint64(first), np.uint64(last)):
        begin, end = np.uint64(indptr[i]), np.uint64(indptr[i + ONE])
        for c in range(width):
            out[i, c] = x[np.uint64(index[begin]), c] if end > begin else 0
        for e in range(begin + ONE, end):
            j = np.uint64(index[e])
            for c in range(width):
                value, best = x[j, c], out[i, c]
                better = value > best if largest else value < best
                better = better or value != value  # NaN, as torch does
                out[i, c] = value if better else best


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


AHEAD = np.uint64(8)  # prefetch distance, in neighbours
MAX_LINES = 8  # of a row that are prefetched; the hardware prefetcher does the rest

SUM, MEAN, MAX, MIN = 0, 1, 2, 3


@inlined
def keep_better(
    row: npt.NDArray[Any], target: npt.NDArray[Any], largest: bool, is_first: bool
) -> None:
    """Put into `target` what is larger (smaller) in `row`, or NaN.

    Example: row [1, 5], target [3, 4], largest: target becomes [3, 5].
    """
    for f in range(len(row)):
        found = widened(row[f])
        better = found > target[f] if largest else found < target[f]
        if is_first or better or found != found:
            target[f] = found


@kernel
def reduce_rows(
    indptr: npt.NDArray[Any],  # the lists of one relation, [N + 1]
    indices: npt.NDArray[Any],  # sources by position
    table: npt.NDArray[Any],  # float32, float64, or uint16 (bfloat16) [sources, width]
    address: int,  # of `table`
    weight: npt.NDArray[Any],  # by position from indptr[first]; empty: every edge counts once
    kind: int,  # SUM, MEAN, MAX or MIN
    first: int,  # the range of destination nodes to do
    last: int,
    out: npt.NDArray[Any],  # float32, or float64 as the table, [last - first, width]
) -> int:
    """Reduce the rows of the sources of each list, in the order of the list, and return -1.

    Empty lists give 0. A source out of range ends the work; its position is returned.

    Example: indptr [0, 2, 2], indices [1, 0], table [[1, 2], [3, 4]]: SUM gives [[4, 6], [0, 0]],
    MEAN [[2, 3], [0, 0]], MAX [[3, 4], [0, 0]].
    """
    width = table.shape[1]
    row_bytes = width * table.itemsize
    lines = min(MAX_LINES, (row_bytes + LINE_BYTES - 1) // LINE_BYTES)
    end, start = np.uint64(indptr[last]), np.uint64(indptr[first])
    weighted = len(weight) > 0
    for i in range(first, last):
        target = out[i - first]
        for f in range(width):
            target[f] = 0
        begin, stop = np.uint64(indptr[i]), np.uint64(indptr[i + 1])
        for p in range(begin, stop):
            if p + AHEAD < end:
                prefetch_lines(address + np.int64(indices[p + AHEAD]) * row_bytes, lines)
            if indices[p] < 0 or indices[p] >= len(table):
                return np.int64(p)  # type: ignore[no-any-return]
            row = table[np.uint64(indices[p])]
            if kind >= MAX:
                keep_better(row, target, kind == MAX, p == begin)
            elif weighted:
                factor = weight[p - start]
                for f in range(width):
                    target[f] += factor * widened(row[f])
            else:
                for f in range(width):
                    target[f] += widened(row[f])
        if kind == MEAN and stop > begin:
            count = out.dtype.type(stop - begin)
            for f in range(width):
                target[f] /= count
    return -1
