"""Edges between the nodes of each of many small groups, such as the subgraphs of a batch.

Each group is looked up in structures of a few kilobytes, which stay in a core's first cache: bits
by a hash of the id, which tell of most other nodes at once that they are not in the group, and a
hash table of the places of those that are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import helper, light_kernel, prefetch
from .relabel import HASH_MULTIPLIER
from .sample import Maybe

Ints = npt.NDArray[Any]

NODES_AHEAD = 8  # nodes whose lists are looked up in advance
LISTS_AHEAD, LINES_AHEAD = 3, 2  # how far ahead lists are prefetched, and how much of each
EDGES_AHEAD = 16
LINE_BYTES = 64
SLOTS_OF_NODE = 4  # at least, in the hash table
LOG_FEWEST_SLOTS = 4
BITS_OF_SLOT = np.uint64(16)
LOG_BITS_OF_SLOT = np.uint64(4)
READ_THROUGH = 16  # a list of so many entries for each node of the group is read, longer searched

WORD_BITS = np.uint64(6)  # a word holds 2^6 bits
IN_WORD = np.uint64(63)
ONE = np.uint64(1)
FREE = -1


def slots_for(num_nodes: int) -> int:
    """Return how many slots the hash table of a group of so many nodes has, a power of two."""
    return 1 << max(LOG_FEWEST_SLOTS, (SLOTS_OF_NODE * num_nodes - 1).bit_length())


def words_for(slots: int) -> int:
    """Return how many words hold the bits that belong to so many slots."""
    return slots * int(BITS_OF_SLOT) // 64


@helper
def bit_of(node: np.uint64, shift: np.uint64) -> np.uint64:
    """Return the number of the bit of a node; its first slot is this number / `BITS_OF_SLOT`."""
    return (node * HASH_MULTIPLIER) >> shift  # type: ignore[no-any-return]


@helper
def enter_group(
    node: Ints, first: int, last: int, keys: Ints, places: Ints, bits: Ints
) -> tuple[np.uint64, np.uint64]:
    """Enter node[first:last] by their places 0, 1, ..., and return (shift, mask) of the tables.

    Example: nodes 5 and 7 set two of 256 bits, and 5 is found at place 0, 7 at place 1.
    """
    slots, shift = np.uint64(1 << LOG_FEWEST_SLOTS), np.uint64(64 - LOG_FEWEST_SLOTS)
    while slots < np.uint64(SLOTS_OF_NODE * (last - first)):
        slots, shift = slots << ONE, shift - ONE
    shift -= LOG_BITS_OF_SLOT
    for i in range(slots):
        keys[i] = FREE
    for i in range((slots << LOG_BITS_OF_SLOT) >> WORD_BITS):
        bits[i] = 0
    mask = slots - ONE
    for i in range(first, last):
        bit = bit_of(np.uint64(node[i]), shift)
        bits[bit >> WORD_BITS] |= ONE << (bit & IN_WORD)
        slot = bit >> LOG_BITS_OF_SLOT
        while keys[slot] != FREE:
            slot = (slot + ONE) & mask
        keys[slot], places[slot] = node[i], i - first
    return shift, mask


@helper
def read_list(
    indices: Ints, start: int, end: int, shift: np.uint64, mask: np.uint64,
    keys: Ints, places: Ints, bits: Ints, count: int, row: Ints, position: Ints,
) -> int:  # fmt: skip
    """Append the entries of a list that are in the group, by a look at each; return the count."""
    found = np.uint64(count)  # unsigned, as all indices here: none counts from the end
    for p in range(np.uint64(start), np.uint64(end)):
        bit = bit_of(np.uint64(indices[p]), shift)
        # Written whether found or not: a misprediction costs more than the store.
        position[found] = p
        found += (bits[bit >> WORD_BITS] >> (bit & IN_WORD)) & ONE
    kept = np.uint64(count)
    for e in range(np.uint64(count), found):
        p = np.uint64(position[e])
        slot = bit_of(np.uint64(indices[p]), shift) >> LOG_BITS_OF_SLOT
        while (keys[slot] != indices[p]) & (keys[slot] != FREE):
            slot = (slot + ONE) & mask
        position[kept] = p
        row[kept] = places[slot]
        kept += np.uint64(keys[slot] == indices[p])
    return np.int64(kept)  # type: ignore[no-any-return]


@helper
def search_list(
    indices: Ints, start: int, end: int, node: Ints, first: int, last: int,
    low: Ints, count: int, row: Ints, position: Ints,
) -> int:  # fmt: skip
    """As `read_list`, by a search of the list for each node of the group.

    All searches go on side by side, so that their cache misses overlap.
    """
    num_nodes, size = np.uint64(last - first), end - start
    for j in range(num_nodes):
        low[j] = start
    while size > 1:
        half = size >> 1
        for j in range(num_nodes):
            at = np.uint64(low[j])
            below = indices[at + np.uint64(half - 1)] < node[first + np.int64(j)]
            low[j] = at + np.uint64(half) if below else at
        size -= half
    for j in range(num_nodes):
        p, wanted = low[j], node[first + np.int64(j)]
        p += indices[p] < wanted
        while p < end and indices[p] == wanted:
            row[count], position[count] = j, p
            p += 1
            count += 1
    return count


@light_kernel
def edges_within(
    ptr: Ints,  # [groups + 1]
    node: Ints,  # [nodes], those of a group sorted by id, each once
    indptr: Ints,
    indices: Ints,  # each list sorted
    group: int,  # the range of groups to do
    last_group: int,
    keys: Ints,  # scratch, [slots_for(nodes of the largest group)]
    places: Ints,  # likewise
    bits: Ints,  # scratch, uint64 [words_for(slots)]
    low: Ints,  # scratch, [nodes of the largest group]
    count: int,  # edges that are listed already
    ends: Ints,  # [nodes] out: where the edges to each node end
    row: Ints,  # [room] out: the source's place in its group
    position: Ints,  # [room] out: the position in `indices`
) -> tuple[int, int, int]:
    """List the edges between the nodes of each group, by destination, then by source.

    Returns:
        The group at which the outputs are too short, or `last_group`; the number of edges listed,
        without those of this group; and how many the outputs should at least hold. With longer
        outputs the list can be continued there.

    Example: one group of the nodes 2, 5, 7, where 5 has the list [0, 2, 2, 7]: rows 0, 0, 2, and
    ends = 0, 3, 3.
    """
    line = LINE_BYTES // indices.itemsize
    for g in range(group, last_group):
        first, last = ptr[g], ptr[g + 1]
        shift, mask = enter_group(node, first, last, keys, places, bits)
        begun = count
        for i in range(first, last):
            if i + NODES_AHEAD < last:
                prefetch(indptr, node[i + NODES_AHEAD])
            if i + LISTS_AHEAD < last:
                for k in range(LINES_AHEAD):
                    prefetch(indices, indptr[node[i + LISTS_AHEAD]] + k * line)
            start, end = indptr[node[i]], indptr[node[i] + 1]
            if count + end - start >= row.shape[0]:
                return g, begun, count + end - start + 1
            if end - start <= READ_THROUGH * (last - first):
                count = read_list(
                    indices, start, end, shift, mask, keys, places, bits, count, row, position
                )
            else:
                count = search_list(
                    indices, start, end, node, first, last, low, count, row, position
                )
            ends[i] = count
    return last_group, count, count


@light_kernel
def place_edges(
    ptr: Ints,  # [groups + 1]
    group: int,  # the range of groups to do, as `edges_within` did them
    last_group: int,
    ends: Ints,  # [nodes]
    row: Ints,
    position: Ints,
    perm: Maybe,  # [E]; None where the position is the edge id
    next_of: Ints,  # scratch, [nodes of the largest group + 1]
    at: int,  # where the first group begins in the outputs
    edge_index: Ints,  # [2, edges] out, places in all groups together
    edge: Ints,  # [edges] out
) -> None:
    """Write the edges of each group, sorted by source, then by destination.

    Example: one group with an edge from place 2 to place 0, and one from 1 to 1 (row = 2, 1 and
    ends = 1, 2, 2), gives edge_index [[1, 2], [1, 0]].
    """
    begin = 0
    for g in range(group, last_group):
        first, last = ptr[g], ptr[g + 1]
        for j in range(last - first + 1):
            next_of[j] = 0
        stop = ends[last - 1] if last > first else begin
        for e in range(np.uint64(begin), np.uint64(stop)):
            next_of[np.uint64(row[e]) + ONE] += 1
        next_of[0] = at
        for j in range(last - first):
            next_of[j + 1] += next_of[j]
        at += stop - begin
        for i in range(first, last):
            for e in range(np.uint64(begin), np.uint64(ends[i])):
                source, p = np.uint64(row[e]), np.uint64(position[e])
                out = np.uint64(next_of[source])
                next_of[source] = out + ONE
                edge_index[0, out] = first + np.int64(source)
                edge_index[1, out] = i
                if perm is None:
                    edge[out] = p
                else:
                    if e + np.uint64(EDGES_AHEAD) < np.uint64(stop):
                        prefetch(perm, position[e + np.uint64(EDGES_AHEAD)])
                    edge[out] = perm[p]
            begin = ends[i]
