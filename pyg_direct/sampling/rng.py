"""The random keys of batches.

The key of batch ``b`` in epoch ``e`` is the first two words of Philox4x32-10 at the counter
(b mod 2^32, b div 2^32, e, domain) under the key (seed mod 2^32, seed div 2^32). So any batch can
be drawn alone, and no two share a key unless 64-bit words collide.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import torch

from ..kernels.philox import MASK, SHIFT, fill_below, philox4x32_of_arrays, philox4x32_of_ints
from ..kernels.weighted import fill_uniform
from ..types import BatchKey

LOADER_DOMAIN = 0  # batches of an epoch
CALL_DOMAIN = 1  # batches asked for one at a time
SHUFFLE_DOMAIN = 2  # the order of the seeds in an epoch
COVERAGE_DOMAIN = 3  # subgraphs that GraphSAINT's coefficients are counted over
WALK_DOMAIN = 4  # random walks that are asked for without a loader

MOST_KEYS_AT_ONCE = 256  # one alone takes 7 us, so many together 1 us each at most


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
    batch, count = first + 1, 32  # more and more, as many epochs are short
    while True:
        number = np.arange(batch, batch + count, dtype=np.uint64)
        counter = number & MASK, number >> SHIFT, np.uint64(epoch), np.uint64(LOADER_DOMAIN)
        words = philox4x32_of_arrays(*counter, np.uint64(seed & 0xFFFFFFFF), np.uint64(seed >> 32))
        yield from itertools.starmap(BatchKey, np.stack(words[:2], axis=1).tolist())
        batch, count = batch + count, min(4 * count, MOST_KEYS_AT_ONCE)


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


def draw_seed(generator: torch.Generator | None) -> int:
    """Draw a base seed in [0, 2^63) from `generator`, or from torch's default one."""
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())
