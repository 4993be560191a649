"""Rows of tables, picked by id, and the pages of mapped files that they lie on."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from .jit import copy_bytes, helper, inlined, kernel, light_kernel, load, prefetch_address

LINE_BYTES = 64
PIECE_BYTES = 32  # moved at a time; pieces of a line cost more where rows begin amid lines
MOST_LINES = 8  # of a row that are prefetched; the processor sees by then that it goes on
ROWS_AHEAD, SHORT_ROWS_AHEAD = 4, 32  # how far ahead rows are prefetched; short ones are of a line


@inlined
def prefetch_lines(address: int, lines: int) -> None:
    """Ask for so many cache lines, from an address on.

    Example: 3 lines from address 1000 are those of 1000, 1064 and 1128.
    """
    for line in range(lines):
        prefetch_address(address + line * LINE_BYTES)


@helper
def copy_pieces(source: int, target: int, size: int) -> None:
    """Copy at least `PIECE_BYTES` from one address to another; the last two pieces may overlap.

    Rows of a few pieces take no turn of the loop, which LLVM unrolls.

    A call of memcpy takes 1.1 to 2 times as long for a row of some hundred bytes.

    Example: 70 bytes are copied as 0 to 31, 32 to 63 and 38 to 69.
    """
    last, at = size - PIECE_BYTES, np.int64(PIECE_BYTES)
    copy_bytes(source, target, PIECE_BYTES)
    while at + PIECE_BYTES < last:
        copy_bytes(source + at, target + at, 2 * PIECE_BYTES)
        at += 2 * PIECE_BYTES
    if at < last:
        copy_bytes(source + at, target + at, PIECE_BYTES)
    if last > 0:
        copy_bytes(source + last, target + last, PIECE_BYTES)


@light_kernel
def gather_tables(
    tables: npt.NDArray[np.int64],  # of each table: address, rows, bytes of a row, output's address
    index: int,  # address of the ids, int64 [rows]
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
    for t in range(tables.shape[0] // 4):
        at = 4 * t
        table, num_rows, row_bytes, out = tables[at], tables[at + 1], tables[at + 2], tables[at + 3]
        lines = (row_bytes + LINE_BYTES - 1) // LINE_BYTES
        lines = lines if lines < MOST_LINES else MOST_LINES  # `min` would be compiled as well
        distance = ROWS_AHEAD if lines > 1 else SHORT_ROWS_AHEAD
        for i in range(first, last):
            if i + distance < last:
                prefetch_lines(table + load(index, i + distance) * row_bytes, lines)
            row = load(index, i)
            if row < 0 or row >= num_rows:
                return t, i
            source, target = table + row * row_bytes, out + i * row_bytes
            if row_bytes >= PIECE_BYTES:
                copy_pieces(source, target, row_bytes)
            # Rows of one word, such as labels and masks, are too short for a call of memcpy.
            elif row_bytes == 8:
                copy_bytes(source, target, 8)
            elif row_bytes == 4:
                copy_bytes(source, target, 4)
            elif row_bytes == 1:
                copy_bytes(source, target, 1)
            else:
                copy_bytes(source, target, row_bytes)
    return -1, -1


Ints = npt.NDArray[np.int64]

WILL_NEED = 3  # MADV_WILLNEED of Linux

# int madvise(void *address, size_t length, int advice) of the C library
_madvise = types.ExternalFunction("madvise", types.int32(types.uintp, types.uintp, types.int32))


@kernel
def pages_of_rows(
    index: Ints,  # [rows]
    num_rows: int,  # of the table
    row_bytes: int,
    phase: int,  # bytes from the begin of page 0 to the table
    page_bytes: int,
    out: Ints,  # [rows * (row_bytes // page_bytes + 2)] out
) -> int:
    """Write the pages of each row, and return how many there are; ids out of range have none.

    Example: rows of 600 bytes after a phase of 100, pages of 1,000 bytes and index [0, 1] give the
    pages 0, 0 and 1.
    """
    count = 0
    for i in range(index.shape[0]):
        if index[i] < 0 or index[i] >= num_rows:
            continue
        begin = phase + index[i] * row_bytes
        first, last = begin // page_bytes, (begin + row_bytes - 1) // page_bytes
        for page in range(first, last + 1):
            out[count] = page
            count += 1
    return count


@kernel
def request_pages(base: int, pages: Ints, page_bytes: int) -> int:
    """Ask the system to read pages of a map, without waiting; return in how many runs.

    Args:
        base: address of page 0.
        pages: [n], ascending, each once.
        page_bytes: size of a page.

    Example: pages 3, 4 and 9 are two runs.
    """
    runs, i = 0, 0
    while i < pages.shape[0]:
        last = i
        while last + 1 < pages.shape[0] and pages[last + 1] == pages[last] + 1:
            last += 1
        address = np.uint64(base + pages[i] * page_bytes)
        _madvise(address, np.uint64((last - i + 1) * page_bytes), np.int32(WILL_NEED))
        runs, i = runs + 1, last + 1
    return runs
