"""Short fingerprints of large arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import torch

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
