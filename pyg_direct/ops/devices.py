"""Which device a process computes on, and which backend serves it."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from typing import NamedTuple

import torch

from .backend import Backend, WrongBatchesError

HOST = torch.device("cpu")


class Choice(NamedTuple):
    """A device, and why it was chosen."""

    device: torch.device
    reason: str


def ends_in_call(device: torch.device) -> bool:
    """Whether operations have ended when their calls return, so that a clock can time them."""
    return device.type == HOST.type


def wait_for(device: torch.device) -> None:
    """Wait until operations that were called so far have ended, on the device's current stream."""
    if not ends_in_call(device):
        torch.get_device_module(device).current_stream(device).synchronize()


def is_capturing(device: torch.device) -> bool:
    """Whether calls are noted for a CUDA graph in place of being run; then nothing may wait."""
    return not ends_in_call(device) and torch.cuda.is_current_stream_capturing()


def cuda_available() -> bool:
    """Whether torch finds a CUDA device (and not one of ROCm, which it calls so, too)."""
    return torch.version.cuda is not None and torch.cuda.is_available()


def process_device(data: Iterable[torch.device] = (), rank: int | None = None) -> Choice:
    """Return the device that this process computes on: where its data or its tensors are.

    The CUDA device of the data, if it is one. Else the one on which the process holds tensors, such
    as its model's. Of several, the current one; but torch's current device is 0 until somebody sets
    it, so `rank` tells more than 0, and more than a current device without tensors. Without any
    tensors on a GPU it is the CPU. Makes no CUDA context.

    Warns where the device cannot be used for lack of software, and returns the CPU.

    Args:
        data: devices of the tensors that batches are gathered from.
        rank: the process's number on this machine, if it is one of several (`LOCAL_RANK`).
    """
    if not cuda_available():
        return Choice(HOST, "torch finds no CUDA device")
    choice = _of_data(data) or _of_tensors(rank)
    if choice.device == HOST:
        return choice
    problem = _problem(choice.device)
    return choice if problem is None else Choice(HOST, problem)


def _of_data(data: Iterable[torch.device]) -> Choice | None:
    devices = {device for device in data if device.type == "cuda"}
    return Choice(devices.pop(), "the data is there") if len(devices) == 1 else None


def _of_tensors(rank: int | None) -> Choice:
    from .cuda.compiler import has_foreign_allocator

    held: dict[int, int] = {}  # bytes of tensors, by device
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        if has_foreign_allocator():  # which counts no bytes
            index = torch.cuda.current_device()
            if index == 0 and rank is not None and rank < torch.cuda.device_count():
                index = rank
            return Choice(torch.device("cuda", index), "the process uses it, by its own allocator")
        held = {i: torch.cuda.memory_allocated(i) for i in range(torch.cuda.device_count())}
    used = [index for index, nbytes in held.items() if nbytes > 0]
    if not used:
        return Choice(HOST, "the process has no tensors on a CUDA device")
    current = torch.cuda.current_device()
    if len(used) == 1:
        index, reason = used[0], "the process has tensors there"
    elif rank in used and current in (0, *(i for i in held if i not in used)):
        index, reason = rank, "of the devices with tensors of the process, LOCAL_RANK's"
    elif current in used:
        index, reason = current, "of the devices with tensors of the process, the current one"
    else:
        index = max(used, key=lambda i: held[i])
        reason = "of the devices with tensors of the process, the one with most"
    return Choice(torch.device("cuda", index), reason)


def _problem(device: torch.device) -> str | None:
    """Return why a CUDA device cannot be used, and warn of it; None if it can."""
    from .cuda.compiler import require_cuda

    try:
        require_cuda(device)
        self_check(device)
    except torch.cuda.OutOfMemoryError:
        raise  # no lack of software, and over when somebody frees memory
    except RuntimeError as error:
        warnings.warn(
            f"There is a GPU, but batches are made on the CPU: {error} To stay on the CPU without "
            f"this warning, pass device='cpu'.",
            RuntimeWarning,
            stacklevel=3,
        )
        return str(error)
    return None


def self_check(device: torch.device) -> str:
    """Check, once in a process, that a CUDA device makes the batches that the CPU makes.

    What was found is kept: that it does, or does not. Whatever kept the check from its end (no
    memory, an interrupt, a compiler that is missing) is raised, and the next call checks anew.

    Returns:
        What was done; see `cuda.certificate.check`.

    Raises:
        WrongBatchesError: it does not.
        torch.cuda.OutOfMemoryError: there is too little device memory at present.
        RuntimeError: kernels cannot be compiled or run; the message says what to do.
    """
    with _checking:
        if device not in _checked:
            _checked[device] = _self_check(device)
        found = _checked[device]
    if isinstance(found, WrongBatchesError):
        raise WrongBatchesError(*found.args) from found
    return found


def _self_check(device: torch.device) -> str | WrongBatchesError:
    from .cuda.backend import CudaBackend
    from .cuda.certificate import check

    backend = CudaBackend(device)
    backend.library.compiler.probe()
    try:
        return check(backend, backend.library.compiler.identity)
    except WrongBatchesError as error:
        return error


_checked: dict[torch.device, str | WrongBatchesError] = {}
_checking = threading.Lock()


def usable_device() -> torch.device:
    """Return torch's current CUDA device if a loader could use it, else the CPU, with a warning."""
    if not cuda_available():
        return HOST
    device = torch.device("cuda", torch.cuda.current_device())
    return device if _problem(device) is None else HOST


def backend_for(device: torch.device, threads: int = 1) -> Backend:
    """Return the backend of `device`.

    Args:
        device: where the batches shall be.
        threads: how many CPU threads may share one batch.

    Raises:
        NotImplementedError: no backend for such a device.
        RuntimeError: a CUDA device that cannot be used; the message says what is missing.
    """
    if device.type == "cpu":
        from .cpu.backend import CpuBackend

        return CpuBackend(threads)
    if device.type == "cuda":
        from .cuda.backend import CudaBackend

        backend = CudaBackend(device)
        self_check(backend.device)
        return backend
    raise NotImplementedError(
        f"No backend for device {str(device)!r}: use 'cpu', 'cuda' or 'cuda:0'."
    )
