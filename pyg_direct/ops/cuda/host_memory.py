"""What Linux says about the memory of the host, and about NVIDIA's driver."""

from __future__ import annotations

import re
from pathlib import Path

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

MEMINFO = "/proc/meminfo"
DRIVER = "/proc/driver/nvidia/version"


def available_bytes() -> int:
    """Return the bytes that can be had without swapping.

    Raises:
        OSError, ValueError: the system does not tell.
    """
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path(MEMINFO).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{MEMINFO} has no MemAvailable")
    return int(found[1]) << 10


def lockable_bytes() -> int | None:
    """Return how many bytes this process may page-lock; None for any number."""
    if resource is None:
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def driver_version() -> str:
    """Return the first line that NVIDIA's driver says of itself; nothing where it says none."""
    try:
        return Path(DRIVER).read_text(encoding="utf-8").splitlines()[0].strip()
    except (OSError, IndexError):
        return ""
