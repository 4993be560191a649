"""Rows of tables, picked by id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .jit import copy_bytes, light_kernel, prefetch_address

LINE_BYTES = 64
MOST_LINES = 8  # of a row that are prefetched; the processor sees by then that it goes on
ROWS_AHEAD, SHORT_ROWS_AHEAD = 4, 32  # how far ahead rows are prefetched; short ones are of a line


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

    The lines of a row are prefetched some rows ahead, so that those of several are in flight: the
    copy alone has one row's.

    Example: rows of 2 bytes, index [2, 0], a table [a b c d e f] gives [e f a b]; index [0, 3]
    gives [a b . .] and returns (0, 1).
    """
    for t in range(tables.shape[0]):
        table, num_rows, row_bytes, out = tables[t, 0], tables[t, 1], tables[t, 2], tables[t, 3]
        lines = (row_bytes + LINE_BYTES - 1) // LINE_BYTES
        lines = lines if lines < MOST_LINES else MOST_LINES  # `min` would be compiled as well
        distance = ROWS_AHEAD if lines > 1 else SHORT_ROWS_AHEAD
        for i in range(first, last):
            if i + distance < last:
                ahead = table + index[i + distance] * row_bytes
                for line in range(lines):
                    prefetch_address(ahead + line * LINE_BYTES)
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
