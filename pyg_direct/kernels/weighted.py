"""Draws in proportion to edge weights.

A draw reads one entry of the list's alias table (see `alias`). Where times exclude a part of the
list it inverts the cumulative weights instead, of which it reads O(log degree); and where a few
edges are excluded, it draws from the gaps that they leave (see `gaps`). All arithmetic
is addition, subtraction, multiplication and comparison of doubles in a fixed order, so the GPU gets
the same picks.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from .exclude import excluded_of, step_over
from .gaps import (
    DrawKey,
    Span,
    first_above,
    pick_around,
    pick_exactly,
    pick_the_rest,
    to_unit,
)
from .jit import kernel, prefetch
from .philox import PURPOSE_WEIGHTED, philox4x32_inlined, stream_of
from .sample import Maybe, local_of
from .temporal import NO_TIME

Ints = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

ZERO, ONE = np.uint64(0), np.uint64(1)
SEEN_BITS = 64  # of a word that knows all picks of a list so short

BLOCK_DRAWS = 1024  # draws that are made together, unless one item has more
PREFETCH_DISTANCE = 6  # in items: the processor drops more
DRAWS_PER_PICK = 3  # draws from the whole list that an item may use up for distinct picks


# What the kernels below pass on together. `draw_weighted` builds these records: passing one from
# Python costs microseconds, building one in a kernel nothing. What is called for each item takes
# its arrays one by one, though, because numba counts a reference for each array that it unpacks.


class Weights(NamedTuple):
    """What draws from the lists of one relation read; see `alias` for the tables."""

    aliased: bool  # whether all of a list may be drawn, so that its alias table decides
    keep: Singles  # [2 * E]
    other: Ints  # [2 * E]
    weight: Doubles  # [E]
    cumulative: Doubles  # [E]


class Items(NamedTuple):
    """The (relation, frontier node) pairs of a hop."""

    start: Ints  # [items]: first position that may be taken
    degree: Ints  # [items]: how many positions may be taken
    ptr: Ints  # [items + 1]: first edge of each item
    low: Doubles  # [items]: cumulative weight before the item
    excluded: Ints  # positions that no item may take
    excluded_range: Ints  # [2, items]: those of each item; [2, 0] where no item has any
    local: Maybe  # of `local_of`


class ItemPicks(NamedTuple):
    """Where the picks of one item go, and which draws they take."""

    first: int  # place of the first pick in `position`
    k: int
    at: int  # place of the first draw in `draw`
    local: np.uint64  # local id of the item's node


class Draws(NamedTuple):
    """Scratch memory for the draws of several items."""

    draw: Doubles  # [2 * counters]: the draws in [0, 1)
    counter: Words  # [counters]: counter word 0, of two slots each
    local: Words  # [counters]: counter word 1, the local id of the item's node


@kernel
def fill_uniform(
    out: Doubles, counter: Words, local: Words, counters: int,
    stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Fill out[2 * i] and out[2 * i + 1] with the draws of the slots 2 * counter[i] and the next.

    A plain loop over the counters of many items, which becomes vector instructions.
    """
    for i in range(counters):
        words = philox4x32_inlined(counter[i], local[i], stream, PURPOSE_WEIGHTED, k0, k1)
        out[2 * i] = to_unit(words[0], words[1])
        out[2 * i + 1] = to_unit(words[2], words[3])


@kernel
def find(
    draw: float, start: int, degree: int, aliased: bool, keep: Singles, other: Ints,
    cumulative: Doubles,
) -> int:  # fmt: skip
    """Return the position that a draw from [0, 1) takes of a list; its end if rounding passed it.

    With `aliased` one entry of its alias table decides, else the cumulative weights.

    Example: weights 1, 5, 2 and the draw 0.25: slot 0.75 is slot 0, which keeps its edge up to
    0.375, so it takes the 5; by cumulative weights 2 of 8 takes the 5, too.
    """
    if aliased:
        scaled = draw * degree
        slot = np.int64(scaled)  # below `degree`, as draws have 53 bits
        at = 2 * (start + slot)
        instead = np.int64(other[at + 1])
        kept = keep[at] + np.float64(keep[at] < 0.0)
        # Plain form: `start + (slot if scaled - slot < kept else instead)`. Arithmetic instead of a
        # branch, which would be mispredicted half of the time.
        return start + slot + np.int64(scaled - slot >= kept) * (instead - slot)  # type: ignore[no-any-return]
    end = start + degree
    return first_above(cumulative, start, end, draw * cumulative[end - 1])


