"""COO to CSC: a stable counting sort by destination, in parts that threads can share.

A counting sort in one pass writes each edge to another place in memory, and for each of these the
memory moves a whole cache line twice. So the edges are first dealt into buckets of neighbouring
destinations, and each bucket is sorted in the cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import helper, kernel, light_kernel, prefetch

Ints = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]

PREFETCH_DISTANCE = 32  # in edges
ONE = np.uint64(1)

WORD_BITS, LOW_WORD = 32, 0xFFFFFFFF

OK, UNSORTED, BAD_SOURCE, BAD_DESTINATION = 0, 1, 2, 3


@light_kernel
def copy_sorted(row: Ints, col: Ints, num_src: int, num_dst: int, indices: Ints) -> tuple[int, int]:
    """Copy `row` to `indices` [E] and return (OK, -1) if `col` is non-decreasing, all ids in range.

    Otherwise stop, and return (what is wrong, the edge where it shows).

    Example: sources 5, 6 and destinations 0, 2 give indices = [5, 6]; destinations 2, 0 give
    (UNSORTED, 1).
    """
    previous = 0
    for e in range(row.shape[0]):
        if row[e] < 0 or row[e] >= num_src:
            return BAD_SOURCE, e
        if col[e] < 0 or col[e] >= num_dst:
            return BAD_DESTINATION, e
        if col[e] < previous:
            return UNSORTED, e
        previous = col[e]
        indices[e] = row[e]
    return OK, -1


@light_kernel
def count_buckets(
    row: Ints, col: Ints, first: int, last: int, num_src: int, num_dst: int, shift: int,
    counts: Ints,
) -> tuple[int, int]:  # fmt: skip
    """Add the edges in [first, last) to the `counts` of their buckets; checks every id.

    Bucket b holds the edges into the nodes from b * 2^shift to (b + 1) * 2^shift.

    Example: destinations 2, 0, 3 and a shift of 1 give counts = [1, 2].
    """
    for e in range(np.uint64(first), np.uint64(last)):
        if row[e] < 0 or row[e] >= num_src:
            return BAD_SOURCE, np.int64(e)
        v = col[e]
        if v < 0 or v >= num_dst:
            return BAD_DESTINATION, np.int64(e)
        counts[np.uint64(v >> shift)] += 1
    return OK, -1


@kernel
def fill_buckets(
    col: Ints, first: int, last: int, shift: int, next_place: Ints, edge: Ints
) -> None:
    """Write the edges [first, last) to the places of their buckets, in their own order.

    Each bucket is written from one end to the other, so that all of a cache line is written while
    it is near.

    Example: destinations 2, 0, 3, a shift of 1 and next_place = [0, 1] give edge = [1, 0, 2].
    """
    for e in range(first, last):
        b = col[e] >> shift
        edge[next_place[b]] = e
        next_place[b] += 1


@kernel
def sort_buckets(
    row: Ints, col: Ints, first: int, last: int, shift: int, bucket_ptr: Ints,
    edge: Ints, indptr: Ints, indices: Ints, perm: Ints,
) -> None:  # fmt: skip
    """Sort the edges of the buckets [first, last) by destination, stably.

    All that a bucket writes to fits into the cache; sources and destinations are read where they
    lie. Serves where the words of `deal_edges` are too short.

    Args:
        row: [E], sources.
        col: [E], destinations.
        first: the range of buckets to do.
        last: its end.
        shift: see `count_buckets`.
        bucket_ptr: [buckets + 1], where each begins.
        edge: [E], from `fill_buckets`; may be `indices` itself.
        indptr: [N + 1] out, of the buckets' nodes; the first entry is the caller's.
        indices: [E] out, sources.
        perm: [E] out, edges.

    Example: edges 5->2, 6->0, 7->2 in one bucket, edge = [0, 1, 2], give indptr = [0, 1, 1, 3],
    indices = [6, 5, 7] and perm = [1, 0, 2].
    """
    for b in range(first, last):
        sort_bucket(row, col, b, shift, bucket_ptr, edge, indptr, indices, perm)


@helper
def sort_bucket(
    row: Ints, col: Ints, b: int, shift: int, bucket_ptr: Ints,
    edge: Ints, indptr: Ints, indices: Ints, perm: Ints,
) -> None:  # fmt: skip
    """Sort one bucket; see `sort_buckets`."""
    begin, end = bucket_ptr[b], bucket_ptr[b + 1]
    low, high = nodes_of_bucket(b, shift, indptr)
    for v in range(low, high):
        indptr[v + 1] = 0
    for i in range(begin, end):
        if i + PREFETCH_DISTANCE < end:
            prefetch(col, edge[i + PREFETCH_DISTANCE])
        indptr[col[edge[i]] + 1] += 1
    counts_to_places(low, high, begin, indptr)
    for i in range(begin, end):
        if i + PREFETCH_DISTANCE < end:
            prefetch(col, edge[i + PREFETCH_DISTANCE])
        e = edge[i]
        v = col[e]
        p = indptr[v + 1]
        indptr[v + 1] = p + 1
        perm[p] = e
    for p in range(begin, end):
        if p + PREFETCH_DISTANCE < end:
            prefetch(row, perm[p + PREFETCH_DISTANCE])
        indices[p] = row[perm[p]]


@helper
def nodes_of_bucket(b: int, shift: int, indptr: Ints) -> tuple[int, int]:
    """Return the first destination of a bucket, and the one after its last."""
    end, num_dst = (b + 1) << shift, indptr.shape[0] - 1
    return b << shift, end if end < num_dst else num_dst


@helper
def counts_to_places(low: int, high: int, begin: int, indptr: Ints) -> None:
    """Turn counts at indptr[v + 1] into places: for now, of the next edge into v.

    Once all edges are placed, that is where the edges into v end, as it has to be.
    """
    position = begin
    for v in range(low, high):
        size = indptr[v + 1]
        indptr[v + 1] = position
        position += size


@light_kernel
def deal_edges(
    row: Ints, col: Ints, first: int, last: int, shift: int, edge_bits: int, next_place: Ints,
    low_words: Words, high_words: Words,
) -> None:  # fmt: skip
    """As `fill_buckets`, with all that there is to know of an edge, in 64 bits.

    From the lowest on: the destination's number in its bucket (`shift` bits), the edge
    (`edge_bits`), and the source.

    Example: with shift 1 and edge_bits 2, the edge 1 from 6 to 3 becomes 6 << 3 | 1 << 1 | 1.
    """
    mask = (np.int64(1) << shift) - 1
    for e in range(np.uint64(first), np.uint64(last)):
        v = np.int64(col[e])
        word = (np.int64(row[e]) << (shift + edge_bits)) | (np.int64(e) << shift) | (v & mask)
        b = np.uint64(v >> shift)
        at = np.uint64(next_place[b])
        next_place[b] = at + ONE
        low_words[at] = np.uint32(word & LOW_WORD)
        high_words[at] = np.uint32((word >> WORD_BITS) & LOW_WORD)


@light_kernel
def sort_dealt(
    row: Ints, col: Ints, first: int, last: int, shift: int, edge_bits: int, bucket_ptr: Ints,
    low_words: Words, high_words: Words, indptr: Ints, indices: Ints, perm: Ints, words: Ints,
) -> None:  # fmt: skip
    """As `sort_buckets`, of edges from `deal_edges`, without reading `row` and `col` again.

    The words lie where the results go, `low_words` in `indices` and `high_words` in `perm`, so that
    they take no memory; each bucket is copied to `words` [any size] first. One that is too large
    for that is sorted as by `sort_buckets`.
    """
    mask, edge_mask = (np.int64(1) << shift) - 1, (np.int64(1) << edge_bits) - 1
    for b in range(first, last):
        begin, end = bucket_ptr[b], bucket_ptr[b + 1]
        if end - begin > words.shape[0]:
            for i in range(begin, end):
                word = np.int64(low_words[i]) | np.int64(high_words[i]) << WORD_BITS
                indices[i] = (word >> shift) & edge_mask
            sort_bucket(row, col, b, shift, bucket_ptr, indices, indptr, indices, perm)
            continue
        low, high = nodes_of_bucket(b, shift, indptr)
        for v in range(low, high):
            indptr[v + 1] = 0
        size = np.uint64(end - begin)
        for i in range(size):
            at = np.uint64(begin) + i
            word = np.int64(low_words[at]) | np.int64(high_words[at]) << WORD_BITS
            words[i] = word
            indptr[np.uint64(low + (word & mask) + 1)] += 1
        counts_to_places(low, high, begin, indptr)
        for i in range(size):
            word = words[i]
            v = np.uint64(low + (word & mask) + 1)
            p = np.uint64(indptr[v])
            indptr[v] = p + ONE
            perm[p] = (word >> shift) & edge_mask
            indices[p] = word >> (shift + edge_bits)


@kernel
def index_to_ptr(col: Ints, base: int, indptr: Ints) -> None:
    """Fill indptr [N + 1] from sorted destinations: col [0, 2, 2] gives [0, 1, 1, 3]."""
    v = 0
    for e in range(col.shape[0]):
        while v <= col[e]:
            indptr[v] = base + e
            v += 1
    while v < indptr.shape[0]:
        indptr[v] = base + col.shape[0]
        v += 1


@kernel
def counting_pass(key: Ints, shift: int, mask: int, counts: Ints, order: Ints, out: Ints) -> None:
    """Write `order` to `out`, sorted stably by the digit ``key[i] >> shift & mask`` of its entries.

    `counts` is scratch memory, with one entry more than there are digits. Passes over the digits
    of a key, the lowest first, sort by the whole key.

    Example: keys 2, 0, 2, 1 and the order 0, 1, 2, 3 give 1, 3, 0, 2.
    """
    counts[:] = 0
    for i in range(order.shape[0]):
        counts[((key[order[i]] >> shift) & mask) + 1] += 1
    for digit in range(1, counts.shape[0]):
        counts[digit] += counts[digit - 1]
    for i in range(order.shape[0]):
        digit = (key[order[i]] >> shift) & mask
        out[counts[digit]] = order[i]
        counts[digit] += 1


@kernel
def place_nodes(order: Ints, node: Ints, place: Ints, out: Ints) -> None:
    """Write the nodes in their new order to `out`, and the new place of each to `place`.

    Example: the order 2, 0, 1 of nodes 7, 8, 9 gives out = [9, 7, 8] and place = [1, 2, 0].
    """
    for i in range(order.shape[0]):
        out[i] = node[order[i]]
        place[order[i]] = i
