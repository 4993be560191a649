"""What a contestant's process does: it prepares, then works once for each line that it reads.

It imports nothing but the standard library, as the interpreter of another library may run it.
"""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SELF = Path("/proc/self")


def take_turns(work: Callable[[], dict[str, float] | None], warm_up: int) -> None:
    """Answer each line of stdin with a line of JSON: what one call of `work` has taken.

    Args:
        work: one unit of work; its own figures are added to the answer.
        warm_up: how many calls come first, which are not counted.
    """
    with contextlib.suppress(OSError):  # where that is not allowed, the peak is that of all time
        (SELF / "clear_refs").write_text("5")
    before = memory("VmRSS")
    for _ in range(warm_up):
        work()
    print("ready", flush=True)
    for _ in sys.stdin:
        found = measured(work)
        print(json.dumps({**found, "taken_bytes": memory("VmHWM") - before}), flush=True)


def memory(name: str) -> int:
    """Return bytes of this process that lie in memory: now ("VmRSS"), or at most ("VmHWM")."""
    lines = (SELF / "status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return 1024 * int(found)


def measured(work: Callable[[], dict[str, float] | None]) -> dict[str, Any]:
    """Return milliseconds, page faults, system time and peak memory of one call of `work`."""
    before, wall = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    found = work() or {}
    wall, after = time.perf_counter() - wall, resource.getrusage(resource.RUSAGE_SELF)
    user, system = after.ru_utime - before.ru_utime, after.ru_stime - before.ru_stime
    return {
        "wall_ms": 1e3 * wall,
        "cpu_ms": 1e3 * (user + system),
        "system_ms": 1e3 * system,
        "faults": after.ru_minflt - before.ru_minflt,
        "peak_bytes": 1024 * after.ru_maxrss,
        **found,
    }
