"""The stand-in's other side: schedules, counts, refusals, and faults.

It works in a process that has the stand-in loaded, by LD_PRELOAD as `build.build` returns it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

driver = ctypes.CDLL("libcuda.so.1")
# Of the major version that is loaded.
(_runtime,) = (p for p in os.environ["LD_PRELOAD"].split(":") if "libcudart.so." in p)
runtime = ctypes.CDLL(_runtime)
driver.standin_seen.restype = ctypes.c_long

DEVICE_MEMORY, PINNED_MEMORY, REGISTRATION = range(3)  # what can be refused


def set_schedule(name: str) -> None:
    """Choose when work runs from now on; what was submitted before runs now.

    Args:
        name: "eager", "lazy", or the seed of a random schedule.
    """
    number = {"eager": 0, "lazy": 1}.get(name, 2)
    driver.standin_schedule(number, ctypes.c_ulonglong(int(name) if number == 2 else 0))


def counts(reset: bool = False) -> dict[str, int]:
    """Return how often each counted call was made since the last reset."""
    return _numbers(lambda text, size: driver.standin_counts(text, size, int(reset)))


def holdings() -> dict[str, int]:
    """Return what there is now: allocations, registrations, events, streams, contexts, tasks."""
    return _numbers(driver.standin_holdings)


def contexts() -> list[int]:
    """Return the devices with a context."""
    return [
        int(name.split()[1])
        for name, number in holdings().items()
        if name.startswith("context") and number
    ]


def fault() -> str:
    """Return why the first device failed, or ""."""
    text = ctypes.create_string_buffer(1000)
    driver.standin_fault(text, len(text))
    return text.value.decode()


def left_out() -> str:
    """Return a kernel of torch that ran nowhere since the last reset, so that results are wrong."""
    return next((name for name in counts() if "left out" in name), "")


@contextlib.contextmanager
def uncounted() -> Iterator[None]:
    """Do not count what this thread calls."""
    driver.standin_counting(0)
    try:
        yield
    finally:
        driver.standin_counting(1)


@contextlib.contextmanager
def refused(kind: int, first: int, number: int) -> Iterator[Callable[[], int]]:
    """Refuse some calls.

    Args:
        kind: `DEVICE_MEMORY`, `PINNED_MEMORY` or `REGISTRATION`.
        first: number of the first one that fails.
        number: how many fail.

    Yields:
        A function that returns how many calls there have been, while this is open.
    """
    driver.standin_refuse(kind, ctypes.c_long(first), ctypes.c_long(number))
    try:
        yield lambda: int(driver.standin_seen(kind))
    finally:
        driver.standin_refuse(kind, ctypes.c_long(0), ctypes.c_long(0))


def _numbers(call: Callable[[ctypes.Array[ctypes.c_char], int], int]) -> dict[str, int]:
    text = ctypes.create_string_buffer(1 << 20)
    call(text, len(text))
    lines = (line.rsplit("\t", 1) for line in text.value.decode().splitlines())
    return {name: int(number) for name, number in lines}
