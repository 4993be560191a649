"""Random walks, many side by side, so that their cache misses overlap.

A walk of `length` steps is a row of ``length + 1`` nodes. The draws of walk i at step s come from
counters of (i, s), so any range of walks may be done by any thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .gaps import to_unit
from .jit import kernel, prefetch
from .philox import PURPOSE_UNIFORM, below, philox4x32, stream_of

Ints = npt.NDArray[Any]

LANES = 64  # walks side by side
NOWHERE = -1  # what follows a node without an edge to go on, where a walk does not stay
BACK = -2  # in place of a position: the way back was drawn from its extra piece

# Streams of the draws; the other 24 bits of a stream hold the step.
STEPS, TRIALS, EXACT = 0, 1, 2
MAX_TRIALS = 64  # refused neighbours of one step, before the weights of all are added up


@kernel
def walk_uniformly(
    indptr: Ints, indices: Ints,
    base: Ints,  # [length]: first entry of `indptr` of the relation of each step
    start: Ints,  # [walks]
    first: int, last: int,  # the range of walks to do
    stay: bool,  # at a node without an edge to go on; else the rest of the walk is NOWHERE
    k0: np.uint64, k1: np.uint64,
    out: Ints,  # [walks, length + 1] out
) -> None:  # fmt: skip
    """Walk along uniformly drawn edges.

    Example: lists 0: [1], 1: [0, 2], 2: [] and the start 0 give 0, 1, 0, 1 or 0, 1, 2, 2 (with
    equal chances), and 0, 1, 2, -1 for the latter if walks do not stay.
    """
    words = np.empty((LANES, 4), np.uint64)
    current, position = np.empty((2, LANES), np.int64)
    stream, length = stream_of(0, STEPS), base.shape[0]
    for block in range(first, last, LANES):
        lanes = min(LANES, last - block)
        for lane in range(lanes):
            current[lane] = start[block + lane]
            out[block + lane, 0] = current[lane]
            if length > 0:
                prefetch(indptr, base[0] + current[lane])
        for step in range(length):
            for lane in range(lanes):
                walk = np.uint64(block + lane)
                if step & 3 == 0:
                    four = np.uint64(step >> 2)
                    drawn = philox4x32(four, walk, stream, PURPOSE_UNIFORM, k0, k1)
                    for i in range(4):
                        words[lane, i] = drawn[i]
                position[lane] = NOWHERE
                if current[lane] >= 0:
                    v = base[step] + current[lane]
                    degree = indptr[v + 1] - indptr[v]
                    if degree > 0:
                        position[lane] = indptr[v] + np.int64(
                            below(
                                words[lane, step & 3], np.uint64(degree), np.uint64(step), walk,
                                stream, k0, k1,
                            )
                        )  # fmt: skip
                        prefetch(indices, position[lane])
            for lane in range(lanes):
                if position[lane] >= 0:
                    current[lane] = indices[position[lane]]
                    if step + 1 < length:
                        prefetch(indptr, base[step + 1] + current[lane])
                elif not stay:
                    current[lane] = NOWHERE
                out[block + lane, step + 1] = current[lane]


@kernel
def count_of(indices: Ints, first: int, last: int, wanted: int) -> int:
    """Return how often `wanted` is in the sorted list indices[first:last].

    Example: 4 is twice in [1, 4, 4, 9].
    """
    end = last
    while first < last:
        middle = (first + last) >> 1
        if indices[middle] < wanted:
            first = middle + 1
        else:
            last = middle
    found = 0
    while first + found < end and indices[first + found] == wanted:
        found += 1
    return found


@kernel
def bias(indptr: Ints, indices: Ints, previous: int, x: int, p: float, q: float) -> float:
    """Return node2vec's weight of a step to x, coming from `previous`.

    1 / p for the way back, 1 where an edge leads from x to `previous`, else 1 / q.
    """
    if x == previous:
        return 1.0 / p
    if q == 1.0 or count_of(indices, indptr[x], indptr[x + 1], previous) > 0:
        return 1.0
    return 1.0 / q


@kernel
def step_exactly(
    indptr: Ints, indices: Ints, previous: int, current: int, p: float, q: float, draw: float
) -> int:
    """Return the next node of a walk, by adding up the weights of all neighbours.

    Example: neighbours 1, 5, 6 with the weights 4, 1, 1 and a draw of 0.8 mean 4.8 of 6, the 5.
    """
    first, last, total, chosen = indptr[current], indptr[current + 1], 0.0, NOWHERE
    for again in range(2):
        target, running = draw * total, 0.0
        for position in range(first, last):
            chosen = int(indices[position])
            running += bias(indptr, indices, previous, chosen, p, q)
            if again == 1 and running > target:
                return chosen
        total = running
    return chosen


@kernel
def try_step(
    indptr: Ints, indices: Ints, previous: int, x: int, p: float, q: float, height: float
) -> bool:
    """Whether to take the neighbour x for a draw of `height`, uniform below ``max(1, 1 / q)``."""
    if x == previous:
        return height < 1.0 / p
    if height < min(1.0, 1.0 / q):
        return True  # below either weight, so the edges of x need not be read
    return height < bias(indptr, indices, previous, x, p, q)


@kernel
def propose(
    indptr: Ints, v: int, back: int, line: float, extra: float,
    trial: np.uint64, walk: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> tuple[int, float]:  # fmt: skip
    """Return the position of a neighbour of v, and the height of a point over its list.

    The point is uniform under `line` over the list and, after it, a piece of weight `extra` for
    each of `back` ways back. (BACK, 0) if it is in that piece, (NOWHERE, 0) without neighbours.
    """
    degree = indptr[v + 1] - indptr[v]
    if degree == 0:
        return NOWHERE, 0.0
    words = philox4x32(trial, walk, stream, PURPOSE_UNIFORM, k0, k1)
    draw = to_unit(words[1], words[2]) * (degree * line + extra * back)
    if back > 0 and draw >= degree * line:
        return BACK, 0.0
    at = below(words[0], np.uint64(degree), trial, walk, stream, k0, k1)
    return indptr[v] + np.int64(at), draw / degree


@kernel
def walk_biased(
    indptr: Ints, indices: Ints,  # each list sorted
    start: Ints,  # [walks]
    first: int, last: int,  # the range of walks to do
    p: float, q: float,
    k0: np.uint64, k1: np.uint64,
    out: Ints,  # [walks, length + 1] out
) -> None:  # fmt: skip
    """Walk by the law of node2vec: each step is weighted by where the step before came from.

    Method: rejection sampling as in Yang et al., "KnightKing: A Fast Distributed Graph Random Walk
    Engine" (SOSP 2019), section 4. A draw is a point under the line ``max(1, 1 / q)`` over the list
    of neighbours; it is taken if it is below the neighbour's own weight. Where the way back weighs
    more than that, what stands out is an extra piece after the list ("outliers"). After MAX_TRIALS
    refusals the weights of all neighbours are added up, which leaves the law what it was, as
    refusals do not depend on each other.

    Each round makes one trial of every walk of a block, whatever their steps. A walk stays where no
    edge leads on.
    """
    current, previous, step, trial, back, position = np.empty((6, LANES), np.int64)
    height = np.empty(LANES)
    line = max(1.0, 1.0 / q)
    extra = max(0.0, 1.0 / p - line)
    length = out.shape[1] - 1
    for block in range(first, last, LANES):
        lanes = min(LANES, last - block)
        previous[:], step[:], trial[:], back[:] = NOWHERE, 0, 0, 0
        for lane in range(lanes):
            current[lane] = out[block + lane, 0] = start[block + lane]
        unfinished = lanes if length > 0 else 0
        while unfinished > 0:
            unfinished = 0
            for lane in range(lanes):
                if step[lane] < length:
                    position[lane], height[lane] = propose(
                        indptr, current[lane], back[lane], line, extra, np.uint64(trial[lane]),
                        np.uint64(block + lane), stream_of(TRIALS, step[lane]), k0, k1,
                    )  # fmt: skip
                    prefetch(indices, position[lane])
            for lane in range(lanes):
                if step[lane] == length:
                    continue
                came, v = previous[lane], current[lane]
                if position[lane] == BACK:
                    x = came
                elif position[lane] == NOWHERE:
                    x = v
                else:
                    x = indices[position[lane]]
                    if came >= 0 and not try_step(indptr, indices, came, x, p, q, height[lane]):
                        trial[lane] += 1
                        unfinished += 1
                        if trial[lane] < MAX_TRIALS:
                            continue
                        unfinished -= 1
                        words = philox4x32(
                            np.uint64(0), np.uint64(block + lane), stream_of(EXACT, step[lane]),
                            PURPOSE_UNIFORM, k0, k1,
                        )  # fmt: skip
                        draw = to_unit(words[0], words[1])
                        x = step_exactly(indptr, indices, came, v, p, q, draw)
                previous[lane], current[lane], trial[lane] = v, x, 0
                step[lane] += 1
                out[block + lane, step[lane]] = x
                prefetch(indptr, x)
                unfinished += step[lane] < length
            if extra > 0.0:
                count_ways_back(indptr, indices, current, previous, trial, lanes, back)


@kernel
def count_ways_back(
    indptr: Ints, indices: Ints, current: Ints, previous: Ints, trial: Ints, lanes: int, back: Ints
) -> None:
    """Count the edges from each walk's node to the one before, where a step begins."""
    for lane in range(lanes):
        if trial[lane] == 0 and previous[lane] >= 0:
            v = current[lane]
            back[lane] = count_of(indices, indptr[v], indptr[v + 1], previous[lane])
