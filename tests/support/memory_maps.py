"""What Linux says about the memory maps of this process."""

from __future__ import annotations

import re
from pathlib import Path

from torch import Tensor


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
