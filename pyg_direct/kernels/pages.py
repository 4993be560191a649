"""Pages of memory-mapped files: which ones a batch needs, and asking the system for them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from numba import types

from .jit import kernel

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

    Example: rows of 600 bytes behind a phase of 100, pages of 1,000 bytes and index [0, 1] give the
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
