"""Files that arrays are mapped to, whether they have changed, and fingerprints of arrays."""

from __future__ import annotations

import hashlib
import os
import zlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import torch


class MappedFile(NamedTuple):
    """A file as it was when it was mapped."""

    path: str
    identity: tuple[int, int]  # device and inode
    state: tuple[int, int]  # length in bytes, and time of the last change in nanoseconds


def files_at(paths: Iterable[str | Path]) -> tuple[MappedFile, ...]:
    """Return the files at some paths, without those that are missing or cannot be looked at."""
    found = []
    for path in paths:
        try:
            now = os.stat(path)
        except OSError:
            continue
        state = now.st_size, now.st_mtime_ns
        found.append(MappedFile(os.path.abspath(path), (now.st_dev, now.st_ino), state))
    return tuple(found)


def check_unchanged(files: Iterable[MappedFile]) -> None:
    """Raise a ValueError if one of the files was written to or cut off since it was mapped.

    One that was deleted, or that another one took the place of, is as good as before: the map
    keeps it. What is changed after the check goes unseen until the next one.
    """
    for file in files:
        for now in files_at([file.path]):
            if now.identity == file.identity and now.state != file.state:
                raise ValueError(
                    f"{file.path} was written to or cut off after it was opened: it has "
                    f"{now.state[0]} bytes, and had {file.state[0]}. Batches would have wrong "
                    f"rows. Open the graph again, and let programs that change it save it anew: "
                    f"pyg_direct.save puts other files in the place of those that are open."
                )


SAMPLED_POSITIONS = 1024


def fingerprint_of(arrays: Iterable[Any], positions: int = SAMPLED_POSITIONS) -> str:
    """Return a hash of some arrays: of their dtypes, shapes and some elements of each.

    The positions are spread evenly, so a change of few elements may go unseen.

    Args:
        arrays: NumPy arrays or tensors on any device, or None.
        positions: how many elements of each are read, at most.
    """
    digest = hashlib.sha256()
    for array in arrays:
        if array is None:
            digest.update(b"None")
            continue
        flat = torch.as_tensor(array).detach().reshape(-1)
        digest.update(f"{flat.dtype}{tuple(array.shape)}".encode())
        if len(flat) > 0:
            count = min(positions, len(flat))
            at = torch.arange(count, device=flat.device) * (len(flat) - 1) // max(1, count - 1)
            digest.update(flat[at].cpu().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


PIECE_BYTES = 1 << 25
MOST_THREADS = 8


def checksum_of_arrays(arrays: Iterable[Any]) -> int:
    """Return a checksum of all elements of some arrays; some 0.4 s a gigabyte and core.

    Args:
        arrays: NumPy arrays or tensors on any device.
    """
    found = 0
    with ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1)) as threads:
        for given in arrays:
            flat = torch.as_tensor(given).detach().reshape(-1)
            found = zlib.crc32(f"{flat.dtype} {list(given.shape)}".encode(), found)
            step = max(1, PIECE_BYTES // flat.element_size())
            pieces = [flat[first : first + step] for first in range(0, len(flat), step)]
            for crc in threads.map(_crc32, pieces):
                found = zlib.crc32(crc.to_bytes(4, "little"), found)
    return found


def _crc32(piece: torch.Tensor) -> int:
    host = piece.cpu()  # a view where it lies in host memory
    content: Any = host.view(torch.uint8).numpy() if host.numel() > 0 else b""
    return zlib.crc32(content)
