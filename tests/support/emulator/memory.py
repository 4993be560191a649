"""Memory of the emulated device that knows which of its bytes a kernel has written."""

from __future__ import annotations

import bisect
import ctypes
import threading

import numpy as np
import torch
from torch import Tensor

POISON = 0xCB


class EmulatorError(AssertionError):
    """A kernel did something that is wrong on a GPU."""


class Memory:
    """Knows which bytes of the arrays from `empty` have been written by a kernel.

    Keeps them alive, so that no other array can come to lie at a known address.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()  # producers of several loaders use one device
        self._addresses: list[int] = []  # ascending
        self._arrays: list[tuple[Tensor, np.ndarray, int]] = []  # with the address of the flags

    def empty(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        tensor = torch.empty(size, dtype=dtype, device=device)
        if tensor.numel() > 0:
            ctypes.memset(tensor.data_ptr(), POISON, tensor.nbytes)
            written = np.zeros(tensor.nbytes, np.uint8)
            with self._lock:
                at = bisect.bisect(self._addresses, tensor.data_ptr())
                self._addresses.insert(at, tensor.data_ptr())
                self._arrays.insert(at, (tensor, written, written.ctypes.data))
        return tensor

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy values, and what is known about them."""
        target.copy_(source)
        mine, theirs = self.written(target), self.written(source)
        if mine is not None:
            mine[:] = 1 if theirs is None else theirs

    def written(self, tensor: Tensor) -> np.ndarray | None:
        """Return the flags of a tensor's bytes, or None if it did not come from `empty`."""
        found = self._find(tensor.data_ptr(), tensor.nbytes)
        if found is None:
            return None
        first, flags, _ = found
        return flags[first : first + tensor.nbytes]

    def flags_at(self, address: int, nbytes: int) -> int:
        """Return the address of the flags of some bytes, or 0 if they did not come from `empty`."""
        found = self._find(address, nbytes)
        return 0 if found is None else found[2] + found[0]

    def _find(self, address: int, nbytes: int) -> tuple[int, np.ndarray, int] | None:
        """Return where in an array some bytes begin, its flags, and their address."""
        with self._lock:
            i = bisect.bisect(self._addresses, address) - 1
            if nbytes == 0 or i < 0:
                return None
            first, (_, flags, flags_address) = address - self._addresses[i], self._arrays[i]
        return None if first + nbytes > len(flags) else (first, flags, flags_address)

    def assert_written(self, tensor: Tensor, what: str) -> None:
        """Raise unless every byte of an output was written."""
        written = self.written(tensor)
        if written is not None and not written.all():
            raise EmulatorError(f"{what}: {int((written == 0).sum())} bytes were never written.")
