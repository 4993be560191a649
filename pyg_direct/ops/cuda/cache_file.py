"""What later processes find on disk: JSON files in the user's folder for caches, CuPy's kernels."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any


def cache_file(name: str) -> Path:
    """Return the path `pyg_direct/<name>` in the user's folder for caches.

    Raises:
        RuntimeError: the user has no home folder, and XDG_CACHE_HOME is not set.
    """
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "pyg_direct" / name


def read_json(name: str) -> Any:
    """Return what a file holds; None if there is no such file, or it is not valid JSON."""
    try:
        return json.loads(cache_file(name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RuntimeError):
        return None


def write_json(name: str, value: Any) -> bool:
    """Replace a file as a whole, and return whether that was possible.

    Processes that read it meanwhile find the old content or the new one.
    """
    try:
        path = cache_file(name)
        path.parent.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return False
    part = path.with_suffix(f".{os.getpid()}")
    try:
        part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk it is there, and takes room
            part.unlink()
        return False
    return True


CUPY_FOLDER, CUPY_IN_MEMORY = "CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"  # variables that CuPy reads
KERNEL_BYTES = 1 << 16  # of a compiled file, about


def choose_cupy_folder() -> None:
    """See to it that CuPy can keep compiled kernels, or does without.

    In its own folder, else beside our files, else a warning says that it keeps none. Called before
    CuPy is imported, as CuPy 14 makes its folder then, and fails where it cannot.
    """
    problem = _unwritable(_cupy_folder())
    if problem is None or os.environ.get(CUPY_IN_MEMORY) == "1":
        return
    try:
        ours = str(cache_file("cupy"))
    except RuntimeError:
        ours = ""
    if _unwritable(ours) is None:
        os.environ[CUPY_FOLDER] = ours
    else:
        keep_cupy_in_memory(problem)


def keep_cupy_in_memory(problem: OSError) -> None:
    """Let CuPy compile in each process, and say so.

    Raises:
        OSError: `problem`, as it does so already.
    """
    if os.environ.get(CUPY_IN_MEMORY) == "1":
        raise problem
    if not os.path.isdir(_cupy_folder()):
        os.environ[CUPY_FOLDER] = os.sep  # it makes no folder where there is one
    os.environ[CUPY_IN_MEMORY] = "1"
    warnings.warn(
        f"CuPy cannot keep compiled GPU kernels on disk ({type(problem).__name__}: {problem}), so "
        f"each process compiles them again, which takes some seconds. Set {CUPY_FOLDER} to a "
        f"writable folder.",
        RuntimeWarning,
        stacklevel=2,
    )


def _cupy_folder() -> str:
    return os.environ.get(CUPY_FOLDER, os.path.expanduser("~/.cupy/kernel_cache"))


def _unwritable(folder: str) -> OSError | None:
    """Return why a folder cannot be made, or no file of usual size in it; None if they can."""
    try:
        os.makedirs(folder, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(bytes(KERNEL_BYTES))
            file.flush()
    except OSError as error:
        return error
    return None
