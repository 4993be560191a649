"""Tables for weighted draws: running sums of the weights of each list, and alias tables.

An alias table turns a uniform draw into a draw in proportion to weights by reading one entry.

Method: Walker, "An Efficient Method for Generating Discrete Random Variables with General
Distributions" (ACM TOMS 3(3), 1977), filled in by Vose's linear algorithm (IEEE Transactions on
Software Engineering 17(9), 1991). A list of n edges has n slots, each drawn with probability 1 / n;
a slot gives its own edge with probability `keep`, and else the edge `other` of its list.

An entry is 8 bytes of one array, which kernels see as two: `keep` as a float32 at 2 * p, and
`other`, counted from the begin of the list, as a uint32 at 2 * p + 1. Above 0.5, `keep` is stored
as keep - 1, a negative number: so neither share of a slot is off by more than 2^-24 of itself, and
no edge is drawn with a probability that is, which is as well as a float32 holds a weight.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]
Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]

DONE = -1.0  # a share that has been assigned
# Between these, a sum of weights times a draw is neither a denormal nor an infinite number.
SMALL, LARGE = 2.0**-900, 2.0**1020
SMALLEST = 2.0**-1074
SMALLEST_SHARE = 2.0**-126  # GPU code may take smaller float32 numbers for 0


@kernel
def accumulate(indptr: Ints, weight: Doubles, out: Doubles, first: int, last: int) -> None:
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


def parts(table: npt.NDArray[np.int64]) -> tuple[Singles, npt.NDArray[np.uint32]]:
    """Return the views `keep` and `other` [2 * E] that kernels take of alias tables [E]."""
    return table.view(np.float32), table.view(np.uint32)


@kernel
def fill_alias(
    indptr: Ints, weight: Doubles, cumulative: Doubles, keep: Singles, other: Ints,
    first: int, last: int,
) -> None:  # fmt: skip
    """Fill in the entries of the lists indptr[first:last + 1]; lists without weight keep theirs.

    Edges below the mean weight are topped up from one above it, which turns into one below the mean
    when it has little left, and is topped up in turn.

    Example: weights 1, 5, 2 are 0.375, 1.875 and 0.75 of their mean. Slot 0 keeps its edge with
    0.375 and gives edge 1 else, which leaves 1.25; slot 2 keeps 0.75 (stored as -0.25) and gives
    edge 1 else; what is left of edge 1 is 1, so it keeps its own slot.
    """
    most = 0
    for v in range(first, last):
        most = max(most, indptr[v + 1] - indptr[v])
    share = np.empty(most)
    for v in range(first, last):
        start, degree = indptr[v], indptr[v + 1] - indptr[v]
        if degree == 0 or cumulative[start + degree - 1] == 0.0:
            continue
        for i in range(degree):
            share[i] = weight[start + i] / cumulative[start + degree - 1] * degree
            keep[2 * (start + i)] = 1.0
        heavy = next_heavy(share, 0, degree)
        source = heavy  # has weight, also when nothing above the mean is left
        for i in range(degree):
            light = i
            while 0.0 <= share[light] < 1.0 and (heavy < degree or share[light] == 0.0):
                kept, share[light] = share[light], DONE
                keep[2 * (start + light)] = encoded(kept)
                other[2 * (start + light) + 1] = source
                if heavy == degree:
                    break
                share[heavy] -= 1.0 - kept
                if share[heavy] >= 1.0:
                    break
                light = heavy
                heavy = next_heavy(share, heavy + 1, degree)
                source = heavy if heavy < degree else source


@kernel
def encoded(kept: float) -> float:
    """Return how a share in [0, 1) that a slot keeps is stored.

    Example: 0.25 is stored as 0.25 and 0.875 as -0.125.
    """
    if kept <= 0.5:
        return max(kept, SMALLEST_SHARE) if kept > 0.0 else 0.0
    return kept - 1.0


@kernel
def next_heavy(share: Doubles, at: int, degree: int) -> int:
    """Return the first edge from `at` on that has the mean weight or more, or `degree`."""
    while at < degree and share[at] < 1.0:
        at += 1
    return at
