"""Temporal sampling: which part of a time-sorted neighbour list is no later than its seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .exclude import excluded_of, position_of
from .jit import kernel, prefetch

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]

NO_TIME = -2  # in place of a first index into times, as in core/types and cuda/times.cuh
LARGEST_TIME = np.iinfo(np.int64).max
LANES = 64  # binary searches that run side by side


@kernel
def time_at(position: int, indices: Ints, time: Ints, time_base: int) -> int:
    """Return the time of one neighbour: of its edge (`time_base` < 0), else of its node."""
    return time[position] if time_base < 0 else time[np.uint64(time_base + indices[position])]  # type: ignore[no-any-return]


@kernel
def count_until(
    start: Ints, degree: Ints, first: int, last: int,
    seed_of: Ints, seed_first: int, seed_time: Ints,
    indices: Ints, time: Ints, time_base: int,
) -> None:  # fmt: skip
    """Shorten time-sorted neighbour lists [first, last) to what is no later than their seeds.

    List i begins at start[i] and has degree[i] neighbours, of which the first that are no later
    than the seed of its subgraph, seed_of[seed_first + i - first], are left. The lists are bisected
    side by side, a step of each in turn, and each step asks for what the next one reads, so that
    the cache misses overlap. (The prefetches are written out twice: numba does not inline a
    function that holds them, and a call costs as much as the search.)

    Example: times 3, 5, 5, 9 and a seed of time 5 leave a degree of 3.
    """
    by_edge = time_base < 0
    low, size, latest, unsettled = np.empty((4, LANES), np.int64)
    for begin in range(first, last, LANES):
        lanes = min(LANES, last - begin)
        count = 0
        for lane in range(lanes):
            low[lane], size[lane] = start[begin + lane], degree[begin + lane]
            latest[lane] = seed_time[seed_of[seed_first + begin - first + lane]]
            if by_edge:
                prefetch(time, low[lane] + (size[lane] >> 1))
            else:
                prefetch(indices, low[lane] + (size[lane] >> 1))
            unsettled[count] = lane
            count += size[lane] > 0
        while count > 0:
            open_lanes, count = np.uint64(count), 0
            if not by_edge:
                for i in range(open_lanes):
                    lane = np.uint64(unsettled[i])
                    middle = np.uint64(low[lane] + (size[lane] >> 1))
                    prefetch(time, time_base + indices[middle])
            for i in range(open_lanes):
                lane = np.uint64(unsettled[i])
                half = size[lane] >> 1
                middle = np.uint64(low[lane] + half)
                past = np.int64(time_at(middle, indices, time, time_base) <= latest[lane])
                # Plain form of a step of the binary search:
                #     if past: low += half + 1; size -= half + 1
                #     else: size = half
                # As arithmetic (-past is all ones or 0), because the branch is unpredictable. In
                # the past, size - half - 1 is half, or half - 1 if size is even.
                low[lane] += (half + 1) & -past
                size[lane] = half - (past & ~size[lane] & 1)
                if by_edge:
                    prefetch(time, low[lane] + (size[lane] >> 1))
                else:
                    prefetch(indices, low[lane] + (size[lane] >> 1))
                unsettled[np.uint64(count)] = np.int64(lane)
                count += size[lane] > 0
        for lane in range(lanes):
            degree[begin + lane] = low[lane] - start[begin + lane]


@kernel
def skip_until(
    start: Ints, degree: Ints, first: int, last: int,
    seed_of: Ints, seed_first: int, seed_before: Ints,
    indices: Ints, time: Ints, time_base: int,
) -> None:  # fmt: skip
    """Drop from the lists [first, last), each sorted by time, what is no later than `seed_before`.

    As `count_until`, which finds how many there are. A `seed_before` of the largest int64 stands
    for the time before the least one, and drops nothing.

    Example: times 3, 5, 5, 9 and a seed_before of 3 leave 5, 5, 9: one more in `start`, one less in
    `degree`.
    """
    early = degree[first:last].copy()
    count_until(
        start[first:last], early, 0, last - first, seed_of, seed_first, seed_before,
        indices, time, time_base,
    )  # fmt: skip
    for i in range(last - first):
        if seed_before[seed_of[seed_first + i]] == LARGEST_TIME:
            continue
        start[first + i] += early[i]
        degree[first + i] -= early[i]


@kernel
def cut_items(
    node_start: Ints,  # [T]
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    hop: int,
    indices: Ints,  # [E]
    time: Ints,  # int64: of the nodes [sum_t N_t] or of the edges [E]
    time_base: Ints,  # [R]: where the times of the source type begin, EDGE_TIME or NO_TIME
    seed_of: Ints,  # [capacity]
    seed_time: Ints,  # [seeds]
    seed_before: Ints,  # [seeds]: what is no later is too old, see `skip_until`; [0]: nothing is
    weighted: npt.NDArray[np.bool_],  # [R]
    cumulative: Doubles,  # [E]; [0] without weights
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items] in and out: first position that may be taken
    item_degree: Ints,  # [items] in and out: how many positions may be taken
    item_low: Doubles,  # [items] in and out: cumulative weight before the item; [0] without weights
) -> None:
    """Cut the lists of the items of hop `hop` to what their seeds may see.

    Example: times 3, 5, 5, 9 and a seed of time 5 leave 3, 5, 5; with a `seed_before` of 4, 5, 5.
    """
    for r in range(relations.shape[1]):
        if time_base[r] == NO_TIME:
            continue
        dst = relations[1, r]
        first, last = item_base[r], item_base[r + 1]
        seed_first = node_start[dst] + node_ptr[hop, dst]
        count_until(
            item_start, item_degree, first, last, seed_of, seed_first, seed_time,
            indices, time, time_base[r],
        )  # fmt: skip
        if seed_before.shape[0] == 0:
            continue
        past = item_degree[first:last].copy()
        skip_until(
            item_start, item_degree, first, last, seed_of, seed_first, seed_before,
            indices, time, time_base[r],
        )  # fmt: skip
        for item in range(first, last if weighted[r] else first):
            if item_degree[item] < past[item - first]:
                item_low[item] = cumulative[item_start[item] - 1]


@kernel
def latest_drawable(
    k: int, start: int, degree: int, weight: Doubles, excluded: Ints, begin: int, end: int
) -> tuple[int, int, int]:
    """Return where the last k of a list's positive weights begin, or all if there are fewer.

    The list has `degree` edges beside the excluded ones, excluded[begin:end].

    Returns:
        The position, how many edges there are from there on, and which excluded one is the first.

    Example: weights 1, 2, 0, 3, 0 from position 10 on and a k of 2 give position 11 and 4 edges; if
    13 is excluded, position 10 and 4 edges.
    """
    position, left, found = start + degree + end - begin, 0, 0
    while found < k and position > start:
        position -= 1
        if begin < end and excluded[end - 1] == position:
            end -= 1
        else:
            left += 1
            found += weight[position] > 0.0
    return position, left, end


@kernel
def keep_latest(
    most: Ints,  # [items]: neighbours to keep; all of a negative number
    time_base: Ints,  # [R]: NO_TIME where all neighbours are kept
    weighted: npt.NDArray[np.bool_],  # [R]
    all_positive: bool,  # whether no weight is 0
    weight: Doubles,  # [E]; [0] without weights
    cumulative: Doubles,  # [E]; [0] without weights
    excluded: Ints,  # positions that no item may take
    item_excluded: Ints,  # [2, items] in and out: those of each item; [2, 0] where no item has any
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items] in and out: first position that may be taken
    item_degree: Ints,  # [items] in and out: how many positions may be taken
    item_low: Doubles,  # [items] in and out: cumulative weight before the item; [0] without weights
) -> None:
    """Keep of each item, whose list is sorted by time, only the last neighbours that may be drawn.

    Those of weight 0, which no draw takes, do not count; they stay between the others.

    Example: times 3, 5, 5 and `most` of 2 leave 5, 5; if the last one is excluded, 3, 5.
    """
    for r in range(time_base.shape[0]):
        if time_base[r] == NO_TIME:
            continue
        for item in range(item_base[r], item_base[r + 1]):
            k = most[item]
            dropped = item_degree[item] - k
            if k < 0 or dropped <= 0:
                continue
            start, left = item_start[item] + dropped, k
            begin, end = excluded_of(item, item_excluded)
            first = begin
            if weighted[r] and not all_positive:
                start, left, first = latest_drawable(
                    k, item_start[item], item_degree[item], weight, excluded, begin, end
                )
            elif begin < end:
                start = position_of(start, excluded, begin, end)
                first = begin + start - item_start[item] - dropped
            if begin < end:
                item_excluded[0, item] = first
            if weighted[r] and start > item_start[item]:
                item_low[item] = cumulative[start - 1]
            item_start[item] = start
            item_degree[item] = left


@kernel
def first_unsorted(
    indptr: Ints, first: int, last: int, indices: Ints, time: Ints, time_base: int
) -> int:
    """Return a position whose neighbour is earlier than the one before it in its list, or -1."""
    for v in range(first, last):
        for p in range(indptr[v] + 1, indptr[v + 1]):
            if time_at(p, indices, time, time_base) < time_at(p - 1, indices, time, time_base):
                return p
    return -1
