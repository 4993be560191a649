"""The host-memory calls of the CUDA runtime, faked: they keep books, and fail when told to."""

from __future__ import annotations

import ctypes
import mmap
import types

import torch
from torch import Tensor

from pyg_direct.ops.cuda.pinning import ALREADY_REGISTERED, PAGE_BYTES, CudaError, tensor_at

NOT_REGISTERED = 713


class OutOfBounds:
    """Something in a module that a walk over a batch has no business with."""

    @property
    def __dict__(self):
        raise AssertionError("a walk over a batch went into a module")


class FakeRuntime:
    """Registers nothing, but knows what is registered, page by page, and refuses as CUDA does.

    Attributes:
        fail: raised by the next calls of `register`, one after another; None lets one succeed.
        calls: (name, address, bytes) of every call that succeeded.
        ranges: what is registered: address -> bytes.
        foreign: ranges that others have registered.
        allocated: what `allocate` gave and was not freed.
        module: what the real runtime is called through.
        by_torch: memory that torch pinned itself: address -> the mapping.
    """

    def __init__(self) -> None:
        # As the real one does, which refers to a module of CuPy's.
        self.module = types.ModuleType("cupy.cuda.runtime")
        self.module.cupy = OutOfBounds()
        self.same_address = True
        self.fail: list[CudaError | None] = []
        self.fail_allocate: CudaError | None = None
        self.calls: list[tuple[str, int, int]] = []
        self.ranges: dict[int, int] = {}
        self.foreign: dict[int, int] = {}
        self.allocated: dict[int, mmap.mmap] = {}
        self.by_torch: dict[int, mmap.mmap] = {}
        self.available = 1 << 40

    def register(self, address: int, nbytes: int) -> None:
        failure = self.fail.pop(0) if self.fail else None
        if failure is not None:
            raise failure
        assert nbytes > 0, "CUDA refuses to register nothing"
        for first, size in (*self.ranges.items(), *self.foreign.items()):
            if _overlap(first, size, address, nbytes):
                raise CudaError(ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered")
        self.ranges[address] = nbytes
        self.calls.append(("register", address, nbytes))

    def unregister(self, address: int) -> None:
        if address not in self.ranges:
            raise CudaError(NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered")
        self.calls.append(("unregister", address, self.ranges.pop(address)))

    def is_pinned(self, address: int) -> bool:
        return any(first <= address < last for first, last in self._pinned_pages())

    def holds(self, tensor: Tensor) -> bool:
        """Whether every page of a tensor is pinned; torch itself looks at the first one."""
        if tensor.device.type != "cpu" or tensor.numel() == 0:
            return False
        at, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for first, end in sorted(self._pinned_pages()):
            if first <= at < end:
                at = end
        return at >= last

    def _pinned_pages(self) -> list[tuple[int, int]]:
        mapped = [
            (address, len(memory))
            for memories in (self.allocated, self.by_torch)
            for address, memory in memories.items()
        ]
        ranges = (*self.ranges.items(), *self.foreign.items(), *mapped)
        return [_page_range(first, size) for first, size in ranges]

    def allocate(self, nbytes: int) -> int:
        if self.fail_allocate is not None:
            raise self.fail_allocate
        address, memory = _mapped(nbytes)
        self.allocated[address] = memory
        self.calls.append(("allocate", address, nbytes))
        return address

    def free(self, address: int) -> None:
        del self.allocated[address]
        self.calls.append(("free", address, 0))

    def empty_pinned(self, shape: torch.Size, dtype: torch.dtype) -> Tensor:
        """Return memory as of torch's own cache of pinned memory."""
        nbytes = shape.numel() * dtype.itemsize
        if nbytes == 0:
            return torch.empty(shape, dtype=dtype)
        address, memory = _mapped(nbytes)
        self.by_torch[address] = memory
        tensor = tensor_at(address, nbytes, lambda: self.by_torch.pop(address))
        return tensor.view(dtype).view(shape)

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return a pinned copy, as `Tensor.pin_memory` does."""
        return self.empty_pinned(tensor.shape, tensor.dtype).copy_(tensor)

    def synchronize(self) -> None:
        self.calls.append(("synchronize", 0, 0))

    def available_bytes(self) -> int:
        return self.available

    def names(self) -> list[str]:
        """Return the names of all calls but `synchronize`."""
        return [name for name, _, _ in self.calls if name != "synchronize"]


def _mapped(nbytes: int) -> tuple[int, mmap.mmap]:
    memory = mmap.mmap(-1, nbytes)
    return ctypes.addressof(ctypes.c_char.from_buffer(memory)), memory


def _page_range(address: int, nbytes: int) -> tuple[int, int]:
    return address // PAGE_BYTES * PAGE_BYTES, -(-(address + nbytes) // PAGE_BYTES) * PAGE_BYTES


def _overlap(address: int, nbytes: int, other: int, other_nbytes: int) -> bool:
    """Whether two ranges of memory share a page."""
    (first, last), (low, high) = _page_range(address, nbytes), _page_range(other, other_nbytes)
    return first < high and low < last
