"""Draws in proportion to edge weights, by inversion of each list's cumulative weights.

Reads O(log degree) cumulative weights a draw. All arithmetic is addition, subtraction,
multiplication and comparison of doubles in a fixed order, so the GPU gets the same picks.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel, prefetch
from .philox import ATTEMPT_SHIFT, PURPOSE_WEIGHTED, philox4x32, stream_of

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

BLOCK_BITS = 3
BLOCK = 1 << BLOCK_BITS  # sums that are searched together: about a line of the cache
GROUP_ITEMS = 4  # items that are searched together, so that their cache misses overlap
GROUP_DRAWS = 4096  # draws that are kept for them, unless one item has more
AHEAD = 4  # items whose lines are asked for before their group


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
def to_unit(high: np.uint64, low: np.uint64) -> float:
    """Return two random words as a multiple of 2^-53 in [0, 1), every one equally likely."""
    return ((high >> LOW_BITS) * 67108864.0 + (low >> HIGH_BITS)) * (1.0 / 9007199254740992.0)  # type: ignore[no-any-return]


@kernel
def uniform(
    slot: int, attempt: int, local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64
) -> float:
    """Return the draw of one slot in [0, 1). Two slots share a counter."""
    purpose = PURPOSE_WEIGHTED | np.uint64(attempt) << ATTEMPT_SHIFT
    words = philox4x32(np.uint64(slot) >> ONE, local, stream, purpose, k0, k1)
    return to_unit(words[2 * (slot & 1)], words[2 * (slot & 1) + 1])


@kernel
def fill_uniform(
    out: Doubles, first: int, last: int,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Fill out[first:last] with the draws of the slots 0, 1, ... at their first attempt."""
    for i in range(first, last, 2):
        words = philox4x32(np.uint64(i - first) >> ONE, local, stream, PURPOSE_WEIGHTED, k0, k1)
        out[i] = to_unit(words[0], words[1])
        if i + 1 < last:
            out[i + 1] = to_unit(words[2], words[3])


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
def find_blocks(
    position: Ints, first: int, k: int, start: int, end: int,
    cumulative: Doubles, blocks: Doubles, target: Doubles, at: int,
) -> None:  # fmt: skip
    """Leave at position[first:first + k] the blocks in which target[at:at + k] are first exceeded.

    A block is a run of BLOCK positions from a multiple of it on, and `blocks` holds the last sum of
    each. All targets are searched step by step together, so that their cache misses overlap.

    Example: blocks of 2 positions with the sums [1, 3], [3, 7] and target 3 give block 1.
    """
    lowest = start >> BLOCK_BITS
    for j in range(first, first + k):
        position[j] = lowest
    left = ((end - 1) >> BLOCK_BITS) - lowest  # blocks whose last sum is one of the list
    while left > 0:
        half = (left + 1) >> 1
        for j in range(k):
            block = position[first + j]
            above = blocks[block + half - 1] > target[at + j]
            position[first + j] = block if above else block + half
        left -= half
    for j in range(first, first + k):
        prefetch(cumulative, position[j] << BLOCK_BITS)


@kernel
def search_blocks(
    position: Ints, first: int, k: int, start: int, end: int,
    cumulative: Doubles, target: Doubles, at: int,
) -> None:  # fmt: skip
    """Turn the blocks that `find_blocks` left into what `first_above` finds for the targets."""
    for j in range(k):
        block = position[first + j] << BLOCK_BITS
        low, high = max(start, block), min(end, block + BLOCK)
        found = low
        for p in range(low, high):  # without a jump that the draw decides
            found += cumulative[p] <= target[at + j]
        position[first + j] = found


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
def finish_with_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    weight: Doubles, cumulative: Doubles, low: float,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Write k independent draws, each with probability weight / sum of weights.

    Without `low`, the cumulative weight before the item, position[first:first + k] holds where the
    first draws fall. An item that begins inside its list is short (the latest neighbours, k at
    most), and its share of the running sums may be lost in rounding: so its weights are added up
    afresh.

    Example: weights 1, 5, 2 and draws 0.5, 0 mean 4 and 0 of 8, so they take the 5 and the 1.
    """
    end = start + degree
    for j in range(k):
        if low > 0.0:
            draw = uniform(j, 0, local, stream, k0, k1)
            position[first + j] = pick_exactly(position, first, 0, start, end, weight, draw)
            continue
        p = position[first + j]
        while p == end or (p > start and cumulative[p] <= cumulative[p - 1]):
            p -= 1  # rounding went past the last weight
        position[first + j] = p


@kernel
def pick_from_gaps(
    position: Ints, first: int, picked: int, start: int, end: int,
    weight: Doubles, cumulative: Doubles, low: float, draw: float,
) -> int:  # fmt: skip
    """Return a position not picked yet, with probability proportional to weight.

    The picks, ascending, cut the list into gaps, whose weights are differences of cumulative
    weights; the draw falls into one of them. Reads O(picked + log degree) weights.

    Example: weights 1, 5, 2 with the 5 picked leave gaps of weight 1 and 2; a draw of 0.5 means 1.5
    of 3, so it falls into the second and takes the 2.
    """
    left, before = 0.0, low
    for i in range(first, first + picked):
        p = position[i]
        left += (cumulative[p - 1] if p > start else low) - before
        before = cumulative[p]
    left += cumulative[end - 1] - before
    if left > TINY_SHARE * (cumulative[end - 1] - low):
        target, before, gap = draw * left, low, start
        for i in range(first, first + picked + 1):
            stop = position[i] if i < first + picked else end
            mass = (cumulative[stop - 1] if stop > start else low) - before
            if target < mass:
                chosen = first_above(cumulative, gap, stop, before + target)
                if chosen == stop or weight[chosen] <= 0.0:
                    break  # rounding went past the gap
                return chosen
            target -= mass
            if stop < end:
                before, gap = cumulative[stop], stop + 1
    return pick_exactly(position, first, picked, start, end, weight, draw)


@kernel
def finish_without_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    weight: Doubles, cumulative: Doubles, low: float,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Write k distinct positions with positive weight, ascending; the list must have k of them.

    The law is that of successive draws: each takes one of the positions left with probability
    weight / weight left, as Efraimidis and Spirakis ("Weighted random sampling with a reservoir",
    Information Processing Letters 97(5), 2006) define it. Without `low`, position[first:first + k]
    holds where the first draws fall in the whole list. One that falls on an earlier pick is drawn
    anew from what is left: a position of weight w is then taken with probability
    w / whole + (1 - left / whole) * w / left = w / left.

    Example: weights 1, 5, 2 and first draws 0.5, 0.5 mean 4 and 4 of 8. Both fall on the 5; so the
    second is drawn anew from the 1 and the 2.
    """
    end = start + degree
    for j in range(first, first + k):
        chosen, at = -1, j
        if low == 0.0 and position[j] < end:  # else rounding went past the last weight
            chosen = position[j]
            at = place_of(chosen, position, first, j)
            if at > first and position[at - 1] == chosen:
                chosen = -1
        if chosen < 0:
            draw = uniform(j - first, 1, local, stream, k0, k1)
            chosen = pick_from_gaps(
                position, first, j - first, start, end, weight, cumulative, low, draw
            )
            at = place_of(chosen, position, first, j)
        for i in range(j, at, -1):
            position[i] = position[i - 1]
        position[at] = chosen


