"""How many cores other programs took in each round of a run.

torch's threads spin while they wait for each other, so beside another program their CPU time is
longer as well, not only their wall time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

import psutil

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

    def round(self) -> None:
        """End a round, with which the next one begins."""
        before, self._before = self._before, _now()
        wall, busy, own = (
            after - earlier for after, earlier in zip(self._before, before, strict=True)
        )
        self.cores.append(max(0.0, (busy - own) / wall))


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
    this = psutil.Process()
    own = sum(this.cpu_times()[:4])  # with children that have ended
    for child in this.children(recursive=True):
        try:
            own += sum(child.cpu_times()[:4])
        except psutil.NoSuchProcess:  # its time is now that of its parent
            continue
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), own
