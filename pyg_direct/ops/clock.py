"""A clock for times that users are told: it stands still while kernels are compiled."""

from __future__ import annotations

from time import perf_counter

from ..kernels.jit import COMPILING


def now() -> float:
    """Return the seconds of `time.perf_counter` without those of compiling, in any thread."""
    instant = perf_counter()
    over, began = COMPILING.state
    return instant - over if began is None else COMPILING.without(instant)


def compiled_seconds() -> float:
    """Return how long this process has compiled kernels so far."""
    return COMPILING.seconds(perf_counter())