@kernel
def place_of(chosen: int, position: Ints, first: int, last: int) -> int:
    """Return the place behind all of the ascending position[first:last] that are <= `chosen`."""
    while last > first and position[last - 1] > chosen:
        last -= 1
    return last


@kernel
def draw_group(
    position: Ints, target: Doubles, first_item: int, last_item: int, replace: bool, offset: int,
    item_start: Ints, item_degree: Ints, item_ptr: Ints, item_low: Doubles,
    weight: Doubles, cumulative: Doubles, blocks: Doubles,
    stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Draw the edges of a few items of one relation.

    First the draws of all items, and where they fall among the blocks of sums; then where they fall
    within the blocks, which the cache has been asked for; then the picks.
    """
    for stage in range(3):
        at = 0
        for item in range(first_item, last_item):
            first, start, degree = item_ptr[item], item_start[item], item_degree[item]
            k, low, end = item_ptr[item + 1] - first, item_low[item], start + degree
            local = np.uint64(item + offset)
            if k == 0 or (k == degree and not replace):
                for j in range(k if stage == 0 else 0):  # all of them
                    position[first + j] = start + j
            elif stage == 0 and low == 0.0:
                fill_uniform(target, at, at + k, local, stream, k0, k1)
                for j in range(at, at + k):
                    target[j] = target[j] * cumulative[end - 1]
                find_blocks(position, first, k, start, end, cumulative, blocks, target, at)
            elif stage == 1 and low == 0.0:
                search_blocks(position, first, k, start, end, cumulative, target, at)
            elif stage == 2 and replace:
                finish_with_replacement(
                    position, first, k, start, degree, weight, cumulative, low,
                    local, stream, k0, k1,
                )  # fmt: skip
            elif stage == 2:
                finish_without_replacement(
                    position, first, k, start, degree, weight, cumulative, low,
                    local, stream, k0, k1,
                )  # fmt: skip
            at += k


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
    blocks: Doubles,  # [E / BLOCK]: the last sum of each whole block of `cumulative`
    item_low: Doubles,  # [items]: cumulative weight before the item
) -> None:
    """Draw the edges of the items of weighted relations in [item_first, item_last)."""
    for r in range(fanout.shape[0]):
        if not weighted[r]:
            continue
        drawn = fanout[r] >= 0  # else all of each list
        begin, end = max(item_base[r], item_first), min(item_base[r + 1], item_last)
        most = 0
        for item in range(begin, end if drawn else begin):
            most = max(most, item_ptr[item + 1] - item_ptr[item])
        group = max(1, min(GROUP_ITEMS, GROUP_DRAWS // (most + 1)))
        target = np.empty(group * most)
        offset = node_ptr[hop, relations[1, r]] - item_base[r]
        for first in range(begin, end, group):
            last = min(first + group, end)
            for item in range(last, min(last + AHEAD, end)):
                prefetch(cumulative, item_start[item] + item_degree[item] - 1)
                prefetch(blocks, (item_start[item] + item_degree[item] // 2) >> BLOCK_BITS)
            draw_group(
                position, target, first, last, replace and drawn, offset,
                item_start, item_degree, item_ptr, item_low, weight, cumulative, blocks,
                stream_of(hop, r), k0, k1,
            )  # fmt: skip
