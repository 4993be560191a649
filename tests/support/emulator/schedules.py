"""Runs of a batch in all schedules of its launches: which ones are left, and what they end in."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Iterator

import numpy as np

Schedule = bytes  # the thread of each step, as uint16


class Exploration(ctypes.Structure):
    """One launch's schedules: `EmulatorExploration` of `entry.h`."""

    _fields_ = [
        ("limit", ctypes.c_uint64),
        ("reduce", ctypes.c_int),
        ("schedule", ctypes.c_void_p),
        ("steps", ctypes.c_uint64),
        ("schedules", ctypes.c_uint64),
        ("outcomes", ctypes.c_uint64),
    ]

    @property
    def pointer(self) -> ctypes.c_void_p:
        return ctypes.cast(ctypes.byref(self), ctypes.c_void_p)


class Schedules:
    """Explores launches one after another, and goes on behind each of their different outcomes.

        for _ in schedules.runs():
            ...  # the same launches each time; every combination of outcomes comes up once

    A launch is run in all its schedules; they may leave memory differently (the slots of a hash
    table depend on who came first), and then the launches behind it are run once for each.

    Args:
        kernels: names of those that are explored; others run in the order of the device.
        limit: of the schedules of a launch; more are an error.
        reduce: whether to leave out schedules that differ in the order of independent accesses
            only: see `explore.h`.

    Attributes:
        schedules: how many were run, by kernel.
    """

    def __init__(self, kernels: Collection[str], limit: int = 100_000, reduce: bool = True) -> None:
        self._kernels, self._limit, self._reduce = kernels, limit, reduce
        self._path: list[Schedule] = []  # of the launches explored so far in this run
        self._follow: list[Schedule] = []
        self._left: list[list[Schedule]] = [[]]
        self.schedules: dict[str, int] = dict.fromkeys(kernels, 0)

    def runs(self) -> Iterator[None]:
        """Yield as long as there are outcomes behind which nothing has been run yet."""
        while self._left:
            self._follow, self._path = self._left.pop(), []
            yield

    def begin(self, kernel: str) -> Exploration | None:
        """Return how a launch shall run; None: in one order."""
        if kernel not in self._kernels:
            return None
        self._kernel = kernel
        at = len(self._path)
        if at < len(self._follow):
            self._steps = np.frombuffer(self._follow[at], np.uint16)
            return Exploration(schedule=self._steps.ctypes.data, steps=len(self._steps))
        return Exploration(limit=self._limit, reduce=self._reduce)

    def end(self, exploration: Exploration, library: ctypes.CDLL) -> None:
        """Note the outcomes of a launch."""
        if exploration.limit == 0:
            self._path.append(self._follow[len(self._path)])
            return
        self.schedules[self._kernel] += exploration.schedules
        found = [_outcome(library, number) for number in range(exploration.outcomes)]
        self._left += [[*self._path, schedule] for schedule in found[1:]]
        self._path.append(found[0])


def _outcome(library: ctypes.CDLL, number: int) -> Schedule:
    steps = ctypes.c_uint64()
    address = library.emulator_outcome(ctypes.c_uint64(number), ctypes.byref(steps))
    return ctypes.string_at(address, 2 * steps.value) if steps.value else b""
