"""What parts of this process's memory are mapped to, as Linux lists it."""

from __future__ import annotations

import contextlib
import ctypes
import re
from collections.abc import Iterator
from typing import NamedTuple

MAPS, SMAPS, MOUNTS = "/proc/self/maps", "/proc/self/smaps", "/proc/self/mounts"
PAGE_BYTES = 4096
NOT_ON_DISK = ("/dev/shm/", "/memfd:", "/SYSV", "/dev/zero", "[")
IN_MEMORY = {"tmpfs", "ramfs", "hugetlbfs", "devtmpfs"}  # kinds of file systems without a disk

_LINE = re.compile(r"([0-9a-f]+)-([0-9a-f]+) ..(.)(.) ([0-9a-f]+) (\S+) (\d+) *(.*)\n")
_LOWEST_BIT = bytes(byte & 1 for byte in range(256))  # of what `mincore` says, all else is reserved


class Mapping(NamedTuple):
    """A part of the memory."""

    first: int
    last: int  # the address after it
    private: bool  # what is written to it stays in the process
    offset: int  # in its file
    file: tuple[str, int]  # its device and inode
    path: str  # of its file; "" for none

    @property
    def is_of_file(self) -> bool:
        """Whether it has the pages of a file, which may be in memory alone."""
        return self.file[1] != 0

    @property
    def has_file(self) -> bool:
        """Whether that file is on a disk."""
        return self.is_of_file and bool(self.path) and not self.path.startswith(NOT_ON_DISK)


def mappings(first: int, last: int) -> Iterator[Mapping]:
    """Yield what lies from one address to another, in order; nothing where it is not said."""
    for line in _lines(MAPS):
        found = _mapping(line)
        if found is not None and found.first < last and first < found.last:
            yield found


def own_bytes(first: int, last: int) -> int | None:
    """Return the bytes of the mappings from one address to another that are in no file.

    In a private mapping of a file those are the pages that were written to. None where it is not
    said.
    """
    found, inside = None, False
    for line in _lines(SMAPS):
        mapping = _mapping(line)
        if mapping is not None:
            inside = mapping.first < last and first < mapping.last
        elif inside and line.startswith(("Anonymous:", "Swap:")):
            found = (found or 0) + (int(line.split()[1]) << 10)
    return found


def bytes_to_come(first: int, last: int) -> int:
    """Return how much memory it takes to have all pages from one address to another, and keep them.

    Those of a file on a disk count as a whole: `host_memory.usable_bytes` has what is there of
    them, as the system could let it go.
    """
    missing = 0
    for mapping in mappings(first, last):
        begin, end = max(first, mapping.first), min(last, mapping.last)
        on_disk = mapping.has_file and _file_system(mapping.path) not in IN_MEMORY
        missing += end - begin if on_disk else _absent_bytes(begin, end)
    return missing


def _absent_bytes(first: int, last: int) -> int:
    """Return the bytes of pages that are not in memory; 0 where the system does not say."""
    pages = (ctypes.c_ubyte * -(-(last - first) // PAGE_BYTES))()
    address, size = ctypes.c_void_p(first), ctypes.c_size_t(last - first)
    if ctypes.CDLL(None).mincore(address, size, pages) != 0:
        return 0
    return bytes(pages).translate(_LOWEST_BIT).count(0) * PAGE_BYTES


def _lines(path: str) -> Iterator[str]:
    with (
        contextlib.suppress(OSError),
        open(path, encoding="utf-8", errors="surrogateescape") as file,
    ):
        yield from file


def _mapping(line: str) -> Mapping | None:
    found = _LINE.fullmatch(line)
    if found is None:
        return None
    first, last, _, sharing, offset, device, inode, path = found.groups()
    span = int(first, 16), int(last, 16)
    return Mapping(*span, sharing == "p", int(offset, 16), (device, int(inode)), path)


def _file_system(path: str) -> str:
    """Return the kind of the file system that a path is on, or ""."""
    kind, longest = "", 0
    for line in _lines(MOUNTS):
        _, folder, found, *_ = line.split(" ")
        if path.startswith(folder.rstrip("/") + "/") and len(folder) >= longest:
            kind, longest = found, len(folder)
    return kind
