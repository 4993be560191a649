"""Rows of a table, picked by id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .jit import copy_bytes, kernel, prefetch_address

AHEAD = 16  # rows asked for in advance


@kernel
def gather_rows(
    table: int,  # address of [N, row_bytes], of any alignment
    index: npt.NDArray[np.int64],  # [rows], each in [0, N)
    row_bytes: int,
    first: int,  # the range of rows to do
    last: int,
    out: int,  # address of [rows, row_bytes]
) -> None:
    """Copy the rows `index` of `table` to `out`.

    Only the first line of a row is asked for in advance: that pays for the TLB miss, and the copy
    itself has the other lines in flight at once.

    Example: rows of 2 bytes, index [2, 0], table [a b c d e f] gives [e f a b].
    """
    for i in range(first, last):
        if i + AHEAD < last:
            prefetch_address(table + index[i + AHEAD] * row_bytes)
        source, target = table + index[i] * row_bytes, out + i * row_bytes
        # Rows of one word, such as labels and masks, are too short for a call of memcpy.
        if row_bytes == 8:
            copy_bytes(source, target, 8)
        elif row_bytes == 4:
            copy_bytes(source, target, 4)
        elif row_bytes == 1:
            copy_bytes(source, target, 1)
        else:
            copy_bytes(source, target, row_bytes)
