"""Compiled once, kept on disk: shared libraries that g++ makes of generated sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

CACHE_VARIABLE = "PYG_DIRECT_EMULATOR_CACHE"


def build(
    name: str,
    source: str,
    options: Sequence[str],
    libraries: Sequence[str] = (),
    folders: Sequence[Path | str] = (),
    key: str = "",
) -> Path:
    """Return the shared library of a C++ text, from the cache if it is there.

    Args:
        name: begins the file's name.
        source: the text.
        options: of the compiler.
        libraries: options that go behind the source.
        folders: of headers; where they lie does not matter to the cache.
        key: what else the result depends on: the contents of headers, versions.

    Raises:
        RuntimeError: no g++, or the text does not compile.
    """
    sys.audit("tests.emulator")
    digest = hashlib.sha256("\0".join([*options, *libraries, key, source]).encode()).hexdigest()
    library = _cache_folder() / f"{name}-{digest[:24]}.so"
    if library.exists():
        return library
    compiler = shutil.which("g++")
    if compiler is None:
        raise RuntimeError("The emulator needs g++: install it, for example: apt install g++.")
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        path, built = Path(folder) / f"{name}.cpp", Path(folder) / f"{name}.so"
        path.write_text(source)
        headers = [f"-I{folder}" for folder in folders]
        command = [
            compiler,
            *options,
            *headers,
            "-fPIC",
            "-shared",
            "-o",
            str(built),
            str(path),
            *libraries,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"g++ failed on {library.stem}:\n{done.stderr[-4000:]}")
        built.replace(library)  # atomic: other processes compile the same at the same time
    return library


def _cache_folder() -> Path:
    named = os.environ.get(CACHE_VARIABLE)
    folder = Path(named) if named else Path(tempfile.gettempdir()) / "pyg_direct-emulator"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
