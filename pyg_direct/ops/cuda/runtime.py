"""`pinning.Runtime` over CuPy's binding of the CUDA runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..host_memory import usable_bytes
from .pinning import INVALID_VALUE, CudaError, tensor_at

# Of `cudaHostRegister` and `cudaHostAlloc`; from the CUDA runtime's headers.
PORTABLE, MAPPED, READ_ONLY = 1, 2, 8
CAN_USE_HOST_POINTER, READ_ONLY_SUPPORTED = 91, 113  # device attributes


class CupyRuntime:
    """The CUDA runtime that CuPy is linked with; it clears the error state when it raises.

    Args:
        cupy: the module.
    """

    def __init__(self, cupy: Any) -> None:
        self._runtime, self._error = cupy.cuda.runtime, cupy.cuda.runtime.CUDARuntimeError
        self.devices: set[int] = set()  # with kernels; on others a wait would open a context
        self.same_address = self._all_have(CAN_USE_HOST_POINTER)
        self._read_only = self._all_have(READ_ONLY_SUPPORTED)

    def _all_have(self, attribute: int) -> bool:
        devices = range(self._runtime.getDeviceCount())
        return all(self._runtime.deviceGetAttribute(attribute, device) for device in devices)

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory and map it for every GPU."""
        try:
            self._call(self._runtime.hostRegister, address, nbytes, PORTABLE | MAPPED)
        except CudaError as failure:
            # Pages that the process itself may not write, as of a file mapped read-only.
            if failure.code != INVALID_VALUE or not self._read_only:
                raise
            flags = PORTABLE | MAPPED | READ_ONLY
            self._call(self._runtime.hostRegister, address, nbytes, flags)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call(self._runtime.hostUnregister, address)

    def is_pinned(self, address: int) -> bool:
        """Whether the page is locked and mapped already."""
        return tensor_at(address, 1).is_pinned()

    def allocate(self, nbytes: int) -> int:
        """Return the address of new pinned and mapped memory."""
        return int(self._call(self._runtime.hostAlloc, nbytes, PORTABLE | MAPPED))

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""
        self._call(self._runtime.freeHost, address)

    def synchronize(self) -> None:
        """Wait for the GPUs that kernels were made for."""
        for device in tuple(self.devices):
            torch.cuda.synchronize(device)

    def available_bytes(self) -> int:
        """Return what can be had without swapping, and within the limits of a container."""
        return usable_bytes()

    def _call(self, function: Callable[..., Any], *arguments: int) -> Any:
        try:
            return function(*arguments)
        except self._error as error:
            raise CudaError(error.status, str(error).split(":")[0]) from None
