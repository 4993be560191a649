"""Host memory that a GPU may read: registered where it lies, once, and for as long as it is needed.

`cudaHostRegister` page-locks memory and maps it for the GPU under the same address (unified virtual
addressing), so nothing is copied. It fails for many reasons, and what is registered must not be
freed before it is unregistered; both are dealt with here, over a runtime that tests can fake.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Protocol

import torch
from torch import Tensor

from ...core.units import size_text
from ..host_memory import lockable_bytes
from ..mappings import PAGE_BYTES, bytes_to_come

logger = logging.getLogger("pyg_direct")

CHUNK_BYTES = 256 << 30  # drivers were seen to refuse 512 GiB at once
SAID_BYTES = 4 << 30  # of what is registered or copied with a line in the log before
PROBE_BYTES = 1 << 30  # how densely memory is looked at that others may have registered

INVALID_VALUE, MEMORY_ALLOCATION = 1, 2
ALREADY_REGISTERED, NOT_PERMITTED, NOT_SUPPORTED = 712, 800, 801


class CudaError(Exception):
    """A call of the CUDA runtime that did not succeed; its error state is cleared.

    Args:
        code: the `cudaError_t`.
        name: what CUDA calls it.
    """

    def __init__(self, code: int, name: str) -> None:
        super().__init__(name)
        self.code, self.name = code, name


class PinningError(RuntimeError):
    """Memory that the GPU cannot be made to read; the message says which, why, and what helps."""


class Runtime(Protocol):
    """The calls of the CUDA runtime that deal with host memory; each may raise `CudaError`."""

    same_address: bool  # whether a GPU reads registered memory under the host's own address

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory and map it for every GPU."""

    def unregister(self, address: int) -> None:
        """Undo `register`, whose address it was."""

    def is_pinned(self, address: int) -> bool:
        """Whether the page is locked and mapped already, by whomever."""

    def allocate(self, nbytes: int) -> int:
        """Return the address of new pinned and mapped memory, on a page of its own."""

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""

    def synchronize(self) -> None:
        """Wait until no kernel that was launched so far reads anything any more."""

    def available_bytes(self) -> int:
        """Return how much memory the process can get more without swapping or being ended."""


