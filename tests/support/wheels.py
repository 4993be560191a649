"""Wheels of the package index in folders of their own, beside the environment of the tests."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest


@cache
def wheel_folder(*requirements: str) -> Path:
    """Install wheels into a folder, without what they depend on, and return it.

    The folder is kept for later runs. Skips the test if the wheels cannot be had.
    """
    name = "_".join(requirements).replace("=", "-")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = Path(tempfile.gettempdir()) / "pyg_direct-wheels" / f"{python}-{name}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        part = Path(tempfile.mkdtemp(dir=folder.parent))
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps",
                   "--only-binary=:all:", "--target", str(part), *requirements]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["pip failed"])[-1]
            pytest.skip(f"{', '.join(requirements)} cannot be had: {reason}")
        try:
            part.rename(folder)
        except OSError:  # another process was first
            assert folder.exists()
    return folder
