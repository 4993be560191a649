"""The directory that a conversion works in, beside the one that it makes."""

from __future__ import annotations

import errno
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ...core.units import size_text
from ..arrays import ArrayWriter, Written
from ..directory import ARRAY_NAME, check_replaceable, publish
from ..header import HEADER
from .journal import STATE, Journal

FINISHED = "finished"
LOCK = "lock"
HARMLESS = {LOCK, "state.new"}  # what is left if a conversion ends before it has a state
ENDS = "indptr.work"  # where the neighbour lists end, in 64 bits until their number is known
SORT = "sort"  # where DuckDB puts what it sorts
OURS = re.compile(
    rf"{LOCK}|state\.new|{re.escape(STATE)}|{re.escape(ENDS)}|edges_[0-9]+\.duckdb[^/]*"
    rf"|{SORT}(/duckdb_temp[^/]*)?|graph(/({re.escape(HEADER)}|{ARRAY_NAME.pattern}))?"
)  # all names, from the folder, that a conversion gives


class Workplace:
    """``OUT.part``, where a conversion to ``OUT`` keeps its files until it is whole.

    As a context, it is held for this process only. A ValueError ends a conversion for good: what
    it read was wrong, and once that is changed, it would be another conversion.

    Args:
        out: where the graph is to be.
        overwrite: replace a saved graph there.

    Raises:
        FileExistsError: there is something at `out` that `check_replaceable` refuses, or something
            else than a conversion at ``OUT.part``.
        BlockingIOError: another process is at work there.
    """

    def __init__(self, out: Path, overwrite: bool) -> None:
        self.out = Path(os.path.abspath(out))
        self.part = self.out.with_name(f"{self.out.name}.part")
        self.graph = self.part / "graph"
        self._overwrite = overwrite
        self._lock, self._begun = -1, False

    def __enter__(self) -> Workplace:
        if os.path.lexists(self.part):
            self._check_part()
        unfinished = (self.part / STATE).exists()
        self.part.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.part / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(self._lock)
        except OSError:
            os.close(self._lock)
            raise BlockingIOError(f"Another process is converting to {self.out}.") from None
        try:
            if not unfinished:
                check_replaceable(self.out, self._overwrite)
        except FileExistsError:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if (isinstance(error, ValueError) and self._begun) or not (self.part / STATE).exists():
            self._remove()  # it cannot be gone on with
        os.close(self._lock)

    def begin(self, inputs: object) -> Journal:
        """Return the journal of a new conversion, or of the one to go on with.

        Raises:
            ValueError: it is of other inputs.
            FileExistsError: there is something at `out`, but the conversion is not finished.
        """
        journal = Journal(self.part, inputs)
        self._begun = True
        finished = journal.get(FINISHED) is not None
        if not finished:
            check_replaceable(self.out, self._overwrite)
            self.graph.mkdir(exist_ok=True)
        return journal

    def _check_part(self) -> None:
        """Raise a FileExistsError unless the folder is that of a conversion, with nothing else."""
        problem = "is not an unfinished conversion"
        if self.part.is_dir() and not self.part.is_symlink():
            foreign = [n for p, n in self._entries() if not OURS.fullmatch(n) or p.is_symlink()]
            if foreign:
                problem = f"holds {min(foreign)!r}, which no conversion wrote"
            elif (self.part / STATE).exists() or not {*os.listdir(self.part)} - HARMLESS:
                return
        raise FileExistsError(
            f"{self.part}, where the conversion would work, exists and {problem}: move it, or "
            f"choose another output directory."
        )

    def _entries(self) -> Iterator[tuple[Path, str]]:
        """Yield all paths in the folder, with their names from there; contents before folders."""
        for folder, folders, files in os.walk(self.part, topdown=False):
            for path in (Path(folder, name) for name in (*files, *folders)):
                yield path, path.relative_to(self.part).as_posix()

    def _remove(self) -> None:
        """Remove the folder, but nothing in it that has another name than a conversion gives."""
        for path, name in self._entries():
            if OURS.fullmatch(name) and name not in (STATE, LOCK):
                with suppress(OSError):
                    path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        with suppress(OSError):
            (self.part / STATE).unlink(missing_ok=True)  # until then, the rest is known to be ours
            (self.part / LOCK).unlink(missing_ok=True)
            self.part.rmdir()

    def used_bytes(self) -> int:
        """Return how much of the disk its files take."""
        return sum(path.stat().st_size for path in self.part.rglob("*") if path.is_file())

    def check_space(self, needed_bytes: int) -> None:
        """Look whether there is room for all that is to be written.

        Raises:
            OSError: there is not (ENOSPC).
        """
        free = shutil.disk_usage(self.part).free
        missing = needed_bytes - self.used_bytes() - free
        if missing > 0:
            raise OSError(
                errno.ENOSPC,
                f"The conversion takes about {size_text(needed_bytes)} on the disk of "
                f"{self.part.parent}, where {size_text(free)} are free: {size_text(missing)} are "
                f"missing",
            )

    def publish(self, journal: Journal) -> None:
        """Move the graph to its place, and remove everything else."""
        journal.record(FINISHED, True)
        if self.graph.exists():
            publish(self.graph, self.out, self._overwrite)
        self._remove()


def _lock(handle: int) -> None:
    """Lock a file for this process, where the system can do that; its end unlocks it."""
    if os.name == "posix":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def writer_behind(
    path: Path, dtype: str, row_shape: tuple[int, ...], written: Written
) -> ArrayWriter:
    """Return a writer of an array file that goes on behind what is known to be written."""
    return ArrayWriter(path, dtype, row_shape, written if path.exists() else None)
