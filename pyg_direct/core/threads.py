"""Threads that share the work of one batch.

numba's own threading layers are avoided: `workqueue` aborts the process when two threads enter it,
and a fork after OpenMP was used aborts too. The kernels are serial and release the GIL, so plain
Python threads do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from typing import TypeVar

T = TypeVar("T")

MIN_EDGES_PER_THREAD = 1 << 18  # of work on a whole graph, when a loader is built

_lock = threading.Lock()
_executor: ThreadPoolExecutor | None = None


def _forget_after_fork() -> None:
    """Threads do not survive a fork, and a lock may have been held by one that is gone."""
    global _lock, _executor
    _lock = threading.Lock()
    _executor = None


def after_fork_in_child(function: Callable[[], None]) -> None:
    """Call `function` in every forked child; Windows, which cannot fork, needs no call."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


after_fork_in_child(_forget_after_fork)


def available_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_all(tasks: Sequence[Callable[[], T]]) -> list[T]:
    """Run `tasks` at the same time, the first in this thread, and return their results in order."""
    global _executor
    if len(tasks) <= 1:
        return [task() for task in tasks]
    with _lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(available_cores(), "pyg_direct-cpu")
        executor = _executor
    futures: list[Future[T]] = [executor.submit(task) for task in tasks[1:]]
    try:
        results = [tasks[0]()]
    finally:
        for future in futures:
            future.exception()  # wait: the tasks write to memory that the caller owns
    return results + [future.result() for future in futures]


def split(n: int, pieces: int, task: Callable[[int, int], None]) -> None:
    """Run ``task(first, last)`` over contiguous ranges that cover [0, n), at the same time."""
    if pieces <= 1:
        task(0, n)
        return
    pieces = min(pieces, n)
    cuts = [n * i // pieces for i in range(pieces + 1)]
    run_all([partial(task, a, b) for a, b in pairwise(cuts)])
