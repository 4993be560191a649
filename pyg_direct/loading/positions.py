"""The positions of the seeds of each batch, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from .order import ClusterOrder


def positions_of(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over what a batch sampler gives: lists of positions, or other things of the user's.

    For torch's own samplers arrays, int64 [n], of the same positions: to make a list for each batch
    and an array of the list takes longer, of seeds in order eight times as long. Random numbers are
    drawn when torch would draw them.
    """
    if type(batches) is BatchSampler and type(batches.sampler) in (
        SequentialSampler,
        RandomSampler,
        ClusterOrder,
    ):
        return _arrays(batches.sampler, batches.batch_size, batches.drop_last)
    return map(_kept, batches)


def _kept(batch: Any) -> Any:
    """Return what a batch sampler of the user's gave; of an array, which may change, a copy."""
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def _arrays(sampler: Any, size: int, drop_last: bool) -> Iterator[Any]:
    order, left = iter(sampler), len(sampler)
    first, is_sequential = 0, type(sampler) is SequentialSampler
    while left >= (size if drop_last else 1):
        count = min(size, left)
        batch = np.arange(first, first + count) if is_sequential else _next(order, count)
        if count < size and not is_sequential:
            _next(order, -1)
        yield batch
        first, left = first + count, left - count
    _next(() if is_sequential else order, -1)


def _next(order: Iterable[int], count: int) -> Any:
    """Return the next positions, or with -1 the rest: a RandomSampler may draw when it ends."""
    return np.fromiter(order, np.int64, count)
