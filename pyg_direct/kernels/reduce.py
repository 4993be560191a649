"""Sums, means, maxima and minima of the rows of each node's in-neighbours."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .gather import LINE_BYTES, prefetch_lines
from .jit import inlined, kernel, widened

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
