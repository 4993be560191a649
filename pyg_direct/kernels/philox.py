"""Counter-based random numbers: Philox4x32-10 and exact draws from a range.

Method: Salmon, Moraes, Dror, Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011),
section 3.3. A draw is a pure function of a 128-bit counter and a 64-bit key, so it does not depend
on threads, launch shapes or devices. `cuda/philox.cuh` says the same for the GPU.

Words are held in uint64, because numba turns uint32 arithmetic into int64.
"""

from __future__ import annotations

from types import FunctionType

import numpy as np
import numpy.typing as npt

from .jit import helper, inlined, kernel, light_kernel

MASK = np.uint64(0xFFFFFFFF)
SHIFT = np.uint64(32)
MULTIPLIER_0 = np.uint64(0xD2511F53)
MULTIPLIER_1 = np.uint64(0xCD9E8D57)
WEYL_0 = np.uint64(0x9E3779B9)
WEYL_1 = np.uint64(0xBB67AE85)

TWO_TO_32 = np.uint64(1 << 32)
ONE = np.uint64(1)
ATTEMPT_SHIFT = np.uint64(8)
STREAM_SHIFT = np.uint64(8)

# What a draw is for: the low byte of counter word 3. Its other 24 bits count rejected attempts.
PURPOSE_UNIFORM = np.uint64(0)
PURPOSE_WEIGHTED = np.uint64(1)
PURPOSE_LABOR = np.uint64(2)

Word = np.uint64


def _philox4x32(
    c0: Word, c1: Word, c2: Word, c3: Word, k0: Word, k1: Word
) -> tuple[Word, Word, Word, Word]:
    """Return the four 32-bit words of Philox4x32-10 at counter (c0..c3) under key (k0, k1)."""
    for _ in range(10):
        product_0 = MULTIPLIER_0 * c0
        product_1 = MULTIPLIER_1 * c2
        c0 = (product_1 >> SHIFT) ^ c1 ^ k0
        c1 = product_1 & MASK
        c2 = (product_0 >> SHIFT) ^ c3 ^ k1
        c3 = product_0 & MASK
        k0 = (k0 + WEYL_0) & MASK
        k1 = (k1 + WEYL_1) & MASK
    return c0, c1, c2, c3


philox4x32 = helper(_philox4x32)
# The same over Python's integers, for a few numbers at a time: no kernel has to be compiled.
philox4x32_of_ints = FunctionType(
    _philox4x32.__code__,
    {name: int(value) for name, value in globals().items() if isinstance(value, np.uint64)},
)
philox4x32_inlined = inlined(_philox4x32)  # takes longer to compile; see `inlined`


def stream_of_ints(hop: int, relation: int) -> Word:
    """Return counter word 2 of the draws of one relation in one hop: hop < 255, relation < 2^24."""
    return np.uint64(hop) | (np.uint64(relation) << STREAM_SHIFT)  # type: ignore[no-any-return]


stream_of = helper(stream_of_ints)  # the same for kernels


@helper
def below(
    word: Word, bound: Word, slot: Word, position: Word, stream: Word, k0: Word, k1: Word
) -> Word:
    """Turn a random 32-bit `word` into an exactly uniform integer in [0, bound), bound < 2^32.

    Method: Lemire, "Fast Random Integer Generation in an Interval" (ACM TOMACS 29, 2019), section
    4: the high half of ``word * bound``, refused where the low half shows that some results would
    come up once more often than others. A refused word is replaced by word 0 of the counter
    (slot, position, stream, purpose + 256 * attempt), which no first attempt uses.

    Example: bound 3 accepts 2^32 - 1 words, a third of them for each result; the one word refused
    is 0, since 2^32 mod 3 = 1.
    """
    product = word * bound
    low = product & MASK
    if low < bound:
        threshold = (TWO_TO_32 - bound) % bound
        attempt = ONE
        while low < threshold:
            word = philox4x32(
                slot, position, stream, PURPOSE_UNIFORM | (attempt << ATTEMPT_SHIFT), k0, k1
            )[0]
            product = word * bound
            low = product & MASK
            attempt += ONE
    return product >> SHIFT  # type: ignore[no-any-return]


@light_kernel
def batch_keys(
    keys: npt.NDArray[np.int64],  # [n, 2] out
    first: int,  # number of the first batch
    epoch: int,
    domain: int,
    low: int,  # words of the seed
    high: int,
) -> None:
    """Derive the keys of consecutive batches; see `sampling.rng`."""
    for i in range(keys.shape[0]):
        number = np.uint64(first + i)
        words = philox4x32(
            number & MASK, number >> SHIFT, np.uint64(epoch), np.uint64(domain), np.uint64(low),
            np.uint64(high),
        )  # fmt: skip
        keys[i, 0], keys[i, 1] = words[0], words[1]


@kernel
def fill_below(out: npt.NDArray[np.int64], bound: Word, stream: Word, k0: Word, k1: Word) -> None:
    """Fill `out` with uniform integers in [0, bound): slot i at position 0 of the stream."""
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    zero, two = np.uint64(0), np.uint64(2)
    for i in range(out.shape[0]):
        slot = np.uint64(i)
        if i & 3 == 0:
            words = philox4x32(slot >> two, zero, stream, PURPOSE_UNIFORM, k0, k1)
        out[i] = below(words[i & 3], bound, slot, zero, stream, k0, k1)
