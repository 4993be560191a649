"""The directory that a conversion works in, beside the one that it makes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from types import TracebackType

from ...core.units import size_text
from ..arrays import ArrayWriter, Written
from ..save import publish
from .journal import STATE, Journal

FINISHED = "finished"
LOCK = "lock"
HARMLESS = {LOCK, "state.new"}  # what is left if a conversion ends before it has a state


class Workplace:
    """``OUT.part``, where a conversion to ``OUT`` keeps its files until it is whole.

    As a context, it is held for this process alone. A ValueError ends a conversion for good: what
    it read was wrong, and once that is changed, it would be another conversion.

    Args:
        out: where the graph is to be.
        overwrite: replace what is there.

    Raises:
        FileExistsError: there is something at `out`, or something else than a conversion at
            ``OUT.part``.
        BlockingIOError: another process is at work there.
    """

    def __init__(self, out: Path, overwrite: bool) -> None:
        self.out = Path(os.path.abspath(out))
        self.part = self.out.with_name(f"{self.out.name}.part")
        self.graph = self.part / "graph"
        self._overwrite = overwrite
        self._lock, self._begun = -1, False

    def __enter__(self) -> Workplace:
        unfinished = (self.part / STATE).exists()
        if self.part.exists() and not unfinished and {*os.listdir(self.part)} - HARMLESS:
            raise FileExistsError(f"{self.part} exists, but is no unfinished conversion: move it.")
        self.part.mkdir(parents=True, exist_ok=True)
        self._lock = os.open(self.part / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            _lock(self._lock)
        except OSError:
            os.close(self._lock)
            raise BlockingIOError(f"Another process is converting to {self.out}.") from None
        try:
            if not unfinished:
                self._refuse_to_replace()
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
            shutil.rmtree(self.part, ignore_errors=True)  # it cannot be gone on with
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
            self._refuse_to_replace()
            self.graph.mkdir(exist_ok=True)
        return journal

    def _refuse_to_replace(self) -> None:
        if os.path.lexists(self.out) and not self._overwrite:
            raise FileExistsError(f"{self.out} exists. Choose another path, or --overwrite it.")

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
            publish(self.graph, self.out)
        for path in self.part.iterdir():
            if path.name not in (STATE, LOCK):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        (self.part / STATE).unlink()  # last: until then, the rest is known to be ours
        shutil.rmtree(self.part)


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
