"""Graphs in parts: which part a node goes to, and what goes from part to part in a batch.

And batches that ranks sample in common: which nodes a hop finds, on the rank that owns them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .gather import (
    LINE_BYTES,
    MOST_LINES,
    PIECE_BYTES,
    ROWS_AHEAD,
    SHORT_ROWS_AHEAD,
    copy_pieces,
    prefetch_lines,
)
from .jit import copy_bytes, kernel, light_kernel, prefetch

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[Any]

IDS_AHEAD = 16  # between asking for an id and reading it
TINY = 1e-6  # counts as neighbours, so that a node without any goes to the emptiest part


@kernel
def greedy_pass(
    indptr: Ints,
    indptr_base: Ints,  # [R]
    indices: Ints,
    src_type: Ints,  # [R]
    dst_type: Ints,  # [R]
    node_base: Ints,  # [T + 1]: number of each type's first node
    part: Ints,  # [N] in and out: part of each node, -1 for none yet
    nodes: Ints,  # [T, K] in and out: nodes of each type in each part
    edges: Ints,  # [K] in and out: in-edges of each part
    most_nodes: Ints,  # [T]
    most_edges: int,
    found: Doubles,  # [K], scratch
) -> None:
    """Place each node, in the order of ids, where most of its in-neighbours are and there is room.

    The number of neighbours in a part counts by the share of the part that is free, of nodes of the
    type or of in-edges, whichever is less (Stanton and Kliot, "Streaming Graph Partitioning for
    Large Distributed Graphs", KDD 2012). A node that has a part is taken out first and placed anew.

    Example: two parts of at most 2 nodes; node 2 has the neighbours 0 and 1, of which 0 is in part
    0 and 1 in part 1 with another node: it goes to part 0, as part 1 is full.
    """
    parts = edges.shape[0]
    for t in range(most_nodes.shape[0]):
        for v in range(node_base[t], node_base[t + 1]):
            for p in range(parts):
                found[p] = TINY
            degree = 0
            for r in range(dst_type.shape[0]):
                if dst_type[r] != t:
                    continue
                at = indptr_base[r] + v - node_base[t]
                degree += indptr[at + 1] - indptr[at]
                for e in range(indptr[at], indptr[at + 1]):
                    there = part[node_base[src_type[r]] + indices[e]]
                    if there >= 0:
                        found[there] += 1.0
            if part[v] >= 0:
                nodes[t, part[v]] -= 1
                edges[part[v]] -= degree
            best, score, emptiest = -1, 0.0, -1
            for p in range(parts):
                if nodes[t, p] >= most_nodes[t]:
                    continue
                if emptiest < 0 or edges[p] < edges[emptiest]:
                    emptiest = p
                free = 1.0 - nodes[t, p] / most_nodes[t]
                free_edges = 1.0 - (edges[p] + degree) / most_edges
                free = free_edges if free_edges < free else free
                if free > 0.0 and found[p] * free > score:
                    best, score = p, found[p] * free
            # A list may be longer than any part has room for.
            part[v] = best if best >= 0 else emptiest
            nodes[t, part[v]] += 1
            edges[part[v]] += degree


@kernel
def remote_edges(
    indptr: Ints, first_list: int, last_list: int, indices: Ints,
    part_of_source: Ints, part_of_destination: Ints, cut: Ints, edges: Ints,
) -> None:  # fmt: skip
    """Add up the in-edges of each part: all to edges [K], those from other parts to cut [K].

    Args:
        first_list, last_list: the lists of a relation in `indptr`.

    Example: part_of_destination = [0, 1] with the lists [0, 1] and [1] gives edges = [2, 1], cut =
    [1, 0] if sources are of the same type.
    """
    for v in range(first_list, last_list):
        p = part_of_destination[v - first_list]
        edges[p] += indptr[v + 1] - indptr[v]
        for e in range(indptr[v], indptr[v + 1]):
            cut[p] += part_of_source[indices[e]] != p


@kernel
def split_by_part(
    node: Ints,  # [n]: ids in the whole graph
    part: Ints,  # [N]: part of each node
    row: Ints,  # [N]: row of each node there
    owner: Ints,  # [n] out: part of each
    count: Ints,  # [K] out: nodes of each part
    rows: Ints,  # [n] out: their rows, part by part
    place: Ints,  # [n] out: which of `node` they are; within a part ascending
    at: Ints,  # [K], scratch
) -> None:
    """Sort nodes by part.

    Example: nodes [5, 3, 4] of the parts 1, 0, 1 and the rows 2, 0, 1 there: owner = [1, 0, 1],
    count = [1, 2], rows = [0, 2, 1], place = [1, 0, 2].
    """
    count[:] = 0
    for i in range(node.shape[0]):
        p = part[node[i]]
        owner[i] = p
        count[p] += 1
    total = 0
    for p in range(count.shape[0]):
        at[p] = total
        total += count[p]
    for i in range(node.shape[0]):
        p = owner[i]
        rows[at[p]], place[at[p]] = row[node[i]], i
        at[p] += 1


@kernel
def ids_at(ids: Ints, position: Ints, base: int, out: Ints) -> None:
    """Write ids[position[i] - base] to out[i].

    Example: ids = [7, 8, 9], position = [12, 10] and base = 10 give [9, 7].
    """
    n = position.shape[0]
    for i in range(n):
        if i + IDS_AHEAD < n:
            prefetch(ids, position[i + IDS_AHEAD] - base)
        out[i] = ids[position[i] - base]


@kernel
def merge_picks(
    owner: Ints,  # [items]: part of each item of one relation
    item_at: Ints,  # [K] in and out: where the counts of each part go on
    edge_at: Ints,  # [K] in and out: where its edges go on
    counts: Ints,
    source: Ints,
    edge: Ints,
    out_counts: Ints,  # [items] out
    out_source: Ints,  # out, from `out` on
    out_edge: Ints,  # likewise
    origin: Ints,  # likewise: which of the edges that came it is
    out: int,
) -> int:
    """Bring the edges that the parts drew into the order of the items; return where they end.

    Example: owner = [1, 0], counts = [1 | 2] and source = [a | b, c] of the parts 0 | 1 give
    out_counts = [2, 1], out_source = [b, c, a], origin = [1, 2, 0].
    """
    for i in range(owner.shape[0]):
        p = owner[i]
        k, first = counts[item_at[p]], edge_at[p]
        for j in range(first, first + k):
            out_source[out], out_edge[out], origin[out] = source[j], edge[j], j
            out += 1
        out_counts[i] = k
        item_at[p] += 1
        edge_at[p] = first + k
    return out


@kernel
def number_rows(
    owner: Ints,  # [n]: part of each node of a batch
    node: Ints,  # [n]: ids in the whole graph
    row: Ints,  # [N]
    own: Ints,  # bool [K]: parts whose rows are here
    table: Ints,  # uint32 [N]: stamp + number of those that were met in this window
    stamp: int,
    count: Ints,  # [K] in and out: different nodes of each other part so far
    wanted: Ints,  # [K, room] out: their rows there
    ref: Ints,  # [n] out: row in an own part, or which of `wanted` of its part
) -> int:
    """Number the rows that other parts have, each once for all batches of a window.

    Returns:
        How many of the nodes other parts have.

    Example: nodes 7, 8, 7 of part 1, which is not own, with the rows 3, 1: ref = [0, 1, 0], wanted
    = [3, 1], and 3 is returned.
    """
    elsewhere = 0
    for i in range(owner.shape[0]):
        p, v = owner[i], node[i]
        if own[p]:
            ref[i] = row[v]
        else:
            elsewhere += 1
            if table[v] < stamp:
                table[v] = stamp + count[p]
                wanted[p, count[p]] = row[v]
                count[p] += 1
            ref[i] = table[v] - stamp
    return elsewhere


@light_kernel
def gather_of_parts(
    tables: Ints,  # int64 [K]: address of each part's table
    num_rows: Ints,  # int64 [K]
    row_bytes: int,
    owner: Ints,  # [n]
    rows: Ints,  # [n]
    target: int,  # address
) -> int:
    """Copy row `rows[i]` of the table of part `owner[i]` to row i of the target.

    Returns:
        The first i whose row is none of its table's, or -1.

    Example: rows of 2 bytes, the tables [a b c d | e f], owner = [1, 0] and rows = [0, 1] write
    [e f c d].
    """
    lines = min((row_bytes + LINE_BYTES - 1) // LINE_BYTES, MOST_LINES)
    distance, n = ROWS_AHEAD if lines > 1 else SHORT_ROWS_AHEAD, rows.shape[0]
    for i in range(n):
        if i + distance < n:
            prefetch_lines(tables[owner[i + distance]] + rows[i + distance] * row_bytes, lines)
        p, row = owner[i], np.int64(rows[i])
        if row < 0 or row >= num_rows[p]:
            return i
        here, there = tables[p] + row * row_bytes, target + i * row_bytes
        if row_bytes >= PIECE_BYTES:
            copy_pieces(here, there, row_bytes)
        else:
            copy_bytes(here, there, row_bytes)
    return -1


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
