"""Rows of tables that are mapped to files: their pages are asked for before they are copied.

A core that reads a page which is not in memory waits for the disk, one page at a time, and the
system reads 128 KB around it, expecting that more of that is wanted. Here all pages of a batch are
asked for at once, in the order of the file, so that the disk has as many reads in flight as it can.

A page may be missing all the same: there was no room for it, or it was taken back before its row
was copied. While rows are copied such a page is read alone (MADV_RANDOM). Otherwise the system
reads all around it, up to some megabytes as the disk is set up, in place of pages that are yet to
be copied, which then are missing in their turn.

Code that takes a page which the disk cannot read, or which is past the end of a file that was
cut off, ends the process by SIGBUS. So the system is told to read some of the pages that were asked
for before code takes any (MADV_POPULATE_READ), which fails with an error where the disk does. The
process may still end where the disk fails in between, or where few pages cannot be read.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import Csc, SampledGraph, SamplingPlan
from ...kernels import gather
from ..buffers import Resources
from ..mappings import mappings
from .workspace import CpuWorkspace

MIN_TABLE_BYTES = 1 << 26  # of smaller tables every page is in memory soon
SAMPLED_ROWS = 64  # that tell whether a batch's pages are in memory
NORMAL, RANDOM = 0, 1  # MADV_NORMAL and MADV_RANDOM of Linux
POPULATE_READ = 22  # MADV_POPULATE_READ, from Linux 5.14 on
NOTHING_TO_ASK = contextlib.nullcontext()


class PagesAskedFor(NamedTuple):
    """Pages of a map that were asked for."""

    base: int  # address of page 0
    runs: int  # how many pieces they were asked for in
    some: npt.NDArray[np.int64]  # of them, ascending, each once


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
        asked = [found for table in large if (found := self.request(table, index)) is not None]
        return self._once_readable(large, asked) if asked else self.alone(large)

    @contextlib.contextmanager
    def _once_readable(
        self, tables: Sequence[Tensor], asked: Sequence[PagesAskedFor]
    ) -> Iterator[None]:
        with self.alone(tables):
            for found in asked:
                _read(found)
            yield

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

    def request(self, table: Tensor, index: npt.NDArray[np.int64]) -> PagesAskedFor | None:
        """Ask for the pages of the rows `index`, if some of them may not be in memory.

        Args:
            table: [N, ...], contiguous, on the host.
            index: int64 [n]; ids out of range are passed over.

        Returns:
            What was asked for; None if nothing was.
        """
        size, rows = table.nbytes, len(index)
        if size < MIN_TABLE_BYTES or rows == 0 or not self._is_mapped(table.data_ptr(), size):
            return None
        row_bytes, page = size // len(table), mmap.PAGESIZE
        base, phase = table.data_ptr() // page * page, table.data_ptr() % page
        sample = index[:: max(1, rows // SAMPLED_ROWS)]
        some = _pages(sample, len(table), row_bytes, phase)
        if _in_memory(base, some):
            return None
        wanted = np.unique(_pages(index, len(table), row_bytes, phase))
        return PagesAskedFor(base, gather.request_pages(base, wanted, page), np.unique(some))

    def _is_mapped(self, address: int, size: int) -> bool:
        key = address, size
        if key not in self._mapped:
            # An address may come to belong to another table; then the advice is superfluous or
            # missing, which changes no result.
            self._mapped[key] = is_mapped_to_file(address)
        return self._mapped[key]


def _read(asked: PagesAskedFor) -> None:
    """Wait for some of the pages that were asked for, where the system can.

    Raises:
        OSError: the disk cannot read one, or the file has none there any more.
    """
    library: Any = ctypes.CDLL(None, use_errno=True)
    for number in asked.some.tolist():
        address = asked.base + number * mmap.PAGESIZE
        begin, size = ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE)
        if library.madvise(begin, size, POPULATE_READ) == 0:
            continue
        if ctypes.get_errno() == errno.EFAULT:
            raise OSError(
                errno.EIO,
                f"Page {number} of an attribute or of neighbour lists cannot be read: its disk or "
                f"network fails, or the file was cut off after it was opened. Put it right, and "
                f"open the graph again",
                file_at(address),
            )
        return


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
    return out[: gather.pages_of_rows(index, num_rows, row_bytes, phase, page, out)]


def is_mapped_to_file(address: int) -> bool:
    """Tell whether an address of this process lies in a map of a file on disk; only Linux knows."""
    return bool(file_at(address))


def file_at(address: int) -> str:
    """Return the path of the file on disk that an address is mapped to, "" if there is none."""
    return next((m.path for m in mappings(address, address + 1) if m.has_file), "")


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


Ints = npt.NDArray[Any]


class PagedWorkspace(CpuWorkspace):
    """As `CpuWorkspace`, where pages of the arrays are asked for before a hop reads them.

    All that a hop needs is asked for at once, so that the disk has many reads in flight, and what
    is missing all the same is read alone: see `file_pages`. The edges are the same.
    """

    def __init__(
        self, csc: Csc, plan: SamplingPlan, resources: Resources, pages: FilePages
    ) -> None:
        super().__init__(csc, plan, resources)
        self._is_plain = False  # a call for all hops leaves no time to ask for the pages of each
        self._pages = pages
        arrays = {name: torch.from_numpy(array) for name, array in csc.arrays()}
        self._tables = list(arrays.values())
        self._pointers = [arrays["indptr"]]
        self._of_edges = [
            arrays[name] for name in ("indices", "alias", "weight", "cumulative") if name in arrays
        ]

    def _another(self) -> PagedWorkspace:
        return PagedWorkspace(self._csc, self._plan, self._resources, self._pages)

    def plan(self, hop: int, skip: Sequence[Tensor | None] | None = None) -> None:
        """Count the edges of the hop; the pointers of its nodes are asked for."""
        with (
            self._pages.alone(self._tables),
            self._pages.reading(self._pointers, self._lists_at(hop)),
        ):
            super().plan(hop, skip)

    def sample_edges(self, hop: int) -> None:
        """Draw the edges of the hop; the pages in which lists begin are asked for.

        Most lists lie in one page or two.
        """
        starts = self._items[0, : int(self._item_base[-1])]
        with self._pages.alone(self._tables), self._pages.reading(self._of_edges, starts):
            super().sample_edges(hop)

    def _emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes."""
        with self._pages.alone(self._tables):
            return super()._emit_induced()

    def _lists_at(self, hop: int) -> Ints:
        """Return the places in `indptr` of the lists that a hop looks at, int64."""
        first, last = self._node_ptr[hop], self._node_ptr[hop + 1]
        places = [np.empty(0, np.int64)]
        for t, base in zip(self._dst_types, self._csc.indptr_base.tolist(), strict=True):
            begin = int(self._node_start[t])
            places.append(self._node[begin + first[t] : begin + last[t]].astype(np.int64) + base)
        return np.concatenate(places)
