"""Rows of a table, picked by id."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import copy_bytes, kernel, prefetch

AHEAD = 16  # rows asked for in advance


@kernel
def gather_rows(
    table: npt.NDArray[np.uint8],  # [N * row_bytes]
    index: npt.NDArray[np.int64],  # [rows], each in [0, N)
    row_bytes: int,
    first: int,  # the range of rows to do
    last: int,
    out: npt.NDArray[np.uint8],  # [rows * row_bytes]
) -> None:
    """Copy the rows `index` of `table` to `out`.

    Only the first line of a row is asked for in advance: that pays for the TLB miss, and the copy
    itself has the other lines in flight at once.

    Example: rows of 2 bytes, index [2, 0], table [a b c d e f] gives [e f a b].
    """
    for i in range(first, last):
        if i + AHEAD < last:
            prefetch(table, index[i + AHEAD] * row_bytes)
        copy_bytes(table, index[i] * row_bytes, out, i * row_bytes, row_bytes)


@kernel
def gather_words(
    table: npt.NDArray[Any],  # [N]
    index: npt.NDArray[np.int64],  # [rows], each in [0, N)
    first: int,
    last: int,
    out: npt.NDArray[Any],  # [rows]
) -> None:
    """As `gather_rows` for rows of one machine word, where a call of memcpy would be the cost."""
    for i in range(first, last):
        if i + AHEAD < last:
            prefetch(table, index[i + AHEAD])
        out[i] = table[index[i]]
