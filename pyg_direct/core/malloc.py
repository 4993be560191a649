"""Settings of the C library's allocator, which torch and NumPy take their host memory from."""

from __future__ import annotations

import ctypes
import os
import sys
from typing import Any

# Parameters of `mallopt`, from glibc's <malloc.h>.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_MMAP_MAX = -4

KEEPING = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1}  # -1: as unsigned the largest number of bytes
# `mallopt` ends the adjustment by itself that glibc begins with, and nothing resumes it. These are
# the values that it reaches in any process that has freed a block of 32 MiB.
LARGEST_MMAP_THRESHOLD = 32 << 20
GIVING_BACK = {
    M_MMAP_MAX: 65536,
    M_MMAP_THRESHOLD: LARGEST_MMAP_THRESHOLD,
    M_TRIM_THRESHOLD: 2 * LARGEST_MMAP_THRESHOLD,
}
REPLACED = ("calloc", "posix_memalign")  # what NumPy and torch allocate with

_kept = False


def keep_memory(keep: bool = True) -> None:
    """Let the allocator keep host memory that is freed, in place of giving it back to the system.

    glibc's `malloc` maps every block of 32 MiB or more by itself and unmaps it when it is freed, so
    a training step on the CPU gets its activations as fresh pages each time, and the system clears
    all of them. With this call, freed memory stays with the process and is used again. It holds
    for everything in the process: plain PyG models, `accelerate`, `inference` and loaders.

    The price:

    * The process keeps the largest amount that it has had in use at once, and somewhat more, as
      freed blocks lie between others; until ``keep_memory(False)``, or its end.
    * Memory of `numpy.zeros` and of C's `calloc` is written when it is allocated, if it was used
      before. Without the call, large arrays of zeros take memory only where they are written.

    Call it once, before the training; what was allocated before stays as it is. It calls
    ``mallopt`` and is never called by this package itself. To set it from outside, see the guide
    "Keep freed memory".

    Args:
        keep: False gives back what is unused now (`malloc_trim`), and from then on blocks of 32 MiB
            or more as soon as they are freed. That is what glibc does by itself after the first
            such block; limits that were set by environment variables before do not come back.

    Raises:
        RuntimeError: the process does not use glibc's `malloc`: another C library (musl, macOS,
            Windows), or an allocator that was preloaded, as jemalloc or tcmalloc.
        TypeError: `keep` is not a bool.

    Example:
        >>> pyg_direct.keep_memory()  # before the training
        >>> for batch in pyg_direct.NeighborLoader(data, [10, 5], batch_size=100):
        ...     model(batch.x, batch.edge_index).sum().backward()
        >>> pyg_direct.keep_memory(False)  # gives it back
    """
    global _kept
    if not isinstance(keep, bool):
        raise TypeError(f"keep must be True or False, got {keep!r}.")
    glibc = _glibc()
    if keep or _kept:
        for parameter, value in (KEEPING if keep else GIVING_BACK).items():
            if glibc.mallopt(parameter, value) != 1:
                raise RuntimeError(f"mallopt({parameter}, {value}) was refused by the C library.")
        _kept = keep
    if not keep:
        glibc.malloc_trim(0)


def _glibc() -> Any:
    """Return glibc, if it is what allocates in this process."""
    if not sys.platform.startswith("linux"):
        raise RuntimeError(_refusal(f"on {sys.platform} there is another C library"))
    process = ctypes.CDLL(None)
    try:
        glibc = ctypes.CDLL("libc.so.6", mode=os.RTLD_NOLOAD)
    except OSError:
        glibc = process
    if not hasattr(glibc, "gnu_get_libc_version"):
        raise RuntimeError(_refusal("this process uses another C library, such as musl"))
    # A preloaded allocator comes first where the process looks for a name. `malloc` itself tells
    # nothing: an executable at a fixed address, as Debian's Python, has an entry of its own for it.
    if any(_address(process, name) != _address(glibc, name) for name in REPLACED):
        preloaded = os.environ.get("LD_PRELOAD")
        where = f" (LD_PRELOAD={preloaded})" if preloaded else ""
        raise RuntimeError(_refusal(f"another allocator has replaced it in this process{where}"))
    return glibc


def _address(library: Any, name: str) -> int | None:
    return ctypes.cast(getattr(library, name), ctypes.c_void_p).value


def _refusal(why: str) -> str:
    return (
        f"keep_memory() sets glibc's malloc, but {why}. Leave the call out; most other allocators "
        f"have settings of their own for keeping memory."
    )
