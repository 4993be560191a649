"""Recycled output memory for the CPU backend.

The first touch of fresh memory costs as much as writing a batch into it (a page fault per 4 KiB),
so blocks are used again, but only once no tensor refers to them: every tensor handed out lies
on a NumPy array of its own, which its storage keeps alive, and the block goes back to the pool when
that array dies. Views, slices, NumPy and DLPack exports and autograd all keep the storage alive, so
a batch that the user keeps is never overwritten. While a program works on each batch for so long
that fresh pages cost it next to nothing, blocks are freed with their tensors instead.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

MIN_BYTES = 1 << 16  # below, malloc reuses memory by itself and is quicker
# Fresh memory is touched at about 4 GB/s. A pause is long in which 20 times the memory in use could
# be touched: to have it fresh for each batch costs 5 % of such a pause at most.
TOUCHED_BYTES_PER_SECOND, LONG_PAUSE = 4e9, 20
ALWAYS_KEPT_BYTES = 1 << 24  # of small batches, whose memory nobody misses

Block = npt.NDArray[np.uint8]

NUMPY_DTYPES: dict[torch.dtype, type[np.generic]] = {
    getattr(torch, name): np.dtype(name).type
    for name in (
        "float32", "float64", "float16", "int64", "int32", "int16", "int8", "uint8", "bool",
        "complex64", "complex128",
    )
}  # fmt: skip


class _Borrowed(weakref.ref):  # type: ignore[type-arg]
    """A weak reference to an array handed out, which remembers its block."""

    __slots__ = ("block", "size")
    block: Block | None  # None once it was freed
    size: int  # of the block


class _Returned(deque[_Borrowed]):
    """Blocks that came back. Destructors fill it, in any thread, so it takes no lock."""

    keeps = True  # whether blocks wait for the next batch

    def take_back(self, lease: _Borrowed) -> None:
        if not self.keeps:
            lease.block = None
        self.append(lease)


class BufferPool:
    """Blocks of memory that return when their tensors die. Thread-safe, lock-free in destructors.

    Args:
        idle_factor: idle blocks are freed, oldest first, while they hold more than this many times
            the memory that is in use or was at the last peak.
    """

    def __init__(self, idle_factor: float = 1.0) -> None:
        self._lock = threading.Lock()
        self._idle: list[Block] = []
        self._leases: dict[int, _Borrowed] = {}  # by id: a weak reference hashes like its array
        self._returned = _Returned()
        self._idle_bytes = self._in_use_bytes = 0
        self._peak_bytes = 0.0
        self._last_take, self._pause_seconds = time.monotonic(), 0.0
        self._idle_factor = idle_factor
        self._pid = os.getpid()

    @property
    def idle_bytes(self) -> int:
        """Bytes that wait for the next batch."""
        with self._lock:
            self._collect()
            return self._idle_bytes

    @property
    def in_use_bytes(self) -> int:
        """Bytes that some tensor outside still refers to."""
        with self._lock:
            self._collect()
            return self._in_use_bytes

    def empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return an uninitialised CPU tensor with a storage of exactly its size."""
        return self.empties([(shape, dtype)])[0]

    def empties(self, wanted: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> list[Tensor]:
        """Return uninitialised CPU tensors, each with a storage of exactly its size."""
        tensors = []
        for shape, dtype in wanted:
            nbytes, known = dtype.itemsize, NUMPY_DTYPES.get(dtype)
            for size in shape:
                nbytes *= size
            if nbytes >= MIN_BYTES:
                tensors.append(self._leased(shape, dtype, known, nbytes))
            elif known is not None:  # past torch's dispatcher, which takes longer than to allocate
                tensors.append(torch.from_numpy(np.empty(shape, known)))
            else:
                tensors.append(torch.empty(shape, dtype=dtype))
        return tensors

    def _leased(self, shape: tuple[int, ...], dtype: torch.dtype, known: Any, size: int) -> Tensor:
        """Return a tensor on a block that comes back when it dies."""
        if self._pid != os.getpid():  # a forked child: the lock may be held by a thread of another
            self.__init__(self._idle_factor)  # type: ignore[misc]
        with self._lock:
            block = self._take(size)
            array = (
                np.ndarray(shape, known, block)
                if known is not None
                else np.ndarray(size, np.uint8, block)
            )
            lease = _Borrowed(array, self._returned.take_back)
            lease.block, lease.size = block, block.nbytes
            self._leases[id(lease)] = lease
        tensor = torch.from_numpy(array)
        return tensor if known is not None else tensor.view(dtype).view(shape)

    def _take(self, nbytes: int) -> Block:
        """Return a block, with the lock held."""
        now = time.monotonic()
        # The longest of late: a batch is several blocks, with one pause after the last of them.
        self._pause_seconds = max(now - self._last_take, 0.9 * self._pause_seconds)
        self._last_take = now
        long_seconds = LONG_PAUSE * self._peak_bytes / TOUCHED_BYTES_PER_SECOND
        is_small = self._peak_bytes <= ALWAYS_KEPT_BYTES
        self._returned.keeps = is_small or self._pause_seconds < long_seconds
        if self._returned:
            self._collect()
        best, least = -1, 2 * nbytes + 1
        for i, block in enumerate(self._idle):
            if nbytes <= (size := block.nbytes) < least:
                best, least = i, size
        if best >= 0:
            block = self._idle.pop(best)
            self._idle_bytes -= least
        else:
            block = _new_block(nbytes)
            least = block.nbytes
        self._in_use_bytes += least
        self._peak_bytes = max(self._in_use_bytes, 0.999 * self._peak_bytes)
        return block

    def _collect(self) -> None:
        """Take back what died since the last call, and free what is too much."""
        while self._returned:
            lease = self._returned.popleft()
            del self._leases[id(lease)]
            self._in_use_bytes -= lease.size
            if lease.block is not None:
                self._idle.append(lease.block)
                self._idle_bytes += lease.size
        limit = self._idle_factor * self._peak_bytes if self._returned.keeps else 0.0
        while self._idle_bytes > limit and self._idle:
            self._idle_bytes -= self._idle.pop(0).nbytes

    def __getstate__(self) -> dict[str, float]:
        return {"idle_factor": self._idle_factor}

    def __setstate__(self, state: dict[str, float]) -> None:
        self.__init__(state["idle_factor"])  # type: ignore[misc]


def _new_block(nbytes: int) -> Block:
    """Return fresh memory with room for a somewhat larger batch, on huge pages where it can be.

    NumPy asks the kernel for 2 MiB pages (madvise) from 4 MiB up; untouched pages cost nothing.
    """
    return np.empty(nbytes + nbytes // 8, np.uint8)


def grown(array: npt.NDArray[Any], room: int, known: int) -> npt.NDArray[Any]:
    """Return a longer array that keeps the first `known` elements."""
    longer = np.empty(room, array.dtype)
    longer[:known] = array[:known]
    return longer


_pool: weakref.ref[BufferPool] | None = None


def shared_pool() -> BufferPool:
    """Return the pool of this process, which is freed with the last backend that uses it.

    So a loader for validation writes its batches where those for training were.
    """
    global _pool
    pool = None if _pool is None else _pool()
    if pool is None:
        pool = BufferPool()
        _pool = weakref.ref(pool)
    return pool


def new_tensor(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return an uninitialised tensor; on the host of the pool of this process."""
    if device.type == "cpu":
        return shared_pool().empty(shape, dtype)
    return torch.empty(shape, dtype=dtype, device=device)


def new_bytes(count: int, device: torch.device) -> Tensor:
    """Return uninitialised uint8 [count]; see `new_tensor`."""
    return new_tensor((count,), torch.uint8, device)


@dataclass
class Resources:
    """What the batches of one backend share."""

    threads: int  # CPU threads that may share one batch
    pool: BufferPool  # memory of the tensors handed out
