"""Global node ids to local ids, in order of first occurrence.

Both kinds of table keep what they hold from batch to batch and need no clearing: an entry is
`stamp + local id`, and the stamp of a batch lies above every entry of the batches before it, so an
entry below the stamp means "not seen yet".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import helper, kernel, prefetch

Ints = npt.NDArray[Any]

PREFETCH_DISTANCE = 24  # in edges, of hash tables, whose slots have to be computed
DENSE_AHEAD = np.uint64(48)  # of dense tables, which may be larger than the caches

HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
HASH_SHIFT = np.uint64(31)
ONE, TWO = np.uint64(1), np.uint64(2)


@helper
def enter_dense(
    node: Ints, first: int, last: int, base: int, table: Ints, stamp: np.uint32
) -> None:
    """Enter the seeds node[first:last] of one type; of a duplicate the first place counts.

    Example: seeds 7, 4, 7 have the places 0, 1, 2, and later edges refer to 7 as 0.
    """
    for i in range(first, last):
        v = node[i]
        if table[base + v] < stamp:
            table[base + v] = stamp + np.uint32(i - first)


@helper
def relabel_dense(
    relations: Ints,  # [3, R]
    node_base: Ints,  # [T + 1]: first table entry of each type
    edge_ptr: Ints,  # [hops, R + 1]
    hop: int,
    row: Ints,  # [edges] in: global ids, out: local ids
    table: Ints,  # uint32 [sum_t N_t]
    stamp: np.uint32,
    node: Ints,  # [capacity]
    node_start: Ints,  # [T]
    node_ptr: Ints,  # [hops + 2, T]
) -> None:
    """Number the sources of hop `hop` and append the new ones to the lists of their types.

    Example: known nodes 7, 4 (local 0, 1) and sources 4, 9, 9, 2 become 1, 2, 2, 3; the list grows
    to 7, 4, 9, 2.
    """
    for t in range(node_start.shape[0]):
        node_ptr[hop + 2, t] = node_ptr[hop + 1, t]
    for r in range(relations.shape[1]):
        src = relations[0, r]
        # All indices are unsigned, which saves two instructions each: none counts from the end.
        base, start = np.uint64(node_base[src]), np.uint64(node_start[src])
        count, last = np.uint64(node_ptr[hop + 2, src]), np.uint64(edge_ptr[hop, r + 1])
        for e in range(np.uint64(edge_ptr[hop, r]), last):
            if e + DENSE_AHEAD < last:
                prefetch(table, base + np.uint64(row[e + DENSE_AHEAD]))
            v = row[e]
            at = base + np.uint64(v)
            entry = table[at]
            is_new = entry < stamp
            # Written whether new or not: a misprediction costs more than the stores.
            entry = stamp + np.uint32(count) if is_new else entry
            table[at] = entry
            node[start + count] = v
            row[e] = entry - stamp
            count += np.uint64(is_new)
        node_ptr[hop + 2, src] = count


@helper
def slot_of(key: np.uint64, table: Ints) -> np.uint64:
    """Return the place in the hash table where the search for `key` begins."""
    mask = np.uint64(table.shape[0] - 2)  # keys are at even places
    return ((key * HASH_MULTIPLIER) >> HASH_SHIFT) & mask  # type: ignore[no-any-return]


@helper
def find_slot(key: np.uint64, table: Ints, stamp: np.uint32) -> np.uint64:
    """Return the place of `key` in the open hash table, or the free one where it belongs.

    Linear probing over slots of two words, the key and its entry, so that a look costs one cache
    line. There are a power of two of slots, of which at most half are taken.
    """
    mask = np.uint64(table.shape[0] - 2)
    at = slot_of(key, table)
    # `&`, as `and` would make two jumps, and whether a node is new cannot be predicted.
    while (table[at + ONE] >= stamp) & (table[at] != key):
        at = (at + TWO) & mask
    return at


@kernel
def enter_disjoint(
    node: Ints, seed_of: Ints, first: int, last: int, local: int, base: int, total: int,
    table: Ints, stamp: np.uint32,
) -> None:  # fmt: skip
    """Enter node[first:last] of one type as the local ids `local`, `local` + 1, ...

    The key of a node is (number of its subgraph) * `total` + `base` + id, where `total` counts all
    nodes of all types. Serves the seeds, and a table that grew in the middle of a batch.
    """
    for i in range(first, last):
        key = np.uint64(seed_of[i] * total + base + node[i])
        at = find_slot(key, table, stamp)
        table[at] = key
        table[at + ONE] = np.uint64(stamp + local + i - first)


@kernel
def relabel_disjoint(
    relations: Ints,  # [3, R]
    node_base: Ints,  # [T + 1]
    edge_ptr: Ints,  # [hops, R + 1]
    hop: int,
    row: Ints,  # [edges] in: global ids, out: local ids
    col: Ints,  # [edges]
    table: Ints,  # uint64 [2 * slots]: keys and entries in turn
    stamp: np.uint32,
    node: Ints,  # [capacity]
    seed_of: Ints,  # [capacity]
    node_start: Ints,  # [T]
    node_ptr: Ints,  # [hops + 2, T]
) -> None:
    """As `relabel_dense`, where a node counts once in each subgraph that reaches it.

    Example: subgraphs 0 and 1 with the seeds 7 and 4 (local 0, 1), sources 9 below 7 and 9 below 4
    become 2 and 3; the list grows to 7, 4, 9, 9 and seed_of to 0, 1, 0, 1.
    """
    total = node_base[node_base.shape[0] - 1]
    for t in range(node_start.shape[0]):
        node_ptr[hop + 2, t] = node_ptr[hop + 1, t]
    for r in range(relations.shape[1]):
        src, dst = relations[0, r], relations[1, r]
        base, start, dst_start = node_base[src], node_start[src], node_start[dst]
        count = node_ptr[hop + 2, src]
        last = edge_ptr[hop, r + 1]
        for e in range(edge_ptr[hop, r], last):
            if e + PREFETCH_DISTANCE < last:
                subgraph = seed_of[dst_start + col[e + PREFETCH_DISTANCE]]
                key = np.uint64(subgraph * total + base + row[e + PREFETCH_DISTANCE])
                prefetch(table, slot_of(key, table))
            v = row[e]
            subgraph = seed_of[np.uint64(dst_start + col[e])]  # unsigned: none counts from the end
            key = np.uint64(subgraph * total + base + v)
            at = find_slot(key, table, stamp)
            entry = table[at + ONE]
            is_new = entry < stamp
            # Written whether new or not, as in `relabel_dense`.
            entry = np.uint64(stamp + count) if is_new else entry
            table[at] = key
            table[at + ONE] = entry
            end = np.uint64(start + count)
            node[end] = v
            seed_of[end] = subgraph
            row[e] = entry - stamp
            count += is_new
        node_ptr[hop + 2, src] = count
