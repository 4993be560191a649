"""Rows of tables that are mapped to files: their pages are asked for before they are copied.

A core that reads a page which is not in memory waits for the disk, one page at a time, and the
system reads 128 KB around it, expecting that more of that is wanted. Here all pages of a batch are
asked for at once, in the order of the file, so that the disk has as many reads in flight as it can.

A page may be missing all the same: there was no room for it, or it was taken back before its row
was copied. While rows are copied such a page is read alone (MADV_RANDOM). Otherwise the system
reads all around it, up to some megabytes as the disk is set up, in place of pages that are yet to
be copied, which then are missing in their turn.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...kernels import pages

MIN_TABLE_BYTES = 1 << 26  # of smaller tables every page is in memory soon
SAMPLED_ROWS = 64  # that tell whether a batch's pages are in memory
NORMAL, RANDOM = 0, 1  # MADV_NORMAL and MADV_RANDOM of Linux
NOTHING_TO_ASK = contextlib.nullcontext()
NOT_ON_DISK = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero", "[")


class FilePages:
    """Asks for the pages of rows; remembers which tables are mapped to files."""

    def __init__(self) -> None:
        self._mapped: dict[tuple[int, int], bool] = {}
        self._readers: defaultdict[tuple[int, int], list[None]] = defaultdict(list)

    def reading(
        self, tables: Sequence[Tensor], index: npt.NDArray[np.int64]
    ) -> contextlib.AbstractContextManager[None]:
        """Ask for the pages of the rows `index` of tables; as a context, to copy them in."""
        large = [table for table in tables if table.nbytes >= MIN_TABLE_BYTES]
        if not large or len(index) == 0:
            return NOTHING_TO_ASK
        for table in large:
            self.request(table, index)
        return self.alone(large)

    def alone(self, tables: Sequence[Tensor]) -> contextlib.AbstractContextManager[None]:
        """As a context: a page of the tables that is missing is read without those around it."""
        spans = {
            (table.data_ptr(), table.nbytes)
            for table in tables
            if table.nbytes >= MIN_TABLE_BYTES and self._is_mapped(table.data_ptr(), table.nbytes)
        }
        return self._alone(spans) if spans else NOTHING_TO_ASK

    @contextlib.contextmanager
    def _alone(self, spans: set[tuple[int, int]]) -> Iterator[None]:
        for span in spans:
            # Threads count themselves by one atomic step, without a lock, which a fork could break.
            # At worst they give advice late, which changes no row.
            self._readers[span].append(None)
            _advise(span, RANDOM)
        try:
            yield
        finally:
            for span in spans:
                self._readers[span].pop()
                if not self._readers[span]:
                    _advise(span, NORMAL)

    def request(self, table: Tensor, index: npt.NDArray[np.int64]) -> int:
        """Ask for the pages of the rows `index`, if some of them may not be in memory.

        Args:
            table: [N, ...], contiguous, on the host.
            index: int64 [n]; ids out of range are passed over.

        Returns:
            How many runs of pages were asked for.
        """
        size, rows = table.nbytes, len(index)
        if size < MIN_TABLE_BYTES or rows == 0 or not self._is_mapped(table.data_ptr(), size):
            return 0
        row_bytes, page = size // len(table), mmap.PAGESIZE
        base, phase = table.data_ptr() // page * page, table.data_ptr() % page
        sample = index[:: max(1, rows // SAMPLED_ROWS)]
        if _in_memory(base, _pages(sample, len(table), row_bytes, phase)):
            return 0
        wanted = np.unique(_pages(index, len(table), row_bytes, phase))
        return pages.request_pages(base, wanted, page)

    def _is_mapped(self, address: int, size: int) -> bool:
        key = address, size
        if key not in self._mapped:
            # An address may come to belong to another table; then the advice is superfluous or
            # missing, which changes no result.
            self._mapped[key] = is_mapped_to_file(address)
        return self._mapped[key]


def _advise(span: tuple[int, int], advice: int) -> None:
    """Tell the system how the whole pages that a table lies in will be read."""
    address, size = span
    first, last = address // mmap.PAGESIZE, -(-(address + size) // mmap.PAGESIZE)
    library: Any = ctypes.CDLL(None)
    start, length = first * mmap.PAGESIZE, (last - first) * mmap.PAGESIZE
    library.madvise(ctypes.c_void_p(start), ctypes.c_size_t(length), advice)


def _pages(
    index: npt.NDArray[np.int64], num_rows: int, row_bytes: int, phase: int
) -> npt.NDArray[np.int64]:
    page = mmap.PAGESIZE
    out = np.empty(len(index) * (row_bytes // page + 2), np.int64)
    return out[: pages.pages_of_rows(index, num_rows, row_bytes, phase, page, out)]


def is_mapped_to_file(address: int) -> bool:
    """Tell whether an address of this process lies in a map of a file on disk; only Linux knows."""
    for line in _maps():
        span, _, _, _, inode, *path = line.split(maxsplit=5)
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= address < last:
            return inode != "0" and bool(path) and not path[0].startswith(NOT_ON_DISK)
    return False


def _maps() -> Iterator[str]:
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as file:
        yield from file


def _in_memory(base: int, numbers: npt.NDArray[np.int64]) -> bool:
    """Return whether some pages are in memory; True where the system does not say."""
    if sys.platform != "linux":
        return True
    library: Any = ctypes.CDLL(None, use_errno=True)
    state = (ctypes.c_ubyte * 1)()
    for number in numbers.tolist():
        address = ctypes.c_void_p(base + number * mmap.PAGESIZE)
        if (
            library.mincore(address, ctypes.c_size_t(mmap.PAGESIZE), state) == 0
            and not state[0] & 1
        ):
            return False
    return True
