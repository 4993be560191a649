"""The host-memory calls of the CUDA runtime, faked: they keep books, and fail when told to."""

from __future__ import annotations

import ctypes
import mmap

from pyg_direct.ops.cuda.pinning import ALREADY_REGISTERED, PAGE_BYTES, CudaError

NOT_REGISTERED = 713


class FakeRuntime:
    """Registers nothing, but knows what is registered, page by page, and refuses as CUDA does.

    Attributes:
        fail: raised by the next calls of `register`, one after another; None lets one succeed.
        calls: (name, address, bytes) of every call that succeeded.
        ranges: what is registered: address -> bytes.
        foreign: ranges that others have registered.
        allocated: what `allocate` gave and nobody freed.
    """

    def __init__(self) -> None:
        self.same_address = True
        self.fail: list[CudaError | None] = []
        self.fail_allocate: CudaError | None = None
        self.calls: list[tuple[str, int, int]] = []
        self.ranges: dict[int, int] = {}
        self.foreign: dict[int, int] = {}
        self.allocated: dict[int, mmap.mmap] = {}
        self.available = 1 << 40

    def register(self, address: int, nbytes: int) -> None:
        failure = self.fail.pop(0) if self.fail else None
        if failure is not None:
            raise failure
        assert nbytes > 0, "CUDA refuses to register nothing"
        for first, size in (*self.ranges.items(), *self.foreign.items()):
            if _pages(first, size) & _pages(address, nbytes):
                raise CudaError(ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered")
        self.ranges[address] = nbytes
        self.calls.append(("register", address, nbytes))

    def unregister(self, address: int) -> None:
        if address not in self.ranges:
            raise CudaError(NOT_REGISTERED, "cudaErrorHostMemoryNotRegistered")
        self.calls.append(("unregister", address, self.ranges.pop(address)))

    def is_pinned(self, address: int) -> bool:
        known = (*self.ranges.items(), *self.foreign.items())
        return any(_pages(address, 1) <= _pages(first, size) for first, size in known)

    def allocate(self, nbytes: int) -> int:
        if self.fail_allocate is not None:
            raise self.fail_allocate

        memory = mmap.mmap(-1, nbytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self.allocated[address] = memory
        self.calls.append(("allocate", address, nbytes))
        return address

    def free(self, address: int) -> None:
        del self.allocated[address]
        self.calls.append(("free", address, 0))

    def synchronize(self) -> None:
        self.calls.append(("synchronize", 0, 0))

    def available_bytes(self) -> int:
        return self.available

    def names(self) -> list[str]:
        """Return the names of all calls but `synchronize`."""
        return [name for name, _, _ in self.calls if name != "synchronize"]


def _pages(address: int, nbytes: int) -> frozenset[int]:
    return frozenset(range(address // PAGE_BYTES, (address + nbytes - 1) // PAGE_BYTES + 1))
