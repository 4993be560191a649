"""How many cores other programs took in each round of a run.

torch's threads spin while they wait for each other, so beside another program their CPU time is
longer as well, not only their wall time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from pathlib import Path

STAT = Path("/proc/stat")
MUCH = 0.5  # cores; rounds in which others took as much are named
IDLE = (3, 4)  # positions of idle time and of waiting for disks


class Watch:
    """Counts, round by round, the cores that neither this process nor its children took."""

    def __init__(self) -> None:
        self.cores: list[float] = []
        self.begin()

    def begin(self) -> None:
        """Let the next round begin now."""
        self._before = _now()

    def taken(self) -> float:
        """Return the cores that others took since the round began."""
        wall, busy, own = (
            after - before for after, before in zip(_now(), self._before, strict=True)
        )
        return max(0.0, (busy - own) / wall)

    def round(self) -> None:
        """End a round, with which the next one begins."""
        self.cores.append(self.taken())
        self.begin()


def taken_by_others(cores: Sequence[float] | None) -> list[str]:
    """Return what a report says of the rounds of a run; nothing of results that do not tell."""
    if not cores:
        return []
    mean = sum(cores) / len(cores)
    found = [f"{number} ({share:.1f})" for number, share in enumerate(cores, 1) if share >= MUCH]
    named = f", {MUCH} or more in the rounds {', '.join(found)}" if found else ""
    return ["", f"Other programs took {mean:.1f} cores on average while it ran{named}."]


def _now() -> tuple[float, float, float]:
    """Return seconds of the clock, of all cores at work, and of this process and its children."""
    fields = STAT.read_text().split("\n", 1)[0].split()[1:9]  # what follows is counted in these
    ticks = sum(int(value) for place, value in enumerate(fields) if place not in IDLE)
    own = sum(os.times()[:4])  # with children that have ended
    try:
        import psutil
    except ImportError:  # as where `python -m benchmarks gpu` runs with what it needs alone
        children = []
    else:
        children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):  # its time is now that of its parent
            own += sum(child.cpu_times()[:4])
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), own
