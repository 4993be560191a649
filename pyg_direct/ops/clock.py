"""A clock for times that users are told: it stands still while kernels are compiled or loaded."""

from __future__ import annotations

from math import inf
from time import perf_counter

from ..kernels.jit import COMPILING

instant = perf_counter  # read for each stage of each batch; `at` is asked when they are added up


def at(moment: float) -> float:
    """Return the clock's time at an `instant`: without compiling and loading before it."""
    return moment - COMPILING.seconds(moment)


def now() -> float:
    """Return the clock's time, in any thread."""
    return at(instant())


def compiled_until() -> float:
    """Return when kernels were last compiled or loaded: later, `at` takes off the same."""
    past, _, began = COMPILING.state
    if began is not None:
        return inf
    return past[-1][1] if past else -inf


def compiled_seconds() -> float:
    """Return how long this process has compiled and loaded kernels so far."""
    return COMPILING.seconds(instant())
