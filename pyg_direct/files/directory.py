"""The directory of a saved graph: file names, atomic publication, and what it may replace."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from ..core.journal import sync_directory
from .header import HEADER, has_header

ARRAY_NAME = re.compile(r"[0-9]{3,}_[A-Za-z0-9_-]{0,100}\.bin")  # what `FileNames` gives
REPLACED = "overwrite=True (--overwrite) replaces saved graphs and empty directories only"


class FileNames:
    """File names for attributes: their own names where files can have those, and a number."""

    def __init__(self) -> None:
        self._count = 0

    def new(self, attribute: str) -> str:
        """Return a new name."""
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", attribute)[:100]
        self._count += 1
        return f"{self._count:03d}_{plain}.bin"


class NewDirectory:
    """A directory that appears at `path` when all is written, or not at all.

    As a context, it gives the folder to write into, beside `path`; without an error, that is moved
    to `path` at the end.

    Raises:
        FileExistsError: there is something at `path` that `check_replaceable` refuses, now or at
            the end.
    """

    def __init__(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        self._path, self._overwrite = Path(os.path.abspath(path)), overwrite
        check_replaceable(self._path, overwrite)

    def __enter__(self) -> Path:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._folder = Path(
            tempfile.mkdtemp(prefix=f".{self._path.name}.", suffix=".part", dir=self._path.parent)
        )
        self._folder.chmod(0o777 & ~_umask())
        return self._folder

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            try:
                publish(self._folder, self._path, self._overwrite)
                return
            except BaseException:
                shutil.rmtree(self._folder, ignore_errors=True)
                raise
        shutil.rmtree(self._folder, ignore_errors=True)


def publish(folder: Path, path: Path, overwrite: bool) -> None:
    """Move a finished directory to `path`, and replace what may be replaced there.

    Raises:
        FileExistsError: there is something that `check_replaceable` refuses.
    """
    sync_directory(folder)
    check_replaceable(path, overwrite)  # again: something may have appeared in the meantime
    if os.path.lexists(path):
        old = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".old", dir=path.parent))
        os.replace(path, old / path.name)
        os.replace(folder, path)
        shutil.rmtree(old, ignore_errors=True)
    else:
        os.replace(folder, path)
    sync_directory(path.parent)


def check_replaceable(path: Path, overwrite: bool) -> None:
    """Check that a new directory may replace what is at `path`.

    Without `overwrite`, nothing may be there; with it, an empty directory, or a saved graph of
    whatever version, complete or damaged, and nothing beside its files.

    Raises:
        FileExistsError: there is something else.
    """
    if not os.path.lexists(path):
        return
    if not overwrite:
        raise FileExistsError(
            f"{path} exists. Choose another path, or replace it with overwrite=True (--overwrite)."
        )
    if path.is_symlink():
        problem = f"is a symbolic link to {os.readlink(path)}"
    elif not path.is_dir():
        problem = "is not a directory"
    elif (name := foreign_name(path)) is not None:
        problem = f"holds {name!r}, which is not part of a saved graph"
    elif any(path.iterdir()) and not has_header(path):
        problem = f"is not a saved graph: it has no {HEADER} of one"
    else:
        return
    raise FileExistsError(
        f"{path} {problem}. {REPLACED}: move or remove it yourself, or choose another path."
    )


def foreign_name(folder: Path) -> str | None:
    """Return the name of a file in `folder` that no saved graph has, or None."""
    return next(
        (
            path.name
            for path in sorted(folder.iterdir())
            if not (path.name == HEADER or ARRAY_NAME.fullmatch(path.name)) or not is_plain(path)
        ),
        None,
    )


def is_plain(path: Path) -> bool:
    """Whether `path` is a regular file itself, rather than a link to one."""
    return stat.S_ISREG(path.lstat().st_mode)


def _umask() -> int:
    """Return the process's mask for new files, which can only be read by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
