"""Environment variables, read and checked in one place."""

from __future__ import annotations

import os

import torch

DEVICE_VARIABLE = "PYG_DIRECT_DEVICE"
LOCAL_RANK_VARIABLE = "LOCAL_RANK"  # set by torchrun and Lightning, among others


def resolve_device(device: torch.device | str | int | None) -> torch.device | None:
    """Return the device that the argument names, else `PYG_DIRECT_DEVICE`; None if neither does.

    Raises:
        ValueError: no such kind of device.
    """
    source = "device"
    if device is None:
        device, source = os.environ.get(DEVICE_VARIABLE), DEVICE_VARIABLE
        if not device:
            return None
    resolved = as_device(device, source)
    if resolved.type not in ("cpu", "cuda"):
        raise ValueError(f"{source} must be a CPU or CUDA device, got {device!r}.")
    return resolved


def local_rank() -> int | None:
    """Return the rank among the processes of this machine, as launchers set it (`LOCAL_RANK`)."""
    text = os.environ.get(LOCAL_RANK_VARIABLE, "")
    return int(text) if text.isdigit() else None


def as_device(device: torch.device | str | int, source: str) -> torch.device:
    """Return the device that `device` names; `source` says in the error where the name is from.

    Raises:
        ValueError: torch knows no such device.
    """
    try:
        return torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"{source} must name a device such as 'cpu', 'cuda' or 'cuda:0', got {device!r}."
        ) from error
