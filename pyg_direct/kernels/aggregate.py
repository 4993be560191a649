"""Sums and extrema of rows over the lists of a CSR matrix: message passing without messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel, prefetch_address

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