class _Entry:
    """A range of pages that a GPU can read, and a storage on them, which must not be freed before.

    Example: storages that follow each other share a page. It is registered with the first
    one; the second one registers the pages after it, and leases the first.
    """

    def __init__(self, storage: torch.UntypedStorage) -> None:
        self.storage, self.address = storage, storage.data_ptr()
        first, last = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        self.first = first // PAGE_BYTES * PAGE_BYTES
        self.last = -(-last // PAGE_BYTES) * PAGE_BYTES
        self.owned: list[tuple[int, int]] = []  # first and last address of what is registered
        self.neighbours: list[_Entry] = []
        self.leases = 0


class Lease:
    """The right to let a GPU read some memory; ends with `close`, or when it is collected."""

    def __init__(
        self, registry: Registry, entry: _Entry | None, storage: torch.UntypedStorage
    ) -> None:
        self._finalizer = None
        if entry is not None:
            # Holds the storage, too: that of the entry may be another one on the same pages.
            self._finalizer = weakref.finalize(self, registry._end, entry, storage)
            # At exit the driver tears everything down itself, before memory is reused.
            self._finalizer.atexit = False

    def close(self) -> None:
        """Give the right back. Idempotent."""
        if self._finalizer is not None:
            self._finalizer()


class Registry:
    """All registrations of a process.

    Args:
        runtime: the CUDA runtime, or a fake.
        chunk_bytes: the most that is registered at once, a multiple of PAGE_BYTES.
    """

    def __init__(self, runtime: Runtime, chunk_bytes: int = CHUNK_BYTES) -> None:
        self.runtime, self._chunk_bytes = runtime, chunk_bytes
        self._entries: list[_Entry] = []
        self._lock = threading.Lock()
        # Leases end wherever the garbage collector runs, perhaps inside `lease` itself; so the end
        # of one is queued, and worked off by whoever can get the lock.
        self._ended: deque[tuple[_Entry, torch.UntypedStorage]] = deque()
        self._pid = os.getpid()

    def lease(self, tensor: Tensor, name: str) -> Lease:
        """Register the storage of a CPU tensor, unless it is registered, and keep it alive.

        Args:
            tensor: any view of the storage. An empty one needs no registration.
            name: what the user calls it, for messages.

        Raises:
            PinningError: CUDA refused.
        """
        storage = tensor.untyped_storage()
        if storage.nbytes() == 0:
            return Lease(self, None, storage)
        self._work_off()  # a range that is about to be left may overlap this one
        try:
            with self._lock:
                self._retire_moved()
                entry = self._find(storage) or self._register(storage, name)
                entry.leases += 1
        finally:
            self._work_off()
        return Lease(self, entry, storage)

    def pinned_copy(self, tensor: Tensor, name: str) -> Tensor:
        """Return a copy of a CPU tensor in pinned memory that begins at a page.

        Raises:
            PinningError: there is not enough memory.
        """
        nbytes = tensor.numel() * tensor.element_size()
        if nbytes == 0:
            return torch.empty_like(tensor)
        try:
            self._check_room(nbytes)
            _say("Copying %s (%s) to pinned memory, for the GPU.", name, nbytes)
            address = self.runtime.allocate(nbytes)
        except CudaError as failure:
            raise PinningError(_message(name, nbytes, "copied to pinned memory", failure)) from None
        memory = tensor_at(address, nbytes, partial(_free, self.runtime, address, self._pid))
        return memory.view(tensor.dtype).view(tensor.shape).copy_(tensor.detach())

    def cuts(self, tensor: Tensor) -> list[int]:
        """Return the bytes of a contiguous tensor at which one registration ends or begins.

        They are in [1, nbytes), in ascending order: in between, memory belongs to one registration
        or to none.
        """
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        with self._lock:
            ends = {end for entry in self._entries for owned in entry.owned for end in owned}
        return sorted(end - first for end in ends if first < end < last)

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy a CPU tensor to one of its shape and dtype on a device, or on the host.

        CUDA copies memory that is entirely registered, or not at all ("API synchronization
        behavior" in the driver's documentation), so what is registered in parts is copied by parts.

        Example: of a table whose first page another table has registered, that page is copied first
        and then the rest.
        """
        source = source.detach().resolve_conj().resolve_neg()
        cuts = self.cuts(source) if source.is_contiguous() else []
        if not cuts:
            target.copy_(source)
            return
        to, flat = (tensor.view(-1).view(torch.uint8) for tensor in (target, source))
        for first, last in pairwise([0, *cuts, len(flat)]):
            to[first:last].copy_(flat[first:last])

    def _find(self, storage: torch.UntypedStorage) -> _Entry | None:
        first, last = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        for entry in self._entries:
            if entry.first <= first and last <= entry.last:
                return entry
        return None

    def _retire_moved(self) -> None:
        """Forget the ranges that a storage has left, as by `share_memory_`.

        Its old memory was freed, and what lies there now is not registered.
        """
        lenders = {id(lender) for entry in self._entries for lender in entry.neighbours}
        for entry in list(self._entries):
            if entry.storage.data_ptr() != entry.address and id(entry) not in lenders:
                self.runtime.synchronize()
                self._entries.remove(entry)
                self._unregister(entry)

    def _register(self, storage: torch.UntypedStorage, name: str) -> _Entry:
        entry = _Entry(storage)
        overlapping = [e for e in self._entries if e.first < entry.last and entry.first < e.last]
        at = entry.first
        try:
            for other in sorted(overlapping, key=lambda e: e.first):
                self._register_pages(entry, at, other.first, name)
                at = max(at, other.last)
            self._register_pages(entry, at, entry.last, name)
        except CudaError as error:
            self._unregister(entry)
            message = _message(name, storage.nbytes(), "registered for the GPU", error)
            raise PinningError(message) from None
        for other in overlapping:
            other.leases += 1
        entry.neighbours = overlapping
        self._entries.append(entry)
        return entry

    def _register_pages(self, entry: _Entry, first: int, last: int, name: str) -> None:
        if first >= last:
            return
        probes = (*range(first, last, PROBE_BYTES), last - PAGE_BYTES)
        if all(self.runtime.is_pinned(address) for address in probes):
            return  # by the user, or by another library
        if not self.runtime.same_address:
            raise PinningError(
                f"{name} ({size_text(last - first)}) cannot be registered in place: this GPU "
                f"reads registered memory under other addresses."
            )
        self._check_room(bytes_to_come(first, last))
        _say("Registering %s (%s) for the GPU, which locks its pages.", name, last - first)
        for address in range(first, last, self._chunk_bytes):
            end = min(address + self._chunk_bytes, last)
            self.runtime.register(address, end - address)
            entry.owned.append((address, end))

    def _check_room(self, nbytes: int) -> None:
        """Raise unless so much memory can be had: whoever locks more is ended by the system."""
        if nbytes > self.runtime.available_bytes():
            raise CudaError(MEMORY_ALLOCATION, "nothing, but there is too little free RAM")

    def _end(self, entry: _Entry, storage: torch.UntypedStorage) -> None:
        if self._pid != os.getpid():
            return  # CUDA must not be called in a forked child, whose parent still has the lease
        self._ended.append((entry, storage))
        del storage  # it may be freed as soon as the queue lets go of it
        self._work_off()

    def _work_off(self) -> None:
        """Unregister what nobody needs any more. Who holds the lock comes here after it."""
        while self._ended and self._lock.acquire(blocking=False):
            try:
                entry, storage = self._ended.popleft()
                entry.leases -= 1
                if entry.leases == 0 or storage.data_ptr() != entry.storage.data_ptr():
                    self.runtime.synchronize()  # before the storage can be freed
                if entry.leases == 0:
                    if entry in self._entries:  # else its storage had moved
                        self._entries.remove(entry)
                    self._ended.extend((other, other.storage) for other in entry.neighbours)
                    self._unregister(entry)
                del storage
            except IndexError:  # another thread was faster
                pass
            finally:
                self._lock.release()

    def _unregister(self, entry: _Entry) -> None:
        while entry.owned:
            try:
                self.runtime.unregister(entry.owned.pop()[0])
            except CudaError as failure:
                warnings.warn(
                    f"Host memory could not be unregistered ({failure.name}). Was its storage "
                    f"resized or moved to shared memory while a loader used it?",
                    RuntimeWarning,
                    stacklevel=2,
                )


def _say(what: str, name: str, nbytes: int) -> None:
    """Say what the user waits for, of as much as takes a while."""
    if nbytes >= SAID_BYTES:
        logger.warning(what, name, size_text(nbytes))


def _free(runtime: Runtime, address: int, pid: int) -> None:
    if pid != os.getpid():  # as in `Registry._end`
        return
    runtime.synchronize()
    runtime.free(address)


def tensor_at(address: int, nbytes: int, when_freed: Callable[[], None] | None = None) -> Tensor:
    """Return the memory at an address as uint8 [nbytes].

    Args:
        address: of memory that lives as long as the tensor.
        nbytes: at least 1.
        when_freed: called once no tensor lies on the memory any more.
    """
    memory = (ctypes.c_uint8 * nbytes).from_address(address)
    if when_freed is not None:
        weakref.finalize(memory, when_freed).atexit = False
    return torch.frombuffer(memory, dtype=torch.uint8)


def _message(name: str, nbytes: int, what: str, failure: CudaError) -> str:
    """Return what went wrong, with which tensor, and what helps."""
    lockable = lockable_bytes()
    limit = "unlimited" if lockable is None else size_text(lockable)
    remedies = {
        MEMORY_ALLOCATION: (
            f"Not enough memory can be page-locked: this process may lock {limit} (ulimit -l; for "
            f"a container --ulimit memlock=-1), and the machine must have that much RAM free."
        ),
        ALREADY_REGISTERED: (
            "Another library has registered a part of it. Pass a tensor of its own (x.clone())."
        ),
        INVALID_VALUE: (
            "The driver cannot lock this kind of memory, as with files mapped read-only. Pass a "
            "tensor in ordinary memory (x.clone())."
        ),
    }
    remedies[NOT_PERMITTED] = remedies[NOT_SUPPORTED] = remedies[INVALID_VALUE]
    help_text = remedies.get(failure.code, "See the CUDA documentation of this error.")
    return (
        f"{name} ({size_text(nbytes)}) could not be {what}: CUDA says {failure.name}. {help_text}"
    )
