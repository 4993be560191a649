"""Work on disk that can be resumed: its folder, held by one process, and a journal of its steps."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

LOCK = "lock"
VERSION = 1


class WorkKind(NamedTuple):
    """A kind of work that is kept in a folder until it is finished.

    Args:
        noun: what it is called: "conversion".
        state: name of the file of its journal, which shows that a folder is one of such work.
        names: pattern of all other names that it gives, from the folder, with "/" between parts.
        given: what it depends on, for errors.
    """

    noun: str
    state: str
    names: str
    given: str = "files and options"

    @property
    def new_state(self) -> str:
        """Name of the file that becomes the journal."""
        return f"{self.state.removesuffix('.json')}.new"

    def owns(self, name: str) -> bool:
        """Whether a name is one that the work gives."""
        own = (LOCK, self.state, self.new_state)
        return name in own or re.fullmatch(self.names, name) is not None


class WorkFolder:
    """The folder that work is kept in, held by one process from `hold` to `release`.

    Args:
        path: of the folder; made by `hold` if it is not there.
        work: what is done in it.
    """

    def __init__(self, path: Path, work: WorkKind) -> None:
        self.path, self.work = path, work
        self._handle = -1

    @property
    def is_begun(self) -> bool:
        """Whether there is a journal of earlier work."""
        return (self.path / self.work.state).exists()

    def hold(self) -> None:
        """Take the folder for this process.

        Raises:
            FileExistsError: it is not a folder of such work, or holds other files.
            BlockingIOError: another process works there.
        """
        if problem := self.problem():
            raise FileExistsError(
                f"{self.path}, where the {self.work.noun} would work, exists and {problem}: move "
                f"it, or choose another output."
            )
        self.path.mkdir(parents=True, exist_ok=True)
        lock = self.path / LOCK
        self._handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock_file(self._handle)
            same = os.path.samestat(os.fstat(self._handle), os.stat(lock))
        except OSError:  # or the process that held the folder has just removed it
            same = False
        if not same:
            self.release()
            raise BlockingIOError(f"Another process is at work in {self.path}.")

    def release(self) -> None:
        """Let other processes take the folder."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def journal(self, inputs: Any) -> Journal:
        """Return the journal of new work, or of that to be resumed.

        Raises:
            ValueError: it is of other inputs, or damaged.
        """
        return Journal(self.path, self.work, inputs)

    def remove(self) -> None:
        """Remove the folder, but nothing in it that has another name than the work gives.

        The journal goes last: until then, the rest is known to be of such work.
        """
        kept = (self.work.state, LOCK)
        for path, name in self._entries():
            if self.work.owns(name) and name not in kept:
                with suppress(OSError):
                    path.unlink() if path.is_symlink() or not path.is_dir() else path.rmdir()
        with suppress(OSError):
            for name in kept:
                (self.path / name).unlink(missing_ok=True)
            self.path.rmdir()

    def problem(self) -> str:
        """Say why the path is not a folder of such work; "" if it is one, or missing."""
        if not os.path.lexists(self.path):
            return ""
        if self.path.is_dir() and not self.path.is_symlink():
            foreign = [n for p, n in self._entries() if p.is_symlink() or not self.work.owns(n)]
            if foreign:
                return f"holds {min(foreign)!r}, which no {self.work.noun} wrote"
            if self.is_begun or not {*os.listdir(self.path)} - {LOCK, self.work.new_state}:
                return ""
        return f"is not an unfinished {self.work.noun}"

    def _entries(self) -> Iterator[tuple[Path, str]]:
        """Yield all paths in the folder, with their names from there; contents before folders."""
        for folder, folders, files in os.walk(self.path, topdown=False):
            for path in (Path(folder, name) for name in (*files, *folders)):
                yield path, path.relative_to(self.path).as_posix()


class Journal:
    """Values of finished steps, kept in a file that is replaced as a whole.

    Args:
        folder: where the file is.
        work: of which kind.
        inputs: what the work depends on: nested dicts and lists of what JSON can hold.

    Raises:
        ValueError: the folder holds work of other inputs, and the difference is named; or the file
            is damaged.
    """

    def __init__(self, folder: Path, work: WorkKind, inputs: Any) -> None:
        self._path, self._new = folder / work.state, folder / work.new_state
        self._content: dict[str, Any] = {"version": VERSION, "inputs": inputs, "steps": {}}
        remedy = f"Give the same {work.given} again, or remove {folder} to start anew."
        if not self._path.exists():
            self._write()
            return
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            known = {name: found[name] for name in ("version", "inputs", "steps")}
            dict(found["steps"])
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self._path} is damaged ({error}). {remedy}") from None
        other = difference({"version": VERSION}, {"version": known["version"]})
        other = other or difference(inputs, known["inputs"])
        if other:
            raise ValueError(
                f"{folder} holds an unfinished {work.noun} of something else: {other}. {remedy}"
            )
        self._content = found

    def get(self, step: str) -> Any:
        """Return what was recorded for a step, None if nothing was."""
        return self._content["steps"].get(step)

    def record(self, step: str, value: Any) -> None:
        """Have `value` on disk as that of `step`.

        Raises:
            OSError: it cannot be written; what was recorded before is still there.
        """
        self._content["steps"][step] = value
        self._write()

    def _write(self) -> None:
        with open(self._new, "w", encoding="utf-8") as file:
            json.dump(self._content, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(self._new, self._path)
        sync_directory(self._path.parent)


def difference(now: Any, before: Any, name: str = "") -> str:
    """Say where two values differ first, "" if they do not."""
    if isinstance(now, Mapping) and isinstance(before, Mapping):
        for key in [*now, *before]:
            path = f"{name}.{key}" if name else str(key)
            if key not in now or key not in before:
                return f"{path} was {'not ' if key not in before else ''}given then"
            if found := difference(now[key], before[key], path):
                return found
        return ""
    if isinstance(now, list) and isinstance(before, list) and len(now) == len(before):
        pairs = enumerate(zip(now, before, strict=True))
        return next((d for i, (a, b) in pairs if (d := difference(a, b, f"{name}[{i}]"))), "")
    return "" if now == before else f"{name} is {now!r}, and was {before!r}"


def lock_file(handle: int) -> None:
    """Lock a file for this process, where the system can do that; its end unlocks it.

    Raises:
        OSError: another process has locked it.
    """
    if os.name == "posix":
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)


def sync_file(path: Path) -> None:
    """Have on disk what was written to a file, also through a map of it."""
    handle = os.open(path, os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_directory(folder: Path) -> None:
    """Have the names in `folder` on disk, where the system can do that."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
