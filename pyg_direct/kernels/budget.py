"""The node budget of HGT's sampler: which nodes may be drawn next, and how likely each is.

Method: Hu et al., "Heterogeneous Graph Transformer" (WWW 2020), section 4.2, algorithms 1 and 2.
The candidates of each node type are a list, in the order in which they were met. A table of all
nodes tells the place of each in its list: an entry is `stamp + place`, and entries of earlier
batches are below the stamp.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .gaps import DrawKey, Span
from .jit import kernel, prefetch
from .weighted import ItemPicks, counters_of, fill_uniform, pick_distinct

Ints = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

PREFETCH_DISTANCE, ONE = np.uint64(16), np.uint64(1)
TAKEN, PICKED = -1.0, -2.0  # budgets of nodes that were drawn before, and now


@kernel
def take_seeds(
    seed: Ints, base: int, table: Ints, stamp: np.uint32, node: Ints, budget: Doubles
) -> int:
    """Enter the seeds of one type as drawn, each once, and return how many there are.

    Example: seeds 7, 4, 7 give node = [7, 4] and budget = [TAKEN, TAKEN].
    """
    count = 0
    for i in range(seed.shape[0]):
        if table[base + seed[i]] < stamp:
            table[base + seed[i]] = stamp + np.uint32(count)
            node[count] = seed[i]
            budget[count] = TAKEN
            count += 1
    return count


@kernel
def count_neighbours(indptr: Ints, indptr_base: int, drawn: Ints) -> int:
    """Return how many edges lead to the nodes `drawn` under one relation."""
    total = 0
    for i in range(drawn.shape[0]):
        v = indptr_base + drawn[i]
        total += indptr[v + 1] - indptr[v]
    return total


@kernel
def add_neighbours(
    indptr: Ints, indices: Ints, indptr_base: int,
    drawn: Ints,  # nodes of the destination type that were drawn last
    base: int,  # first table entry of the source type
    table: Ints, stamp: np.uint32,
    node: Ints, budget: Doubles,  # of the source type
    count: int,  # candidates of the source type
) -> int:  # fmt: skip
    """Add 1 / degree of each node drawn to the budget of its neighbours (algorithm 2).

    Returns how many candidates there are of the source type now. The degree is that of the
    relation; parallel edges count one by one.

    Example: node 3 with the neighbours 8, 9, 9, 5, of which 5 was drawn before: 8 gets 1/4, 9 gets
    2/4, and 5 nothing.
    """
    for i in range(drawn.shape[0]):
        v = np.uint64(indptr_base + drawn[i])
        first, last = np.uint64(indptr[v]), np.uint64(indptr[v + ONE])
        share = 1.0 / np.float64(last - first) if last > first else 0.0
        for p in range(first, last):
            if p + PREFETCH_DISTANCE < last:
                prefetch(table, base + indices[p + PREFETCH_DISTANCE])
            at = np.uint64(base + indices[p])
            if table[at] < stamp:
                table[at] = stamp + np.uint32(count)
                node[count] = indices[p]
                budget[count] = 0.0
                count += 1
            place = np.uint64(table[at] - stamp)
            if budget[place] >= 0.0:
                budget[place] += share
    return count


@kernel
def draw_candidates(
    node: Ints, budget: Doubles, count: int, k: int,
    stream: np.uint64, k0: np.uint64, k1: np.uint64,
    keep: Singles, other: Ints,  # no alias tables: [0]
) -> Ints:  # fmt: skip
    """Draw k candidates, or all if there are fewer, and return them in the order of their list.

    Draws follow one another, each from the candidates left with probability budget^2 / sum of
    budget^2 (algorithm 1, line 8; the law of `weighted.pick_distinct`).

    Example: candidates 8, 9, 4 with the budgets 0.5, TAKEN, 1 and k = 1 give 8 with probability 0.2
    and 4 with 0.8.
    """
    weight, cumulative = np.empty(count), np.empty(count)
    running, left = 0.0, 0
    for i in range(count):
        weight[i] = budget[i] * budget[i] if budget[i] > 0.0 else 0.0
        running += weight[i]
        cumulative[i] = running
        left += weight[i] > 0.0
    if k >= left:
        for i in range(count):
            if weight[i] > 0.0:
                budget[i] = PICKED
    elif k > 0:
        counters = counters_of(k, False)
        draw, position = np.empty(2 * counters), np.empty(k + 1, np.int64)
        counter, local = np.empty(counters, np.uint64), np.zeros(counters, np.uint64)
        for i in range(counters):
            counter[i] = i
        fill_uniform(draw, counter, local, counters, stream, k0, k1)
        pick_distinct(
            position, ItemPicks(0, k, 0, np.uint64(0)), Span(0, count, 0.0), draw,
            False, keep, other, weight, cumulative, DrawKey(stream, k0, k1),
        )  # fmt: skip
        for i in range(k):
            budget[position[i]] = PICKED
    drawn = np.empty(min(k, left), np.int64)
    at = 0
    for i in range(count):
        if budget[i] == PICKED:
            budget[i] = TAKEN
            drawn[at] = node[i]
            at += 1
    return drawn
