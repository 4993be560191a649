"""Sampling from neighbour lists without some of their edges.

The edges that a batch does without are a few positions of the CSC, ascending: `excluded`. Those of
one neighbour list lie together there, so two bisections find them. Draws are made from as many
ranks as a list has edges left, and `position_of` turns each rank into a position: the law is that
of the list without these edges, and no draw is repeated.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]


@kernel
def first_not_below(values: Ints, first: int, last: int, x: int) -> int:
    """Return the first place in [first, last) whose value is at least x, or `last`."""
    while first < last:
        middle = (first + last) // 2
        if values[middle] < x:
            first = middle + 1
        else:
            last = middle
    return first


@kernel
def find_edges(
    indptr: Ints, base: int, indices: Ints, near: Ints, far: Ints,
    time: Ints,  # int64 [E] by position; [0] where times do not matter
    wanted_time: Ints,  # [n], of each query; [0] likewise
    query: Ints, position: Ints,
) -> int:  # fmt: skip
    """Find the edges between pairs of nodes, all parallel ones.

    Query i asks for the neighbours `far[i]` in the list of node `near[i]`; queries are sorted by
    `near`, then by `far`. A list is read once, however many queries it has.

    Args:
        query: out: which query found the edge.
        position: out: where it is. Nothing is written past the end of these two.

    Returns:
        How many edges there are.

    Example: with the list [9, 4, 9] of node 0, the queries (0, 4), (0, 9) give query = [1, 0, 1]
    and position = [0, 1, 2].
    """
    found, begin = 0, 0
    while begin < near.shape[0]:
        end = begin + 1
        while end < near.shape[0] and near[end] == near[begin]:
            end += 1
        v = base + near[begin]
        for p in range(indptr[v], indptr[v + 1]):
            i = first_not_below(far, begin, end, indices[p])
            while i < end and far[i] == indices[p]:
                if time.shape[0] == 0 or time[p] == wanted_time[i]:
                    if found < query.shape[0]:
                        query[found] = i
                        position[found] = p
                    found += 1
                i += 1
        begin = end
    return found


@kernel
def exclude_from_lists(
    start: Ints, degree: Ints, first: int, last: int,
    disjoint: bool, seed_of: Ints, seed_first: int,
    excluded: Ints,  # [n]: positions, ascending within each subgraph
    bounds: Ints,  # [2, groups]: where those of each subgraph begin and end, or of all
    item_excluded: Ints,  # [2, lists] out: where those of each list begin and end
) -> None:  # fmt: skip
    """Find the excluded edges of the lists [first, last), and take them off the degrees.

    Example: a list of 5 edges from position 10 on and excluded = [3, 11, 14, 20]: they are those
    from 1 to 3 of `excluded`, and a degree of 3 is left.
    """
    for i in range(first, last):
        group = seed_of[seed_first + i - first] if disjoint else 0
        begin = first_not_below(excluded, bounds[0, group], bounds[1, group], start[i])
        end = begin
        if begin < bounds[1, group] and excluded[begin] < start[i] + degree[i]:
            end = first_not_below(excluded, begin, bounds[1, group], start[i] + degree[i])
        item_excluded[0, i], item_excluded[1, i] = begin, end
        degree[i] -= end - begin


@kernel
def position_of(rank: int, excluded: Ints, first: int, last: int) -> int:
    """Return the position of what would be at `rank`, were excluded[first:last] not in the list.

    Example: with 11 and 14 excluded, the ranks 10, 11, 12, 13 are the positions 10, 12, 13, 15.
    """
    low, high = first, last
    while low < high:
        middle = (low + high) // 2
        if excluded[middle] - (middle - first) > rank:
            high = middle
        else:
            low = middle + 1
    return rank + low - first


@kernel
def excluded_of(item: int, item_excluded: Ints) -> tuple[int, int]:
    """Return where the excluded edges of an item begin and end; 0, 0 where no item has any."""
    if item_excluded.shape[1] == 0:
        return 0, 0
    return item_excluded[0, item], item_excluded[1, item]


@kernel
def step_over(position: Ints, first: int, last: int, excluded: Ints, begin: int, end: int) -> None:
    """Turn position[first:last], drawn as ranks, into positions; see `position_of`."""
    if begin < end:
        for j in range(first, last):
            position[j] = position_of(position[j], excluded, begin, end)
