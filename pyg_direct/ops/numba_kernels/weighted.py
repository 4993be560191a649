"""Draws in proportion to edge weights, by inversion of each list's cumulative weights.

Reads O(log degree) cumulative weights a draw. All arithmetic is addition, subtraction,
multiplication and comparison of doubles in a fixed order, so the GPU gets the same picks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel
from .philox import PURPOSE_WEIGHTED, philox4x32, stream_of

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

# Below this share of a list's weight, a difference of cumulative weights has lost its precision
# (2^-53 / 2^-20), and what is left is added up afresh.
TINY_SHARE = 2.0**-20
# Between these, a sum of weights times a draw is no denormal number and no infinite one.
SMALL, LARGE = 2.0**-900, 2.0**1020
SMALLEST = 2.0**-1074
LOW_BITS, HIGH_BITS = np.uint64(5), np.uint64(6)
ONE = np.uint64(1)


@kernel
def accumulate(indptr: Ints, first: int, last: int, weight: Doubles, out: Doubles) -> None:
    """Fill `out` with the running sums of `weight` within each list indptr[first:last + 1].

    Example: lists of weights [1, 2] and [4, 0, 1] give [1, 3] and [4, 4, 5].
    """
    for v in range(first, last):
        total = 0.0
        for p in range(indptr[v], indptr[v + 1]):
            total += weight[p]
            out[p] = total


@kernel
def rescale(indptr: Ints, weight: Doubles, running: Doubles) -> None:
    """Multiply each list whose sum is too small or too large to draw from by a power of two.

    The law stays what it was, as a power of two rounds nothing; only a weight 2^1022 times smaller
    than the largest of its list becomes 2^-1074, which is still not 0.

    Example: weights [1e308, 1e308] become [0.55..., 0.55...].
    """
    for v in range(indptr.shape[0] - 1):
        first, last = indptr[v], indptr[v + 1]
        if first == last or running[last - 1] == 0.0 or SMALL <= running[last - 1] <= LARGE:
            continue
        largest = 0.0
        for p in range(first, last):
            largest = max(largest, weight[p])
        exponent, total = math.frexp(largest)[1], 0.0
        for p in range(first, last):
            if weight[p] > 0.0:
                weight[p] = max(math.ldexp(weight[p], -exponent), SMALLEST)
            total += weight[p]
            running[p] = total


@kernel
def uniform(slot: int, local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64) -> float:
    """Return the draw of one slot, a multiple of 2^-53 in [0, 1). Two slots share a counter."""
    words = philox4x32(np.uint64(slot) >> ONE, local, stream, PURPOSE_WEIGHTED, k0, k1)
    a, b = words[2 * (slot & 1)], words[2 * (slot & 1) + 1]
    return ((a >> LOW_BITS) * 67108864.0 + (b >> HIGH_BITS)) * (1.0 / 9007199254740992.0)  # type: ignore[no-any-return]


@kernel
def fill_uniform(out: Doubles, stream: np.uint64, k0: np.uint64, k1: np.uint64) -> None:
    """Fill `out` with draws in [0, 1): slot i at position 0 of the stream."""
    for i in range(out.shape[0]):
        out[i] = uniform(i, np.uint64(0), stream, k0, k1)


@kernel
def first_above(cumulative: Doubles, first: int, last: int, target: float) -> int:
    """Return the first position in [first, last) whose cumulative weight exceeds `target`, or last.

    Example: cumulative [1, 3, 3, 7] and target 3 give position 3; position 2 has no weight.
    """
    while first < last:
        middle = (first + last) // 2
        if cumulative[middle] > target:
            last = middle
        else:
            first = middle + 1
    return first


@kernel
def pick_exactly(
    position: Ints, first: int, picked: int, start: int, end: int, weight: Doubles, draw: float
) -> int:
    """Return a position not picked yet, with probability proportional to weight, in O(degree)."""
    total = 0.0
    for again in range(2):
        target, running, i = draw * total, 0.0, 0
        candidate = -1
        for p in range(start, end):
            if i < picked and position[first + i] == p:
                i += 1
                continue
            if weight[p] > 0.0:
                running += weight[p]
                candidate = p
                if again == 1 and running > target:
                    return p
        total = running
    return candidate


@kernel
def weighted_with_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    weight: Doubles, cumulative: Doubles, low: float,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Write k independent draws, each with probability weight / sum of weights.

    `low` is the cumulative weight before the item. An item that begins inside its list is short
    (the latest neighbours, k at most), and its share of the running sums may be lost in rounding:
    so its weights are added up afresh.

    Example: weights 1, 5, 2 and draws 0.5, 0 mean 4 and 0 of 8, so they take the 5 and the 1.
    """
    end = start + degree
    for j in range(k):
        draw = uniform(j, local, stream, k0, k1)
        if low > 0.0:
            position[first + j] = pick_exactly(position, first, 0, start, end, weight, draw)
            continue
        p = first_above(cumulative, start, end, draw * (cumulative[end - 1] - low))
        while p == end or (p > start and cumulative[p] <= cumulative[p - 1]):
            p -= 1  # rounding went past the last weight
        position[first + j] = p


