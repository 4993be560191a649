"""Short fingerprints of the order of the seeds."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from torch.utils.data import DistributedSampler


def of_ranks(sampler: Any) -> dict[str, Any]:
    """Return what decides which seeds a DistributedSampler gives, but for its rank and epoch."""
    if not isinstance(sampler, DistributedSampler):
        return {}
    return {"num_replicas": sampler.num_replicas, "sampler_seed": sampler.seed}


def of_positions(batches: Iterable[Any]) -> str:
    """Return a hash of what a batch sampler gave, whatever form its batches have."""
    text = repr([np.asarray(batch).tolist() for batch in batches])
    return hashlib.sha256(text.encode()).hexdigest()[:16]
