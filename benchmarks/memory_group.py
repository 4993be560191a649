"""A limit of memory for a child process: a control group where there is one to be had."""

from __future__ import annotations

import contextlib
import functools
import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pyg_direct.tools import compiling

ROOT = Path("/sys/fs/cgroup")


class Limit(NamedTuple):
    """How a child process is limited."""

    how: str  # in words, for the report
    enter: Callable[[int], None]  # called with the id of a process, before that runs the program
    peak: Callable[[], int | None] = lambda: None  # bytes used at most, where that is known


@contextlib.contextmanager
def limited(limit_bytes: int, name: str = "") -> Iterator[Limit]:
    """Make a limit of memory, and remove it at the end.

    A control group (version 2, or the memory controller of version 1) counts anonymous memory and
    the cached pages of files; of these it takes back what is not in use. Where none can be made,
    RLIMIT_DATA limits anonymous memory only. Kernels are compiled before: within the limit the
    compiler would count, and be killed, in a new checkout.

    Args:
        limit_bytes: how much.
        name: tells the limits of one process apart.
    """
    _compile_kernels()
    name = f"pyg_direct-{os.getpid()}{name}"
    for parent, file in ((ROOT, "memory.max"), (ROOT / "memory", "memory.limit_in_bytes")):
        folder = parent / name
        if not (parent / "cgroup.procs").exists() or not _made(folder, file, limit_bytes):
            continue
        try:
            yield Limit(
                f"a control group ({file})", partial(_enter, folder), partial(_peak, folder)
            )
        finally:
            folder.rmdir()
        return
    limits = (limit_bytes, limit_bytes)
    yield Limit("RLIMIT_DATA", partial(_limit_data, limits))


@functools.cache
def _compile_kernels() -> None:
    compiling.compile_kernels()


def _made(folder: Path, file: str, limit_bytes: int) -> bool:
    try:
        folder.mkdir()
    except OSError:
        return False
    try:
        (folder / file).write_text(str(limit_bytes))
    except OSError:
        folder.rmdir()
        return False
    return True


def _enter(folder: Path, pid: int) -> None:
    (folder / "cgroup.procs").write_text(str(pid))


def _peak(folder: Path) -> int | None:
    for name in ("memory.peak", "memory.max_usage_in_bytes"):
        if (folder / name).exists():
            return int((folder / name).read_text())
    return None


def _limit_data(limits: tuple[int, int], pid: int) -> None:
    resource.prlimit(pid, resource.RLIMIT_DATA, limits)
