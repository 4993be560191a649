"""Weighted sums of rows by heads, and their gradients: attention without messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel, prefetch_address

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
    for i in range(np.uint64(first), np.uint64(last)):
        for c in range(np.uint64(x.shape[1])):
            out[i, c] = 0
        for at in range(np.uint64(indptr[i]), np.uint64(indptr[i + ONE])):
            if at + PREFETCH_DISTANCE < end:
                prefetch_address(address + index[at + PREFETCH_DISTANCE] * row_bytes)
            e, j = np.uint64(position[at]), np.uint64(index[at])
            for h in range(heads):
                w, begin = weight[e, h], h * columns
                for c in range(begin, begin + columns):
                    out[i, c] += w * x[j, c]


@kernel
def spread_by_heads(
    indptr: Ints,  # [m + 1], of the lists of edges that leave each source
    position: Ints,  # [E], the edges of each list, each in [0, E)
    index: Ints,  # [E], the destination of each edge in the order of `position`, each in [0, n)
    weight: Floats,  # [E, H], by edge
    x: Floats,  # [m, H * C], C-contiguous
    grad: Floats,  # [n, H * C], of the output of `sum_by_heads`, C-contiguous
    first: int,  # the range of sources to do
    last: int,
    grad_x: Floats,  # [m, H * C] out
    grad_weight: Floats,  # [E, H] out, by edge
) -> None:
    """Return the gradients of `sum_by_heads`; each row of `grad` is read once for both.

    Example: with the example there and the gradient [[1, 2]], the row 0 gets [3 * 1, 0 * 2] and
    its edge [1 * 1, 2 * 10].
    """
    heads, end = np.uint64(weight.shape[1]), np.uint64(indptr[last])
    columns = np.uint64(x.shape[1]) // heads
    whole = columns // LANES * LANES
    address, row_bytes = grad.ctypes.data, grad.strides[0]
    lanes = np.empty(LANES, x.dtype)
    for j in range(np.uint64(first), np.uint64(last)):
        for c in range(np.uint64(x.shape[1])):
            grad_x[j, c] = 0
        for at in range(np.uint64(indptr[j]), np.uint64(indptr[j + ONE])):
            if at + PREFETCH_DISTANCE < end:
                prefetch_address(address + index[at + PREFETCH_DISTANCE] * row_bytes)
            e, i = np.uint64(position[at]), np.uint64(index[at])
            for h in range(heads):
                w, begin = weight[e, h], h * columns
                for c in range(begin, begin + columns):
                    grad_x[j, c] += w * grad[i, c]
                for lane in range(LANES):
                    lanes[lane] = 0
                for c in range(begin, begin + whole, LANES):
                    for lane in range(LANES):
                        lanes[lane] += grad[i, c + lane] * x[j, c + lane]
                for c in range(begin + whole, begin + columns):
                    lanes[np.uint64(0)] += grad[i, c] * x[j, c]
                total = lanes[np.uint64(0)]
                for lane in range(ONE, LANES):
                    total += lanes[lane]
                grad_weight[e, h] = total
