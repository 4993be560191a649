"""Batches that ranks sample in common: which nodes a hop finds, on the rank that owns them."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import light_kernel, prefetch

Ints = npt.NDArray[Any]

UNKNOWN = -1  # in a table; a node that is met in this hop and not numbered yet has -2 - its place
AHEAD = 24  # between asking for an entry of a table and reading it


@light_kernel
def find_sources(
    source: Ints,  # [edges] of one relation, item by item
    counts: Ints,  # [items]: edges of each
    item: Ints,  # int64 [items]: which item of the relation each is, of all ranks
    fanout: int,
    first_key: int,
    owner: Ints,  # [N]: rank of each node of the source type
    rank: int,  # this one
    table: Ints,  # int32 [N]: number of each known node among the own, or among the others'
    others: int,  # nodes of others that are known before the hop
    count: Ints,  # [2] in and out: own nodes met in this hop, and nodes of others
    own: Ints,  # [2, room] out: ids and keys of the former
    other: Ints,  # [2, room] out: of the latter
) -> None:
    """Note the sources that are not known, each with the key of the first edge that finds it.

    The key is `first_key` + item * fanout + slot. Nodes of others get their numbers at once.

    Example: source = [5, 6, 5] of two items, of which this rank has the second and third of all,
    counts = [1, 2], fanout = 2, and node 5 is another's: count = [1, 1], own = [[6], [4]] and
    other = [[5], [2]].
    """
    e, last = 0, source.shape[0]
    for i in range(counts.shape[0]):
        for slot in range(counts[i]):
            if e + AHEAD < last:
                prefetch(table, source[e + AHEAD])
            v = source[e]
            e += 1
            if table[v] != UNKNOWN:
                continue
            key = first_key + item[i] * fanout + slot
            if owner[v] == rank:
                table[v] = -2 - count[0]
                own[0, count[0]], own[1, count[0]] = v, key
                count[0] += 1
            else:
                table[v] = others + count[1]
                other[0, count[1]], other[1, count[1]] = v, key
                count[1] += 1


@light_kernel
def merge_asked(
    asked: Ints,  # [n]: own nodes that another rank reads
    key: Ints,  # [n]: of the first edge that finds each there
    table: Ints,  # int32 [N], as above
    count: Ints,  # [2] in and out
    own: Ints,  # [2, room] in and out
) -> None:
    """Note the own nodes that another rank finds in a hop, each with the least key of all ranks.

    Example: own = [[6], [4]] and asked = [6, 7] with the keys 3, 5 give own = [[6, 7], [3, 5]].
    """
    for i in range(asked.shape[0]):
        if i + AHEAD < asked.shape[0]:
            prefetch(table, asked[i + AHEAD])
        v, code = asked[i], table[asked[i]]
        if code == UNKNOWN:
            table[v] = -2 - count[0]
            own[0, count[0]], own[1, count[0]] = v, key[i]
            count[0] += 1
        elif code < UNKNOWN:
            at = -2 - code
            own[1, at] = min(own[1, at], key[i])


@light_kernel
def number_sources(
    source: Ints,  # [edges]
    owner: Ints,  # [N]
    rank: int,
    table: Ints,  # int32 [N], as above
    first_own: int,  # row of the first own node
    first_other: int,
    row: Ints,  # [edges] out
) -> None:
    """Write the row of each source of some edges.

    Example: rows of own nodes begin at 2 and those of others at 5; own node 6 of number 1 and node
    7 of another of number 0 have the rows 3 and 5.
    """
    for e in range(source.shape[0]):
        if e + AHEAD < source.shape[0]:
            prefetch(table, source[e + AHEAD])
        v = source[e]
        row[e] = table[v] + (first_own if owner[v] == rank else first_other)
