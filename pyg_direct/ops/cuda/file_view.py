"""Tensors in a private mapping of a file, as those of an opened graph: how a GPU reads their pages.

Registering such memory copies all of it: the driver asks for pages to write to, and a private
mapping then gets pages of its own. So the file is mapped once more, shared and read-only, for the
GPU alone. Both have the same pages until somebody writes to the private one.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..mappings import Mapping, mappings, own_bytes
from .pinning import PinningError

_Key = tuple[tuple[str, int], int, int]  # file, offset in it, and bytes
# Kept for as long as a tensor lies on them, so that loaders register a file once.
_views: weakref.WeakValueDictionary[_Key, Any] = weakref.WeakValueDictionary()


def registrable(tensor: Tensor, name: str) -> Tensor:
    """Return what is to be registered for a CPU tensor: itself, or the same elements of its file.

    Args:
        tensor: not empty.
        name: what the user calls it, for messages.

    Raises:
        PinningError: it is in a private mapping of a file, and must be copied.
    """
    storage = tensor.untyped_storage()
    first, last = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    found = list(mappings(first, last))
    if not any(mapping.private and mapping.is_of_file for mapping in found):
        return tensor
    problem = _problem(found, first, last)
    if not problem:
        try:
            memory = _view(found[0], first - found[0].first, last - first)
        except (OSError, ValueError) as error:  # ValueError: it was cut off
            problem = f"cannot be mapped once more ({error})"
    if problem:
        raise PinningError(
            f"{name} is in a private mapping of {found[0].path}, which {problem}. To register it "
            f"would copy it."
        )
    elements = torch.frombuffer(memory, dtype=torch.uint8).view(tensor.dtype)
    return elements.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def _problem(found: list[Mapping], first: int, last: int) -> str:
    """Return why memory is not as its file, or ""."""
    for before, after in pairwise(found):
        behind = before.first - before.offset == after.first - after.offset
        if before.last != after.first or not behind or before.file != after.file:
            return "is but a part of it"
    written = own_bytes(first, last)
    if written is None:
        return "may have been written to"
    return "was written to" if written > 0 else ""


def _view(mapping: Mapping, begin: int, nbytes: int) -> Any:
    """Return the memory of a second mapping, from a byte of the first one on.

    Raises:
        OSError: the file cannot be opened, or another one has its name by now.
    """
    phase = begin % mmap.ALLOCATIONGRANULARITY
    offset = mapping.offset + begin - phase
    key = mapping.file, offset + phase, nbytes
    memory = _views.get(key)
    if memory is None:
        handle = os.open(mapping.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            shared = {"flags": mmap.MAP_SHARED, "prot": mmap.PROT_READ}
            mapped = mmap.mmap(handle, phase + nbytes, offset=offset, **shared)
        finally:
            os.close(handle)
        address = np.frombuffer(mapped, np.uint8).ctypes.data
        # As the system names files in both cases: other calls number them in their own way.
        if next(mappings(address, address + 1)).file != mapping.file:
            raise OSError(f"{mapping.path} is another file by now")
        memory = (ctypes.c_uint8 * nbytes).from_address(address + phase)
        weakref.finalize(memory, mapped.close).atexit = False
        _views[key] = memory
    return memory
