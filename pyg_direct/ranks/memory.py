"""Shared memory without a name: it is freed with the last process that maps it, killed or not."""

from __future__ import annotations

import os
import weakref
from multiprocessing import reduction
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.private_torch import storage_in
from ..core.units import size_text
from ..ops.host_memory import usable_bytes


class Block:
    """The elements of one tensor in shared memory (Linux's `memfd_create`).

    Pickled for a spawned process, it hands over the memory and not what is in it. `Offer` does so
    for processes that have nothing else in common.

    Args:
        handle: file descriptor of the memory, which is closed with the block.
        dtype: of the elements.
        shape: of the tensor, row by row.
    """

    def __init__(self, handle: int, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
        self.handle, self.dtype, self.shape = handle, dtype, shape
        weakref.finalize(self, os.close, handle)

    def tensor(self) -> Tensor:
        """Return a tensor in this memory; torch hands it over to other processes as it is."""
        like = torch.empty(self.shape, dtype=self.dtype, device="meta")
        if like.nbytes == 0:
            return torch.empty(self.shape, dtype=self.dtype)
        storage = storage_in(os.dup(self.handle), like.nbytes)
        return torch.empty(0, dtype=self.dtype).set_(storage, 0, self.shape, like.stride())

    def offer(self) -> Offer:
        """Return what another process of this machine can map the memory by, while this lives."""
        state = os.fstat(self.handle)
        return Offer(os.getpid(), self.handle, (state.st_dev, state.st_ino), self.dtype, self.shape)

    def __reduce__(self) -> Any:
        """Hand over the file descriptor."""
        return _received, (reduction.DupFd(self.handle), self.dtype, self.shape)


class Offer(NamedTuple):
    """A `Block` of another process."""

    process: int
    handle: int
    file: tuple[int, int]  # device and inode, which no other memory has
    dtype: torch.dtype
    shape: tuple[int, ...]

    def block(self) -> Block:
        """Return the block, mapped from the other process.

        Raises:
            OSError: the process has ended, or the system does not give access to it.
        """
        path = f"/proc/{self.process}/fd/{self.handle}"
        handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        state = os.fstat(handle)
        if (state.st_dev, state.st_ino) != self.file:
            os.close(handle)
            raise OSError(f"{path} is not the memory that was offered: its process has ended")
        return Block(handle, self.dtype, self.shape)


def filled(source: Tensor, name: str) -> Block:
    """Return shared memory with the elements of a tensor.

    Raises:
        MemoryError: there is not so much memory. What is allocated here is there: a later access
            never ends the process.
    """
    if source.nbytes > (room := usable_bytes()):
        raise MemoryError(
            f"{name} takes {size_text(source.nbytes)} of shared memory, of which "
            f"{size_text(room)} can be had. Save the graph with pyg_direct.save, and let each "
            f"process pyg_direct.open it: files take only the memory of what is read of them."
        )
    handle = os.memfd_create("pyg_direct", os.MFD_CLOEXEC)
    block = Block(handle, source.dtype, tuple(source.shape))
    if source.nbytes > 0:
        os.posix_fallocate(handle, 0, source.nbytes)
        block.tensor().copy_(source)
    return block


def _received(handle: Any, dtype: torch.dtype, shape: tuple[int, ...]) -> Block:
    return Block(handle.detach(), dtype, shape)
