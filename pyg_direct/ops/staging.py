"""Tensors that go from a device to host memory and back; nothing waits for the whole device."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

import torch
from torch import Tensor


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return detached tensors in host memory: from a GPU in pinned memory, with one wait for all.

    The wait is for the current stream of the device. Tensors in host memory are returned as views.

    Args:
        tensors: all of one device.
    """
    found = [tensor.detach().to("cpu", non_blocking=True) for tensor in tensors]
    if any(tensor.is_cuda for tensor in tensors):
        torch.cuda.current_stream(tensors[0].device).synchronize()
    return found


def taken_from(tensors: Sequence[Tensor], devices: Container[str]) -> list[Tensor]:
    """Return detached tensors where somebody takes them from.

    Args:
        tensors: all of one device.
        devices: types of those from which they are taken; from others they go to the host.
    """
    if tensors[0].device.type in devices:
        return [tensor.detach() for tensor in tensors]
    return to_host(tensors)


def empty_for(device: torch.device, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor in host memory that is to go to a device by `to_device`."""
    return torch.empty(*shape, dtype=dtype, pin_memory=device.type == "cuda")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor from host memory on a device; if it is pinned, nobody waits for the copy."""
    return tensor.to(device, non_blocking=True)


def lists_on(device: torch.device, lists: Sequence[Tensor]) -> Sequence[Tensor]:
    """Return lists in host memory on a device; to a GPU by one copy that nobody waits for."""
    if device.type == "cpu":
        return lists
    whole: Any = empty_for(device, (sum(map(len, lists)),), lists[0].dtype)
    torch.cat(list(lists), out=whole)
    return torch.split(to_device(whole, device), [len(rows) for rows in lists])
