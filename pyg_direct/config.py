"""Environment variables, read and checked in one place."""

from __future__ import annotations

import os

import torch

DEVICE_VARIABLE = "PYG_DIRECT_DEVICE"


def resolve_device(device: torch.device | str | int | None) -> torch.device:
    """Return the device to work on: the argument, else `PYG_DIRECT_DEVICE`, else the CPU.

    Raises:
        ValueError: no such kind of device.
    """
    source = "device"
    if device is None:
        device = os.environ.get(DEVICE_VARIABLE) or "cpu"
        source = DEVICE_VARIABLE if os.environ.get(DEVICE_VARIABLE) else source
    try:
        resolved = torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{source} must name a device such as 'cpu', 'cuda' or 'cuda:0', got {device!r}."
        ) from error
    if resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"{source} must be a CPU or CUDA device, got {device!r}.")
    return resolved
