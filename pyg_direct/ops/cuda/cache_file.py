"""JSON files in the user's folder for caches: what one process measured, for later ones."""

from __future__ import annotations

import json
import os
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
    """Return what a file holds; None if there is no such file, or no JSON in it."""
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
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        part.replace(path)
    except (OSError, RuntimeError):
        return False
    return True
