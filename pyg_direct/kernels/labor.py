"""LABOR: all frontier nodes of a hop rank their neighbours by the same numbers.

Every node t has one variate, a 64-bit word that is a function of t, its type, the hop and the key,
and a list gives the k edges whose sources have the smallest ones. Of any single list every subset
of k edges is equally likely, as the variates of distinct sources are independent. Lists that
overlap tend to take the same sources, so that a batch has fewer nodes.

Method: Balin and Catalyurek, "Layer-Neighbor Sampling - Defusing Neighborhood Explosion in GNNs"
(NeurIPS 2023), in its sequential Poisson form with equal weights, which takes exactly k. Batches
that follow one another may share variates, as the dependent minibatches of Balin, LaSalle and
Catalyurek do ("Cooperative Minibatching in Graph Neural Networks", TMLR 2025). They mix normal
variates; here each node's variate changes at once, at a moment of its own between two windows,
which takes integers only: see `fill_variates`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .exclude import excluded_of, step_over
from .jit import kernel, prefetch
from .philox import MASK, PURPOSE_LABOR, SHIFT, Word, philox4x32_inlined, stream_of

Ints = npt.NDArray[Any]
Words = npt.NDArray[np.uint64]

BLOCK = 256  # variates that are computed together, as vector instructions
ALL_PAIRS = 64  # candidates that are ordered by comparing all pairs
PREFETCH_DISTANCE = 4  # in items
NONE_CHANGED, LARGEST = np.uint64(0), np.uint64(2**64 - 1)


@kernel
def fill_variates(
    out: Words, indices: Ints, first: int, count: int, stream: Word,
    k0: Word, k1: Word, next0: Word, next1: Word, share: Word,
) -> None:  # fmt: skip
    """Write the variates of the sources at indices[first:first + count].

    A node's variate is two words under the first key; or two under the next key, if a third word
    under that is below `share`. The third is independent of the two, so the variate is uniform for
    every share, and a node that has changed stays so while the share grows.

    Example: share 2^31, and third words 2^30 and 3 * 2^30 of the nodes 7 and 9: 7 has the variate
    of the next key already, 9 that of the first.
    """
    for i in range(count):
        t = np.uint64(indices[first + i])
        words = philox4x32_inlined(t & MASK, t >> SHIFT, stream, PURPOSE_LABOR, k0, k1)
        out[i] = words[0] << SHIFT | words[1]
    if share != NONE_CHANGED:
        for i in range(count):
            t = np.uint64(indices[first + i])
            words = philox4x32_inlined(t & MASK, t >> SHIFT, stream, PURPOSE_LABOR, next0, next1)
            out[i] = words[0] << SHIFT | words[1] if words[2] < share else out[i]


@kernel
def candidates_below(size: int, degree: int) -> Word:
    """Return a bound that the `size` smallest of `degree` variates are rarely above: 1 in 1,000.

    Example: of 100 variates, the 25 smallest are looked for among those below 0.44 of the range,
    which are 44 on average.
    """
    share = (size + 3.0 * np.sqrt(size) + 4.0) / degree
    return np.uint64(share * 2.0**64) if share < 1.0 else LARGEST  # type: ignore[no-any-return]


@kernel
def take_smallest(
    position: Ints, first: int, size: int, variate: Words, place: Ints, count: int, order: Ints
) -> None:
    """Write the `size` places of smallest variates to position[first:], ascending by variate.

    Args:
        position: out.
        first: where to write.
        size: how many.
        variate: [count or more], of candidates by ascending place.
        place: [count or more].
        count: of the candidates, at least `size`.
        order: [ALL_PAIRS], scratch memory.

    Example: the variates 6, 2, 5 of the places 10, 11, 13 and size 2 give 11, 13.
    """
    if count <= ALL_PAIRS:  # comparing all pairs needs no branch that could be mispredicted
        for i in range(count):
            own, rank = variate[i], 0
            for j in range(count):
                rank += np.int64((variate[j] < own) | ((variate[j] == own) & (j < i)))
            order[rank] = place[i]
        for j in range(size):
            position[first + j] = order[j]
    else:
        ranked = np.argsort(variate[:count], kind="mergesort")
        for j in range(size):
            position[first + j] = place[ranked[j]]


@kernel
def doubled(values: Any) -> Any:
    """Return an array of twice the length that begins with the values."""
    out = np.empty(2 * values.shape[0], values.dtype)
    out[: values.shape[0]] = values
    return out


@kernel
def draw_labor(
    indices: Ints,  # [E]
    relations: Ints,  # [3, R]
    fanout: Ints,  # [R]
    layer: int,  # the hop that the variates are of
    k0: Word,
    k1: Word,
    next0: Word,
    next1: Word,
    share: Word,
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items]
    item_degree: Ints,  # [items]
    item_ptr: Ints,  # [items + 1]
    item_first: int,  # the range of items to do
    item_last: int,
    position: Ints,  # [edges] out: position in `indices`
    excluded: Ints,  # positions that no item may take
    item_excluded: Ints,  # [2, items]: those of each item; [2, 0] where no item has any
) -> None:
    """Choose the edges of the items in [item_first, item_last) whose fan-out is not negative.

    Those of a list that is cut come by ascending variate, those of a whole list in its order.

    Example: fan-out 2, the lists [7, 4, 9] and [4, 9], and variates 0.6, 0.2, 0.5 of the nodes 7,
    4, 9: both take 4 and 9, where independent draws would often take 7 as well.
    """
    variate, order = np.empty(BLOCK, np.uint64), np.empty(ALL_PAIRS, np.int64)
    chosen, place = np.empty(2 * BLOCK, np.uint64), np.empty(2 * BLOCK, np.int64)
    for r in range(fanout.shape[0]):
        if fanout[r] < 0:
            continue
        stream = stream_of(layer, relations[0, r])
        for item in range(max(item_base[r], item_first), min(item_base[r + 1], item_last)):
            prefetch(indices, item_start[min(item + PREFETCH_DISTANCE, item_last - 1)])
            first, size = item_ptr[item], item_ptr[item + 1] - item_ptr[item]
            start, degree = item_start[item], item_degree[item]
            begin, end = excluded_of(item, item_excluded)
            if size == degree or size == 0:
                for j in range(size):
                    position[first + j] = start + j
                step_over(position, first, first + size, excluded, begin, end)
                continue
            bound, stop, count = candidates_below(size, degree), start + degree + end - begin, 0
            while count < size:
                count, skip = 0, begin
                for block in range(start, stop, BLOCK):
                    if chosen.shape[0] < count + BLOCK:
                        chosen, place = doubled(chosen), doubled(place)
                    here = min(BLOCK, stop - block)
                    fill_variates(
                        variate, indices, block, here, stream, k0, k1, next0, next1, share
                    )
                    for i in range(here):
                        chosen[count], place[count] = variate[i], block + i
                        taken = variate[i] <= bound
                        if skip < end and excluded[skip] == block + i:
                            taken = False
                            skip += 1
                        count += taken
                bound = LARGEST
            take_smallest(position, first, size, chosen, place, count, order)
