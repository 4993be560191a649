"""Short fingerprints of large arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

SAMPLED_POSITIONS = 1024


def fingerprint_of(arrays: Iterable[Any]) -> str:
    """Return a hash of some arrays: of their dtypes, shapes and SAMPLED_POSITIONS elements of each.

    The positions are spread evenly, so a change of few elements may go unseen.

    Args:
        arrays: NumPy arrays or tensors on any device, or None.
    """
    digest = hashlib.sha256()
    for array in arrays:
        if array is None:
            digest.update(b"None")
            continue
        flat = torch.as_tensor(array).detach().reshape(-1)
        digest.update(f"{flat.dtype}{tuple(array.shape)}".encode())
        if len(flat) > 0:
            count = min(SAMPLED_POSITIONS, len(flat))
            at = torch.arange(count, device=flat.device) * (len(flat) - 1) // max(1, count - 1)
            digest.update(flat[at].cpu().numpy().tobytes())
    return digest.hexdigest()[:16]


def of_ranks(sampler: Any) -> dict[str, Any]:
    """Return what decides which seeds a DistributedSampler gives, but for its rank and epoch."""
    if not isinstance(sampler, DistributedSampler):
        return {}
    return {"num_replicas": sampler.num_replicas, "sampler_seed": sampler.seed}


def of_positions(batches: Iterable[Any]) -> str:
    """Return a hash of what a batch sampler gave, whatever form its batches have."""
    text = repr([np.asarray(batch).tolist() for batch in batches])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
