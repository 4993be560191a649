"""NVIDIA's run-time compiler, which may lie in a Python wheel where no dynamic loader looks.

It imports nothing of this package, so that a test can run it beside CuPy alone.
"""

from __future__ import annotations

import ctypes
import importlib.util
import sys
from pathlib import Path


def preload_nvrtc(major: int) -> Path | None:
    """Load `libnvrtc` of a major version of CUDA from NVIDIA's wheels, and return its path.

    CuPy 13 opens it by its name alone, which succeeds once it is loaded, wherever it lies. Nothing
    is done where the loader finds it by itself, and on other systems than Linux.
    """
    if not sys.platform.startswith("linux"):
        return None
    name = f"libnvrtc.so.{major}"
    try:
        ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    except OSError:
        pass
    else:
        return None
    for path in _in_wheels(name):
        try:
            ctypes.CDLL(str(path), mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return path
    return None


def _in_wheels(name: str) -> list[Path]:
    """Return where a library lies in NVIDIA's wheels, such as nvidia/cuda_nvrtc/lib."""
    spec = importlib.util.find_spec("nvidia")
    folders = [] if spec is None else list(spec.submodule_search_locations or ())
    return [path for folder in folders for path in sorted(Path(folder).glob(f"*/lib/{name}"))]
