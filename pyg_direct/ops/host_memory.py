"""What Linux says about the memory of the host, and about NVIDIA's driver."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

try:
    import resource
except ImportError:  # Windows, which has no such limit
    resource = None  # type: ignore[assignment]

MEMINFO = "/proc/meminfo"
CGROUPS = "/proc/self/cgroup"
CGROUP_ROOT = Path("/sys/fs/cgroup")
UNLIMITED = 1 << 62  # what is said where the system does not say, or sets no limit
DRIVER = "/proc/driver/nvidia/version"


def available_bytes() -> int:
    """Return the bytes that can be had without swapping.

    Raises:
        OSError, ValueError: the system does not say.
    """
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path(MEMINFO).read_text(encoding="utf-8"))
    if found is None:
        raise ValueError(f"{MEMINFO} has no MemAvailable")
    return int(found[1]) << 10


def usable_bytes() -> int:
    """Return how much memory this process may come to use, cached pages of files with it.

    That is what can be had without swapping, and no more than its control groups, of either
    version, leave beside what is held in them already. `UNLIMITED` where the system does not say.
    """
    try:
        found = available_bytes()
    except (OSError, ValueError):
        found = UNLIMITED
    return min(found, *_left_in_groups())


class _Names(NamedTuple):
    """Files of a control group, and what lies before names in its memory.stat."""

    limit: str
    usage: str
    prefix: str  # of sums over the groups below it


_NAMES = {
    1: _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_"),
    2: _Names("memory.max", "memory.current", ""),
}


def _left_in_groups() -> Iterator[int]:
    """Yield what the control groups of this process leave to it, and `UNLIMITED`."""
    yield UNLIMITED
    try:
        lines = Path(CGROUPS).read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            root, names = CGROUP_ROOT, _NAMES[2]
        elif "memory" in controllers.split(","):
            root, names = CGROUP_ROOT / "memory", _NAMES[1]
        else:
            continue
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            if not folder.is_relative_to(root):
                break
            # No such file in the root of version 2, and no such folder in some containers.
            with contextlib.suppress(OSError, ValueError):  # ValueError: "max"
                limit = int((folder / names.limit).read_text(encoding="ascii"))
                yield max(0, limit - _held_in(folder, names))


def _held_in(group: Path, names: _Names) -> int:
    """Return what processes of a control group hold, without pages that are kept of files."""
    try:
        usage = int((group / names.usage).read_text(encoding="ascii"))
        stat = (group / "memory.stat").read_text(encoding="ascii")
    except (OSError, ValueError):
        return 0
    kept = re.findall(rf"^{names.prefix}(?:in)?active_file (\d+)$", stat, re.MULTILINE)
    return max(0, usage - sum(map(int, kept)))


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
