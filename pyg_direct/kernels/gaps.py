"""Weighted draws from what earlier picks, or excluded edges, leave of a neighbour list.

The taken positions, ascending, cut the list into gaps, whose weights are differences of cumulative
weights. A draw reads as many sums as there are gaps, and bisects in one of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .jit import kernel
from .philox import ATTEMPT_SHIFT, PURPOSE_WEIGHTED, philox4x32

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

# Below this share of a list's weight, a difference of cumulative weights has lost its precision
# (2^-53 / 2^-20), and what is left is added up afresh.
TINY_SHARE = 2.0**-20
LOW_BITS, HIGH_BITS = np.uint64(5), np.uint64(6)
ONE = np.uint64(1)


class Span(NamedTuple):
    """The part of one neighbour list that may be drawn."""

    start: int
    degree: int
    low: float  # cumulative weight of the list before `start`


class DrawKey(NamedTuple):
    """What all draws of one relation in one hop have in common; see `philox`."""

    stream: np.uint64
    k0: np.uint64
    k1: np.uint64


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
                if chosen == stop:
                    break  # rounding went past the gap
                return chosen
            target -= mass
            if stop < end:
                before, gap = cumulative[stop], stop + 1
    return pick_exactly(position, first, picked, start, end, weight, draw)


@kernel
def pick_the_rest(
    position: Ints, first: int, found: int, k: int, span: Span,
    weight: Doubles, cumulative: Doubles, local: np.uint64, source: DrawKey,
) -> None:  # fmt: skip
    """Add to `found` picks what is missing to k, each drawn from what is left, and sort them."""
    start, end = span.start, span.start + span.degree
    for j in range(k):
        chosen = position[first + j]
        if j >= found:
            draw = uniform(j, 1, local, source.stream, source.k0, source.k1)
            chosen = pick_from_gaps(
                position, first, j, start, end, weight, cumulative, span.low, draw
            )
        at = first + j
        while at > first and position[at - 1] > chosen:
            position[at] = position[at - 1]
            at -= 1
        position[at] = chosen


@kernel
def pick_around(
    position: Ints, first: int, k: int, replace: bool, span: Span,
    excluded: Ints, excluded_first: int, excluded_last: int,
    weight: Doubles, cumulative: Doubles, local: np.uint64, source: DrawKey,
) -> None:  # fmt: skip
    """Write k positions that are not excluded, by the laws of `weighted`; distinct ones ascend.

    `span.degree` counts the positions that are left. The excluded ones are cut out like picks.

    Example: weights 1, 5, 2 with the 5 excluded: a draw of 0.5 means 1.5 of 3 and takes the 2.
    """
    count = excluded_last - excluded_first
    start, end = span.start, span.start + span.degree + count
    taken = np.empty(count + k, np.int64)
    for i in range(count):
        taken[i] = excluded[excluded_first + i]
    for j in range(k):
        draw = uniform(j, 1, local, source.stream, source.k0, source.k1)
        if replace and span.low > 0.0:
            chosen = pick_exactly(taken, 0, count, start, end, weight, draw)
        else:
            chosen = pick_from_gaps(taken, 0, count, start, end, weight, cumulative, span.low, draw)
        at = first + j
        if not replace:
            while at > first and position[at - 1] > chosen:
                position[at] = position[at - 1]
                at -= 1
            place = count
            while place > 0 and taken[place - 1] > chosen:
                taken[place] = taken[place - 1]
                place -= 1
            taken[place] = chosen
            count += 1
        position[at] = chosen
