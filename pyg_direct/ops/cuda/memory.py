"""Memory that kernels fill: the emulator of the tests watches it by replacing these functions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..streams import T


class _Capturing(threading.local):
    is_on = False


_capturing = _Capturing()


def in_capture(work: Callable[[], T]) -> T:
    """Return what a call does whose launches are captured; in it, `upload` raises an error."""
    _capturing.is_on = True
    try:
        return work()
    finally:
        _capturing.is_on = False


def empty(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return uninitialised memory; every array that kernels fill comes from here."""
    return torch.empty(size, dtype=dtype, device=device)


def empty_pinned(shape: torch.Size, dtype: torch.dtype) -> Tensor:
    """Return uninitialised pinned host memory, of torch's cache."""
    return torch.empty(shape, dtype=dtype, pin_memory=True)


def upload(source: Tensor, device: torch.device) -> Tensor:
    """Return a host tensor's values on `device`, without waiting for the device.

    From pageable memory a copy waits for all earlier work on the stream. Pinned memory comes from
    torch's cache, which does not hand it out again before the copy is done.
    """
    if source.device.type != "cpu":
        return source.to(device)
    if _capturing.is_on:
        raise RuntimeError(
            f"A batch that is replayed as a CUDA graph needs {source.dtype} {tuple(source.shape)} "
            f"from the host, which would be that of the first batch in all others."
        )
    return source.pin_memory().to(device, non_blocking=True)


def upload_into(target: Tensor, source: Tensor) -> None:
    """Copy a host tensor's values to a tensor of the same shape, without waiting for its device."""
    target.copy_(source.pin_memory(), non_blocking=True)


def download(source: Tensor) -> Tensor:
    """Return a device tensor's values on the host, having waited for them.

    The thread sleeps until they have come; a plain copy would have it spin on a core.
    """
    module = torch.get_device_module(source.device)
    host = empty_pinned(source.shape, source.dtype)
    host.copy_(source, non_blocking=True)
    done = module.Event(blocking=True)
    done.record(module.current_stream(source.device))
    done.synchronize()
    return host


def begin_download(source: Tensor) -> Tensor:
    """Return pinned host memory that a device tensor's values are on their way to.

    The copy is put on the current stream; the values are there when that has got to its end.
    """
    return empty_pinned(source.shape, source.dtype).copy_(source, non_blocking=True)


def copy(target: Tensor, source: Tensor) -> None:
    """Copy what kernels wrote to where it goes on."""
    target.copy_(source)


def copied(source: Tensor) -> Tensor:
    """Return a copy of what kernels wrote."""
    target = empty(len(source), source.dtype, source.device)
    copy(target, source)
    return target


def grown(tensor: Tensor, room: int, kept: Sequence[tuple[int, int]] = ()) -> Tensor:
    """Return `tensor`, or a longer one that keeps some pieces (first element, length)."""
    if room <= len(tensor):
        return tensor
    longer = empty(room + room // 2, tensor.dtype, tensor.device)
    for first, size in kept:
        copy(longer[first : first + size], tensor[first : first + size])
    return longer
