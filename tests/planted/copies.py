"""A copy of the tree, in which faults are planted and from which they are removed again."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .fault import ROOT, Fault

KERNELS = "pyg_direct/kernels"
COMPILED = "__pycache__"
Stamp = tuple[str, int, int]
"""Name, time of change and size of a file of kernels: what numba's cache goes by."""


class Copy:
    """The files that git knows, and those it would add, in another folder.

    Args:
        folder: a new one, or one of an earlier run, whose compiled kernels are used again.
    """

    def __init__(self, folder: Path) -> None:
        self.root = folder.resolve()
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, check=True, capture_output=True, text=True,
        )  # fmt: skip
        names = [name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]
        for name in names:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, target)
        self._compiled = self.root / KERNELS / COMPILED
        if not self._compiled.is_dir():
            for folder in _folders_of_compiled():
                shutil.copytree(folder, self._compiled, dirs_exist_ok=True)

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[Stamp | None]:
        """Plant a fault meanwhile; of a kernel, give the stamp of its file without it.

        Raises:
            ValueError: the text that it replaces is not there, or more than once.
        """
        if problem := fault.problem(self.root):
            raise ValueError(f"{fault.name!r} cannot be planted: {problem}.")
        path = self.root / fault.file
        text, state = path.read_text(encoding="utf-8"), path.stat()
        is_kernel, kept = fault.file.startswith(KERNELS), self.root / "compiled"
        if is_kernel:
            shutil.rmtree(kept, ignore_errors=True)
            if self._compiled.is_dir():  # its indices would be written anew
                shutil.copytree(self._compiled, kept, copy_function=os.link)
        path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
        try:
            yield (path.name, state.st_mtime_ns, state.st_size) if is_kernel else None
        finally:
            path.write_text(text, encoding="utf-8")
            os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns))
            if kept.is_dir():
                shutil.rmtree(self._compiled, ignore_errors=True)
                kept.rename(self._compiled)


def _folders_of_compiled() -> Iterator[Path]:
    """Yield where numba keeps the kernels of this tree."""
    beside = ROOT / KERNELS / COMPILED
    named = os.environ.get("NUMBA_CACHE_DIR")
    # As numba names them: the folder, and a hash of its path.
    folders = [*Path(named).glob("kernels_*")] if named else []
    yield from (folder for folder in [beside, *folders] if folder.is_dir())


def files_with(name: str, root: Path) -> set[str]:
    """Return the files of kernels whose machine code has that of one file in it."""
    texts = {path.name: path.read_text(encoding="utf-8") for path in (root / KERNELS).glob("*.py")}
    imported = {
        user: {f"{module}.py" for module in re.findall(r"^from \.(\w+) import", text, re.MULTILINE)}
        for user, text in texts.items()
    }
    found, before = {name}, 0
    while len(found) > before:
        before = len(found)
        found |= {user for user, modules in imported.items() if modules & found}
    return found
