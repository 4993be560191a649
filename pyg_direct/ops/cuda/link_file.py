"""What was measured of each GPU's link to host memory, kept on disk for later processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch

Measured = dict[str, int]  # bytes that must be under way to fill the link, by GPU


def link_file() -> Path:
    """Return the file: `pyg_direct/link.json` in the user's folder for caches."""
    folder = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(folder) / "pyg_direct" / "link.json"


def gpu_key(device: torch.device) -> str:
    """Return what tells a GPU from others, also in another process: its UUID, or its name."""
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", properties.name))


def read_link(key: str) -> int | None:
    """Return the bytes under way that fill a GPU's link, or None if they were not measured."""
    return _read().get(key)


def write_link(key: str, bytes_under_way: int) -> bool:
    """Keep what was measured, and return whether that was possible."""
    path = link_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({**_read(), key: bytes_under_way}, indent=1) + "\n")
        part.replace(path)  # other processes read it at any time
    except OSError:
        return False
    return True


def _read() -> Measured:
    try:
        found = json.loads(link_file().read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if type(value) is int and value > 0}