@kernel
def pick_with_replacement(
    position: Ints, picks: ItemPicks, span: Span, draw: Doubles,
    aliased: bool, keep: Singles, other: Ints, weight: Doubles, cumulative: Doubles,
) -> None:  # fmt: skip
    """Write k independent draws, each with probability weight / sum of weights.

    An item that begins inside its list is short (the latest neighbours, of positive weight k at
    most), and its share of the running sums may be lost in rounding: so its weights are added up
    afresh.

    Example: weights 1, 5, 2 and draws 0.5, 0 mean 4 and 0 of 8, so they take the 5 and the 1.
    """
    first, k, at, _ = picks
    start, degree, low = span
    end = start + degree
    for j in range(k):
        if low > 0.0:
            p = pick_exactly(position, first, 0, start, end, weight, draw[at + j])
        else:
            p = find(draw[at + j], start, degree, aliased, keep, other, cumulative)
            if p == end:  # rounding went past the last weight
                p -= 1
                while weight[p] <= 0.0:
                    p -= 1
        position[first + j] = p


@kernel
def pick_distinct(
    position: Ints, picks: ItemPicks, span: Span, draw: Doubles,
    aliased: bool, keep: Singles, other: Ints, weight: Doubles, cumulative: Doubles,
    source: DrawKey,
) -> None:  # fmt: skip
    """Write k distinct positions with positive weight; the list must have k of them.

    The law is that of successive draws: each takes one of the positions left with probability
    weight / weight left, as Efraimidis and Spirakis ("Weighted random sampling with a reservoir",
    Information Processing Letters 97(5), 2006) define it. Draws from the whole list that skip what
    was picked before have that law. Where too few of them are new, the rest is drawn from
    what is left.

    Example: weights 1, 5, 2 and draws that fall on the 5, the 5 and the 2 pick the 5 and the 2.
    """
    first, k, at, local = picks
    start, degree, low = span
    found, seen, end = 0, ZERO, start + degree
    for j in range(DRAWS_PER_PICK * k if low == 0.0 else 0):
        chosen = find(draw[at + j], start, degree, aliased, keep, other, cumulative)
        bit = ONE << np.uint64((chosen - start) & (SEEN_BITS - 1))
        is_new = (seen & bit) == ZERO
        if degree > SEEN_BITS and not is_new:  # the bit may be that of another position
            i = first
            while i < first + found and position[i] != chosen:
                i += 1
            is_new = i == first + found
        is_new &= chosen < end  # else rounding went past the last weight
        seen |= bit
        position[first + found] = chosen
        found += is_new
        if found == k:
            return
    pick_the_rest(position, first, found, k, span, weight, cumulative, local, source)


