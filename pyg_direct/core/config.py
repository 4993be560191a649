"""Environment variables, read and checked in one place."""

from __future__ import annotations

import os

import torch

DEVICE_VARIABLE = "PYG_DIRECT_DEVICE"
LOCAL_RANK_VARIABLE = "LOCAL_RANK"  # set by torchrun and Lightning, among others


def resolve_device(device: torch.device | str | int | None) -> torch.device | None:
    """Return the device that the argument names, else `PYG_DIRECT_DEVICE`; None if neither does.

    Raises:
        ValueError: see `as_device`.
    """
    source = "device"
    if device is None:
        device, source = os.environ.get(DEVICE_VARIABLE), DEVICE_VARIABLE
        if not device:
            return None
    return as_device(device, source)


def local_rank() -> int | None:
    """Return the rank among the processes of this machine, as launchers set it (`LOCAL_RANK`)."""
    text = os.environ.get(LOCAL_RANK_VARIABLE, "")
    return int(text) if text.isdigit() else None


def as_device(device: torch.device | str | int, source: str) -> torch.device:
    """Return the device that `device` names: the CPU, or a CUDA device, also just by its number.

    A number means a CUDA device with a torch that was built without CUDA, too, so that the error
    which follows says what is missing.

    Args:
        device: as the user gave it.
        source: where it is from, for the error.

    Raises:
        ValueError: it names neither.
    """
    number = isinstance(device, int) and not isinstance(device, bool)
    try:
        resolved = torch.device(f"cuda:{device}" if number else device)
    except (RuntimeError, TypeError):
        resolved = None
    if resolved is None or resolved.type not in ("cpu", "cuda"):
        raise ValueError(
            f"{source} must be 'cpu', 'cuda', or a GPU by its number, as 'cuda:0' or 0, got "
            f"{device!r}."
        )
    return resolved
