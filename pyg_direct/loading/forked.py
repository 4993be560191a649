"""torch in a forked child, where the threads of OpenMP that the parent had are gone.

torch would wait for them for ever in any operation that it divides among threads, `randperm` and
`nonzero` of some ten thousand entries too. PyTorch's own workers set the number of threads to 1;
here that holds only while a loader works, so that nothing changes for the user's program.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import torch

from ..core.threads import after_fork_in_child

P = ParamSpec("P")
R = TypeVar("R")

_forked = False  # whether this process is a child of one that had imported this module


class _Given(threading.local):
    threads: int | None = None  # the user's number, while torch has one thread


_given = _Given()


def _remember() -> None:
    global _forked
    _forked = True


after_fork_in_child(_remember)


def torch_threads() -> int:
    """Return how many threads the user lets torch have."""
    return _given.threads or torch.get_num_threads()


def serial_after_fork(function: Callable[P, R]) -> Callable[P, R]:
    """Return `function` such that, in a forked child, torch has one thread while it runs."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        if not _forked or _given.threads is not None:
            return function(*args, **kwargs)
        _given.threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_num_threads(_given.threads)
            _given.threads = None

    return run


class SerialAfterFork:
    """A base of loaders, of whose subclasses these methods are `serial_after_fork`."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name in ("__init__", "__call__", "__iter__", "collate_fn", "filter_fn"):
            if name in vars(cls):
                setattr(cls, name, serial_after_fork(vars(cls)[name]))
