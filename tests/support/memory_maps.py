"""What Linux says about the memory maps of this process."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path

from torch import Tensor

from pyg_direct.ops.cpu.file_pages import POPULATE_READ


def reads_alone(table: Tensor) -> bool:
    """Whether the system was told that a table is read at random, so that it reads no page more."""
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        span = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if span:
            inside = int(span[1], 16) <= table.data_ptr() < int(span[2], 16)
        elif inside and line.startswith("VmFlags:"):
            return "rr" in line.split()
    raise AssertionError("no such address")


def waits_for_pages() -> bool:
    """Tell whether the system reads pages of a map on demand, as Linux does from 5.14 on."""
    if sys.platform != "linux":
        return False
    page = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    library = ctypes.CDLL(None)
    return library.madvise(ctypes.c_void_p(address), ctypes.c_size_t(len(page)), POPULATE_READ) == 0