@kernel
def draw_block(
    position: Ints, draws: Draws, first_item: int, last_item: int, replace: bool, offset: int,
    items: Items, weights: Weights, source: DrawKey,
) -> None:  # fmt: skip
    """Draw the edges of a few items of one relation.

    First the draws of all items; then the picks, while what the next items read is prefetched.
    """
    draw, counter, local = draws
    item_start, item_degree, item_ptr, item_low, excluded, item_excluded, item_local = items
    aliased, keep, other, weight, cumulative = weights
    counters = 0
    for item in range(first_item, last_item):
        k = drawn_of(item, replace, item_degree, item_ptr)
        for j in range(counters_of(k, replace)):
            counter[counters + j] = j
            local[counters + j] = local_of(item, offset, item_local)
        counters += counters_of(k, replace)
    fill_uniform(draw, counter, local, counters, source.stream, source.k0, source.k1)
    at, ahead, ahead_at = 0, first_item, 0
    for item in range(first_item, last_item):
        while ahead < min(item + PREFETCH_DISTANCE, last_item):
            k = drawn_of(ahead, replace, item_degree, item_ptr)
            prefetch_draws(
                draw, ahead_at, k, item_start[ahead], item_degree[ahead],
                aliased, keep, cumulative,
            )  # fmt: skip
            ahead_at += 2 * counters_of(k, replace)
            ahead += 1
        first, span = item_ptr[item], Span(item_start[item], item_degree[item], item_low[item])
        k = drawn_of(item, replace, item_degree, item_ptr)
        picks = ItemPicks(first, k, at, local_of(item, offset, item_local))
        begin, end = excluded_of(item, item_excluded)
        if k == 0:
            for j in range(item_ptr[item + 1] - first):  # all of them
                position[first + j] = span.start + j
            step_over(position, first, item_ptr[item + 1], excluded, begin, end)
        elif begin < end:
            pick_around(
                position, first, k, replace, span, excluded, begin, end, weight, cumulative,
                picks.local, source,
            )  # fmt: skip
        elif replace:
            pick_with_replacement(
                position, picks, span, draw, aliased, keep, other, weight, cumulative
            )
        else:
            pick_distinct(
                position, picks, span, draw, aliased, keep, other, weight, cumulative, source
            )  # fmt: skip
        at += 2 * counters_of(k, replace)


@kernel
def prefetch_draws(
    draw: Doubles, at: int, k: int, start: int, degree: int,
    aliased: bool, keep: Singles, cumulative: Doubles,
) -> None:  # fmt: skip
    """Prefetch what `find` will read of a list for draw[at:at + k]."""
    if aliased:
        for j in range(at, at + k):
            prefetch(keep, 2 * (start + np.int64(draw[j] * degree)))
    elif k > 0:
        prefetch(cumulative, start + degree - 1)
        prefetch(cumulative, start + degree // 2)


@kernel
def drawn_of(item: int, replace: bool, item_degree: Ints, item_ptr: Ints) -> int:
    """Return how many edges of an item are drawn: 0 where its list is taken whole."""
    k = item_ptr[item + 1] - item_ptr[item]
    return 0 if k == item_degree[item] and not replace else k


@kernel
def counters_of(k: int, replace: bool) -> int:
    """Return how many counters, of two draws each, k edges may need."""
    return ((k if replace else DRAWS_PER_PICK * k) + 1) >> 1


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
    time_base: Ints,  # [R]: NO_TIME where all of a list may be drawn
    keep: Singles,  # [2 * E]: the alias tables, if any relation is weighted and has no time
    other: Ints,  # [2 * E]: the same memory
    weight: Doubles,  # [E]
    cumulative: Doubles,  # [E]
    item_low: Doubles,  # [items]: cumulative weight before the item
    excluded: Ints,  # positions that no item may take
    item_excluded: Ints,  # [2, items]: those of each item; [2, 0] where no item has any
    item_local: Maybe,  # of `local_of`
) -> None:
    """Draw the edges of the items of weighted relations in [item_first, item_last)."""
    items = Items(item_start, item_degree, item_ptr, item_low, excluded, item_excluded, item_local)
    for r in range(fanout.shape[0]):
        if not weighted[r]:
            continue
        drawn = replace and fanout[r] >= 0  # else all of each list
        begin, end = max(item_base[r], item_first), min(item_base[r + 1], item_last)
        most = 0
        for item in range(begin, end):
            k = drawn_of(item, drawn, item_degree, item_ptr)
            most = max(most, 2 * counters_of(k, drawn))
        block = max(1, BLOCK_DRAWS // (most + 1))
        counter = np.empty(block * most // 2, np.uint64)
        draws = Draws(np.empty(block * most), counter, np.empty_like(counter))
        weights = Weights(time_base[r] == NO_TIME, keep, other, weight, cumulative)
        source = DrawKey(stream_of(hop, r), k0, k1)
        offset = node_ptr[hop, relations[1, r]] - item_base[r]
        for first in range(begin, end, block):
            last = min(first + block, end)
            draw_block(position, draws, first, last, drawn, offset, items, weights, source)
