"""Crashes of the machine, simulated in this process: nothing is written after one, and what was
not synced to disk is cut off."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pyg_direct.files import arrays

INPUTS = "raw"  # a folder whose files are not written by the work


class Crashed(BaseException):
    """The process ends here."""


class Disk:
    """What has happened to files below a folder, and what of it is on disk for certain.

    Args:
        root: the folder.
        moment: the number of the event before which everything ends; None for never.
    """

    def __init__(self, root: Path, moment: int | None) -> None:
        self._root, self._moment, self.events = root, moment, 0
        files = (path for path in root.rglob("*") if path.is_file())
        self._synced = {path.stat().st_ino: path.read_bytes() for path in files}

    def event(self) -> None:
        """Count an event; a machine that has crashed does nothing more."""
        if self._moment is not None and self.events >= self._moment:
            raise Crashed
        self.events += 1

    def sync(self, handle: int) -> None:
        """Keep the content of a file that is synced."""
        path = Path(f"/proc/self/fd/{handle}").resolve()
        if path.is_file():
            self._synced[os.fstat(handle).st_ino] = path.read_bytes()

    def lose(self) -> None:
        """Cut off what was written to files after they were synced; those of DuckDB take care."""
        for path in self._root.rglob("*"):
            if INPUTS in path.parts or ".duckdb" in path.name:
                continue
            if path.is_file() and not path.is_symlink():
                content, kept = path.read_bytes(), self._synced.get(path.stat().st_ino, b"")
                begin = len(kept) if content.startswith(kept) else 0
                end = begin + (len(content) - begin) // 2
                os.truncate(path, end)
                if path.suffix == ".npy":  # written through a map: as long as it was, with zeros
                    os.truncate(path, len(content))


@contextmanager
def disk_of(root: Path, moment: int | None = None) -> Iterator[Disk]:
    """Count what is done to files, up to a crash."""
    disk = Disk(root, moment)
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (os, "replace"), (arrays.ArrayWriter, "write"), (shutil, "rmtree"), (Path, "unlink"),
            (Path, "rmdir"), (Path, "mkdir"), (Path, "touch"),
        ):  # fmt: skip
            patch.setattr(owner, name, _counted(getattr(owner, name), disk.event))
        fsync = os.fsync

        def synced(handle: int) -> None:
            disk.event()
            fsync(handle)
            disk.sync(handle)

        patch.setattr(os, "fsync", synced)
        yield disk


def _counted(function: Any, event: Callable[[], None]) -> Any:
    def counted(*args: Any, **kwargs: Any) -> Any:
        event()
        return function(*args, **kwargs)

    return counted


def events_of(root: Path, work: Callable[[], object]) -> int:
    """Do some work, and return how many events it has."""
    with disk_of(root) as disk:
        work()
    return disk.events


def crashed(root: Path, work: Callable[[], object], moment: int) -> None:
    """Begin some work, which ends in a crash before an event."""
    with disk_of(root, moment) as disk:
        try:
            work()
        except Crashed:
            pass
        else:
            raise AssertionError(f"the work ended before its event {moment}")
    disk.lose()
