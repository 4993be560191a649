"""What a contestant's process does: it prepares, then works once for each line that it reads.

It imports nothing but the standard library, as the interpreter of another library may run it.
"""

from __future__ import annotations

import json
import resource
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

STATUS = Path("/proc/self/status")
SAMPLE_SECONDS = 0.005


def take_turns(work: Callable[[], dict[str, float] | None], warm_up: int) -> None:
    """Answer each line of stdin with a line of JSON: what one call of `work` has taken.

    Args:
        work: one unit of work; its own figures are added to the answer.
        warm_up: how many calls come first, which are not counted.
    """
    taken = most_anonymous_bytes(work, warm_up)
    print("ready", flush=True)
    for _ in sys.stdin:
        print(json.dumps({**measured(work), "anonymous_bytes": taken}), flush=True)


def most_anonymous_bytes(work: Callable[[], dict[str, float] | None], calls: int) -> int:
    """Return how much anonymous memory the process had in some calls above what it had before.

    Files that are mapped into memory do not count: the system takes their pages back where it needs
    the memory.
    """
    ended, samples = threading.Event(), [anonymous_bytes()]

    def sample() -> None:
        while not ended.wait(SAMPLE_SECONDS):
            samples.append(anonymous_bytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    for _ in range(calls):
        work()
    ended.set()
    sampler.join()
    return max(samples) - samples[0]


def anonymous_bytes() -> int:
    """Return bytes of this process that lie in memory and belong to no file."""
    lines = STATUS.read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith("RssAnon:")]
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
