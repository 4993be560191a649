"""The random keys of batches.

The key of batch ``b`` in epoch ``e`` is the first two words of Philox4x32-10 at the counter
(b mod 2^32, b div 2^32, e, domain) under the key (seed mod 2^32, seed div 2^32). So any batch can
be drawn alone, and no two share a key unless 64-bit words collide.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from ...core.types import BatchKey, ExtendedKey, Variates, maker
from ...kernels.philox import batch_keys, fill_below, philox4x32_of_ints
from ...kernels.weighted import fill_uniform

LOADER_DOMAIN = 0  # batches of an epoch
CALL_DOMAIN = 1  # batches asked for one at a time
SHUFFLE_DOMAIN = 2  # the order of the seeds in an epoch
COVERAGE_DOMAIN = 3  # subgraphs that GraphSAINT's coefficients are counted over
WALK_DOMAIN = 4  # random walks that are asked for without a loader
ORDER_DOMAIN = 5  # random states that samplers draw an epoch's order from, where ranks share it
NEXT_SEED_DOMAIN = 6  # the base seed of the epoch after one, where ranks share it
PRESAMPLE_DOMAIN = 8  # batches whose nodes decide what a cache holds
VARIATES_DOMAIN = 7  # what variates of LABOR the batches of a window begin with

KEYS_AT_ONCE = 64  # by Python one takes 7 us; so many by a kernel 0.2 us each


def derive(seed: int, epoch: int, batch: int, domain: int = LOADER_DOMAIN) -> BatchKey:
    """Return the key of one batch.

    Args:
        seed: the base seed, in [0, 2^64).
        epoch: in [0, 2^32).
        batch: in [0, 2^64).
        domain: what the key is for.
    """
    words = (batch & 0xFFFFFFFF, batch >> 32, epoch, domain, seed & 0xFFFFFFFF, seed >> 32)
    low, high, _, _ = philox4x32_of_ints(*words)
    return BatchKey(low, high)


def keys(seed: int, epoch: int, first: int) -> Iterator[BatchKey]:
    """Yield the keys of the batches of an epoch, from batch `first` on."""
    yield derive(seed, epoch, first)
    batch, words = first + 1, np.empty((KEYS_AT_ONCE, 2), np.int64)
    while True:
        batch_keys(words, batch, epoch, LOADER_DOMAIN, seed & 0xFFFFFFFF, seed >> 32)
        yield from map(maker(BatchKey), words.tolist())
        batch += KEYS_AT_ONCE


def dependent_keys(seed: int, epoch: int, first: int, window: int) -> Iterator[ExtendedKey]:
    """Yield the keys of an epoch's batches, of which so many in a row share variates.

    Of batch b, (b mod window) / window of the variates are those that the next window begins with.

    Args:
        seed, epoch, first: as of `keys`.
        window: number of batches, in [1, 2^32).
    """
    for batch, key in enumerate(keys(seed, epoch, first), first):
        number, place = divmod(batch, window)
        begin, end = (derive(seed, epoch, number + i, VARIATES_DOMAIN) for i in range(2))
        yield ExtendedKey.of(key, variates=Variates(begin, end, (place << 32) // window))


def integers(key: BatchKey, draw: int, size: int, end: int) -> torch.Tensor:
    """Return `size` exactly uniform integers in [0, end), end < 2^32, as int64.

    Args:
        key: of the batch.
        draw: number of this list of draws among those of the batch, in [0, 2^24).
        size: how many.
        end: one above the largest.
    """
    out = np.empty(size, np.int64)
    fill_below(out, np.uint64(end), _node_stream(draw), np.uint64(key.low), np.uint64(key.high))
    return torch.from_numpy(out)


def uniforms(key: BatchKey, draw: int, size: int) -> torch.Tensor:
    """Return `size` draws in [0, 1), multiples of 2^-53, as float64; see `integers`."""
    counter = np.arange((size + 1) // 2, dtype=np.uint64)
    out = np.empty(2 * len(counter), np.float64)
    fill_uniform(
        out, counter, np.zeros_like(counter), len(counter),
        _node_stream(draw), np.uint64(key.low), np.uint64(key.high),
    )  # fmt: skip
    return torch.from_numpy(out[:size])


def _node_stream(draw: int) -> np.uint64:
    """Return a stream that no hop uses: hops are below 255."""
    stream: np.uint64 = np.uint64(255 | draw << 8)
    return stream


def as_seed(key: BatchKey) -> int:
    """Return the key as one 63-bit integer, as `torch.Generator.manual_seed` takes it."""
    return (key.low | key.high << 32) >> 1


def shuffle_seed(seed: int, epoch: int) -> int:
    """Return the seed of the generator that shuffles the seeds of an epoch."""
    return as_seed(derive(seed, epoch, 0, SHUFFLE_DOMAIN))


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw a base seed in [0, 2^63) from `generator`, or from torch's default one."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
