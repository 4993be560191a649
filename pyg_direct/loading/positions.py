"""The positions of the seeds of each batch, as arrays."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler, WeightedRandomSampler

from .order import ClusterOrder, PartOrder

KNOWN = SequentialSampler, RandomSampler, WeightedRandomSampler, ClusterOrder, PartOrder
EMPTY = np.empty(0, np.int64)
PIECE = 1 << 16  # seeds in order that are numbered at a time


def positions_of(batches: Iterable[Any]) -> Iterator[Any]:
    """Iterate over what a batch sampler gives: lists of positions, or other things of the user's.

    For torch's own samplers arrays, int64 [n], of the same positions, cut from one permutation of
    8 bytes a seed: torch's list of Python integers takes 40, and to make a list for each batch and
    an array of the list takes longer, of seeds in order eight times as long. Random numbers are
    drawn when torch would draw them.
    """
    if type(batches) is BatchSampler and type(batches.sampler) in KNOWN:
        return _arrays(batches.sampler, batches.batch_size, batches.drop_last)
    return map(_kept, batches)


def _kept(batch: Any) -> Any:
    """Return what a batch sampler of the user's gave; of an array, which may change, a copy."""
    return batch.copy() if isinstance(batch, np.ndarray) else batch


def _arrays(sampler: Any, size: int, drop_last: bool) -> Iterator[Any]:
    left, pieces = len(sampler), map(Tensor.numpy, _drawn_by(sampler))
    piece = EMPTY
    while left >= (size if drop_last else 1):
        missing, found = min(size, left), []
        left -= missing
        while missing > 0:
            if len(piece) == 0:
                del piece  # before the next one is drawn
                piece = next(pieces)
            found.append(piece[:missing])
            piece = piece[missing:]
            missing -= len(found[-1])
        batch = np.concatenate(found)  # a copy: one batch must not keep the whole permutation
        found.clear()
        if len(batch) < size:
            piece = EMPTY
            _end(pieces)
        yield batch
    piece = EMPTY
    _end(pieces)


def _end(pieces: Iterator[Any]) -> None:
    """Draw what is left: a RandomSampler draws once more at its end."""
    for _ in pieces:
        pass


def _drawn_by(sampler: Any) -> Iterator[Tensor]:
    """Yield the positions that a sampler gives, int64, as torch draws them: many at a time.

    Example: of ``RandomSampler(range(3), num_samples=4)`` a permutation of 3 positions, then the
    first position of another one.
    """
    if isinstance(sampler, ClusterOrder):
        yield sampler.draw()
    elif type(sampler) is SequentialSampler:
        for first in range(0, len(sampler), PIECE):
            yield torch.arange(first, min(first + PIECE, len(sampler)))
    elif type(sampler) is WeightedRandomSampler:
        yield torch.multinomial(
            sampler.weights, sampler.num_samples, sampler.replacement, generator=sampler.generator
        )
    elif sampler.replacement:  # draws 32 at a time itself
        numbers = iter(sampler)
        while piece := list(islice(numbers, 32)):
            yield torch.tensor(piece)
    else:
        generator = sampler.generator
        if generator is None:
            generator = torch.Generator()
            generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_()))
        count = len(sampler.data_source)
        for _ in range(sampler.num_samples // count):
            yield torch.randperm(count, generator=generator)
        # Also where nothing of it is needed: the state of a generator of the user's shows it.
        yield torch.randperm(count, generator=generator)[: sampler.num_samples % count]
