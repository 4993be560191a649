"""Rows of tables, picked by id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .jit import copy_bytes, light_kernel, prefetch_address

PREFETCH_DISTANCE = 16  # in rows


@light_kernel
def gather_tables(
    tables: npt.NDArray[np.int64],  # [tables, 4]: address, rows, bytes of a row, address of output
    index: npt.NDArray[np.int64],  # [rows]
    first: int,  # the range of rows to do
    last: int,
) -> tuple[int, int]:
    """Copy the rows `index` of each table to its output, and return (-1, -1).

    Addresses are of any alignment. An id out of range ends it; the number of the table and the id's
    place in `index` are returned.

    Only the first cache line of a row is prefetched: that hides the TLB miss, and the copy itself
    has the other lines in flight at once.

    Example: rows of 2 bytes, index [2, 0], a table [a b c d e f] gives [e f a b]; index [0, 3]
    gives [a b . .] and returns (0, 1).
    """
    for t in range(tables.shape[0]):
        table, num_rows, row_bytes, out = tables[t, 0], tables[t, 1], tables[t, 2], tables[t, 3]
        for i in range(first, last):
            if i + PREFETCH_DISTANCE < last:
                prefetch_address(table + index[i + PREFETCH_DISTANCE] * row_bytes)
            if index[i] < 0 or index[i] >= num_rows:
                return t, i
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
    return -1, -1
