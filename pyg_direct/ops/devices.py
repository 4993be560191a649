"""Which backend serves which device."""

from __future__ import annotations

import warnings

import torch

from .backend import Backend


def best_device() -> torch.device:
    """Return the CUDA device that torch uses now, if one can be used, else the CPU.

    Warns where there is a GPU that only lacks software.
    """
    if torch.version.cuda is None or not torch.cuda.is_available():
        return torch.device("cpu")
    from .cuda.compiler import require_cuda

    device = torch.device("cuda", torch.cuda.current_device())
    try:
        require_cuda(device)
    except RuntimeError as error:
        warnings.warn(
            f"There is a GPU, but batches are made on the CPU: {error} To stay on the CPU without "
            f"this warning, pass device='cpu'.",
            RuntimeWarning,
            stacklevel=2,
        )
        return torch.device("cpu")
    return device


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

        return CudaBackend(device)
    raise NotImplementedError(
        f"No backend for device {str(device)!r}: use 'cpu', 'cuda' or 'cuda:0'."
    )