@kernel
def weighted_without_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    weight: Doubles, cumulative: Doubles, low: float,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Write k distinct positions with positive weight, ascending; the list must have k of them.

    The law is that of successive draws: each takes one of the positions left with probability
    weight / weight left, as Efraimidis and Spirakis ("Weighted random sampling with a reservoir",
    Information Processing Letters 97(5), 2006) define it. The picks so far cut the list into gaps,
    whose weights are differences of cumulative weights; a draw falls into one of them.

    Example: weights 1, 5, 2 with the 5 picked leave gaps of weight 1 and 2; a draw of 0.5 means 1.5
    of 3, so it falls into the second and takes the 2.
    """
    end = start + degree
    whole = cumulative[end - 1] - low
    for j in range(k):
        left, before = 0.0, low
        for i in range(first, first + j):
            p = position[i]
            left += (cumulative[p - 1] if p > start else low) - before
            before = cumulative[p]
        left += cumulative[end - 1] - before
        draw = uniform(j, local, stream, k0, k1)
        chosen = -1
        if left > TINY_SHARE * whole:
            target, before, gap = draw * left, low, start
            for i in range(first, first + j + 1):
                stop = position[i] if i < first + j else end
                mass = (cumulative[stop - 1] if stop > start else low) - before
                if target < mass:
                    chosen = first_above(cumulative, gap, stop, before + target)
                    if chosen == stop or weight[chosen] <= 0.0:
                        chosen = -1  # rounding went past the gap
                    break
                target -= mass
                if stop < end:
                    before, gap = cumulative[stop], stop + 1
        if chosen < 0:
            chosen = pick_exactly(position, first, j, start, end, weight, draw)
        at = first + j  # keep the picks in ascending order
        while at > first and position[at - 1] > chosen:
            position[at] = position[at - 1]
            at -= 1
        position[at] = chosen


@kernel
def draw_weighted(
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    fanout: Ints,  # [R]
    replace: bool,
    hop: int,
    k0: np.uint64,
    k1: np.uint64,
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items]
    item_degree: Ints,  # [items]
    item_ptr: Ints,  # [items + 1]
    item_first: int,  # the range of items to do
    item_last: int,
    position: Ints,  # [edges] out: position in `indices`
    weighted: npt.NDArray[np.bool_],  # [R]
    weight: Doubles,  # [E]
    cumulative: Doubles,  # [E]
    item_low: Doubles,  # [items]: cumulative weight before the item
) -> None:
    """Draw the edges of the items of weighted relations in [item_first, item_last)."""
    for r in range(fanout.shape[0]):
        if not weighted[r]:
            continue
        offset = node_ptr[hop, relations[1, r]] - item_base[r]
        stream = stream_of(hop, r)
        drawn = replace and fanout[r] >= 0
        for item in range(max(item_base[r], item_first), min(item_base[r + 1], item_last)):
            first = item_ptr[item]
            k = item_ptr[item + 1] - first
            start, degree, low = item_start[item], item_degree[item], item_low[item]
            local = np.uint64(item + offset)
            if k == degree and not drawn:
                for j in range(k):
                    position[first + j] = start + j
            elif drawn and k > 0:
                weighted_with_replacement(
                    position, first, k, start, degree, weight, cumulative, low,
                    local, stream, k0, k1,
                )  # fmt: skip
            elif k > 0:
                weighted_without_replacement(
                    position, first, k, start, degree, weight, cumulative, low,
                    local, stream, k0, k1,
                )  # fmt: skip
