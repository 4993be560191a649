"""What was measured of each GPU's link to host memory, kept on disk for later processes."""

from __future__ import annotations

import torch

from .cache_file import read_json, write_json

NAME = "link.json"
Measured = dict[str, int]  # bytes that must be under way to fill the link, by GPU


def gpu_key(device: torch.device) -> str:
    """Return what tells a GPU from others, also in another process: its UUID, or its name."""
    properties = torch.cuda.get_device_properties(device)
    return str(getattr(properties, "uuid", properties.name))


def read_link(key: str) -> int | None:
    """Return the bytes under way that fill a GPU's link, or None if they were not measured."""
    return _read().get(key)


def write_link(key: str, bytes_under_way: int) -> bool:
    """Keep what was measured, and return whether that was possible."""
    return write_json(NAME, {**_read(), key: bytes_under_way})


def _read() -> Measured:
    found = read_json(NAME)
    if not isinstance(found, dict):
        return {}
    return {key: value for key, value in found.items() if type(value) is int and value > 0}
