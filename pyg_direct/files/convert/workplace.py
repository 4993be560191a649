"""The work directory of a conversion, beside its result."""

from __future__ import annotations

import errno
import os
import re
import shutil
from pathlib import Path
from types import TracebackType

from ...core.journal import Journal, WorkFolder, WorkKind
from ...core.units import size_text
from ..arrays import ArrayWriter, Written
from ..directory import ARRAY_NAME, check_replaceable, publish
from ..header import HEADER

FINISHED = "finished"
ENDS = "indptr.work"  # where the neighbour lists end, in 64 bits until their number is known
SORT = "sort"  # where DuckDB puts what it sorts
CONVERSION = WorkKind(
    "conversion",
    "state.json",
    rf"{re.escape(ENDS)}|edges_[0-9]+\.duckdb[^/]*|{SORT}(/duckdb_temp[^/]*)?"
    rf"|graph(/({re.escape(HEADER)}|{ARRAY_NAME.pattern}))?",
)


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
        self._folder = WorkFolder(self.part, CONVERSION)
        self._overwrite, self._begun = overwrite, False

    def __enter__(self) -> Workplace:
        unfinished = self._folder.is_begun
        self._folder.hold()
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
        try:
            if (isinstance(error, ValueError) and self._begun) or not self._folder.is_begun:
                self._folder.remove()  # it cannot be gone on with
        finally:
            self._folder.release()

    def begin(self, inputs: object) -> Journal:
        """Return the journal of a new conversion, or of the one to continue.

        Raises:
            ValueError: it is of other inputs.
            FileExistsError: there is something at `out`, but the conversion is not finished.
        """
        journal = self._folder.journal(inputs)
        self._begun = True
        finished = journal.get(FINISHED) is not None
        if not finished:
            check_replaceable(self.out, self._overwrite)
            self.graph.mkdir(exist_ok=True)
        return journal

    def used_bytes(self) -> int:
        """Return the disk space of its files, in bytes."""
        return sum(path.stat().st_size for path in self.part.rglob("*") if path.is_file())

    def check_space(self, needed_bytes: int) -> None:
        """Check that the disk has room for all files.

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
        self._folder.remove()


def writer_behind(
    path: Path, dtype: str, row_shape: tuple[int, ...], written: Written
) -> ArrayWriter:
    """Return a writer of an array file that appends to the part that the journal knows."""
    return ArrayWriter(path, dtype, row_shape, written if path.exists() else None)
