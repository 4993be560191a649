"""From the workspace of a batch to the tensors that the user keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .exclude import excluded_of
from .jit import helper, kernel, light_kernel, prefetch, store
from .relabel import ONE, find_slot
from .sample import Maybe

Ints = npt.NDArray[Any]

PREFETCH_DISTANCE = 24  # in edges
LISTS_AHEAD, LINES_AHEAD = 8, 4  # how far ahead lists are prefetched, and how much of each
LINE_BYTES = 64

WORD_BITS = np.uint64(6)  # a word of a set of nodes holds 2^6 of them
IN_WORD = np.uint64(63)


@light_kernel
def emit_edges(
    edge_ptr: Ints,  # [hops, R + 1]
    row: Ints,  # [edges]
    col: Ints,  # [edges]
    position: Ints,  # [edges]
    perm: Maybe,  # [E]; None where the position is the edge id
    edge_base: Ints,  # [R + 1]
    first: int,  # the range of edges to do
    last: int,
    kind: Ints,  # of the integer type of `edge_index`
    node: Ints,  # [capacity]
    out: Ints,  # [3 R + 3 T], addresses of outputs: see below
) -> None:
    """Collect the edges of each relation, which lie in one piece per hop; from 0 on, nodes as well.

    `out` has of each relation where the rows and columns of its `edge_index` go, and its int64 ids;
    then of each type where its list begins in `node`, how long it is, and where it goes, as int64.

    Example: hops [a b | c] and [d | e f] of two relations give a b d and c e f.
    """
    # All indices are unsigned: if one could count from the end, no loop here would become vector
    # instructions.
    relations = edge_ptr.shape[1] - 1
    if first == 0:
        for t in range(relations, out.shape[0] // 3):
            begin, size, ids = np.uint64(out[3 * t]), np.uint64(out[3 * t + 1]), out[3 * t + 2]
            for i in range(size):
                store(ids, i, np.int64(node[begin + i]))
    for r in range(relations):
        rows, cols, ids = out[3 * r], out[3 * r + 1], out[3 * r + 2]
        base = edge_base[r]
        at = 0  # edges of earlier hops
        for hop in range(edge_ptr.shape[0]):
            begin, end = edge_ptr[hop, r], edge_ptr[hop, r + 1]
            shift = np.uint64(at - begin)  # may stand for a negative number, which sums make right
            at += end - begin
            begin = begin if begin > first else first
            end = end if end < last else last
            if begin < end:
                piece, stop = np.uint64(begin), np.uint64(end)
                # Short loops, so that they become vector instructions.
                for e in range(piece, stop):
                    store(rows, shift + e, kind.dtype.type(row[e]))
                for e in range(piece, stop):
                    store(cols, shift + e, kind.dtype.type(col[e]))
                if perm is None:
                    for e in range(piece, stop):
                        store(ids, shift + e, np.int64(position[e] - base))
                else:
                    ahead = np.uint64(PREFETCH_DISTANCE)
                    for e in range(piece, stop):
                        if e + ahead < stop:
                            prefetch(perm, position[e + ahead])
                        store(ids, shift + e, np.int64(perm[np.uint64(position[e])]))


@light_kernel
def change_set(node: Ints, first: int, last: int, base: int, members: Ints, add: bool) -> None:
    """Put node[first:last] of one type into a set of nodes of all types, or empty it again.

    To empty it clears the whole words that these nodes are in.

    Example: the nodes 1 and 3 of a type whose nodes begin at 0 make the word 0b1010.
    """
    for i in range(first, last):
        at = np.uint64(base + node[i])
        bit = np.uint64(1) << (at & IN_WORD)
        members[at >> WORD_BITS] = members[at >> WORD_BITS] | bit if add else np.uint64(0)


@helper
def list_members(
    indices: Ints, first: int, last: int, base: int, members: Ints,
    count: int, row: Ints, position: Ints,
) -> int:  # fmt: skip
    """Append the sources indices[first:last] that are in a set, by global id; return the count.

    The set has a bit for each node, so that it stays in a near cache where a table of numbers does
    not, and most sources are in no batch.
    """
    end = np.uint64(count)  # unsigned, as all indices here: none counts from the end
    for p in range(np.uint64(first), np.uint64(last)):
        at = np.uint64(base + indices[p])
        # Written whether sampled or not: a misprediction costs more than the stores.
        row[end] = indices[p]
        position[end] = p
        end += (members[at >> WORD_BITS] >> (at & IN_WORD)) & np.uint64(1)
    return np.int64(end)  # type: ignore[no-any-return]


@helper
def list_in_subgraph(
    indices: Ints, first: int, last: int, base: int, table: Ints, stamp: np.uint32,
    count: int, row: Ints, position: Ints,
) -> int:  # fmt: skip
    """As `list_members`, of a subgraph whose keys begin at `base`, and by local id."""
    for p in range(first, last):
        entry = table[find_slot(np.uint64(base + indices[p]), table, stamp) + ONE]
        row[count] = entry - stamp
        position[count] = p
        count += entry >= stamp
    return count


@kernel
def induced_edges(
    start: Ints, degree: Ints, indices: Ints,
    src_base: int, total: int, seed_of: Ints, dst_start: int,
    dense: bool, table: Ints, stamp: np.uint32,
    members: Ints,  # uint64 [total / 64]: the set of sampled nodes of all types; [0] if not dense
    excluded: Ints,  # positions that are not listed
    list_excluded: Ints,  # [2, destinations]: those of each; [2, 0] where none has any
    item: int,  # the destination to begin with
    count: int,  # edges that are listed already
    row: Ints, col: Ints, position: Ints,
) -> tuple[int, int]:  # fmt: skip
    """List the edges of one relation between sampled nodes.

    Edges come by destination in the order of the node list, then in CSC order; the copies of a
    duplicated seed each get all of its edges. `start` and `degree` [destinations] say which part of
    `indices` each destination may take; `degree` counts the edges beside the excluded ones.

    Returns:
        The destination at which the outputs may be too short, or how many destinations there are;
        and the number of edges listed. With longer outputs the list can be continued there.

    Example: nodes 7, 4 (local 0, 1) with the lists 7: [4, 9] and 4: [4] give rows 1, 1, columns
    0, 1; node 9 was not sampled.
    """
    line = LINE_BYTES // indices.itemsize
    for i in range(item, start.shape[0]):
        if count + degree[i] >= row.shape[0]:
            return i, count
        if i + LISTS_AHEAD < start.shape[0]:
            for k in range(LINES_AHEAD):
                prefetch(indices, start[i + LISTS_AHEAD] + k * line)
        skip, skip_end = excluded_of(i, list_excluded)
        before, piece, end = count, start[i], start[i] + degree[i] + skip_end - skip
        while piece < end:  # the pieces between excluded edges
            piece_end = excluded[skip] if skip < skip_end else end
            if dense:
                count = list_members(
                    indices, piece, piece_end, src_base, members, count, row, position
                )
            else:
                key = seed_of[dst_start + i] * total + src_base
                count = list_in_subgraph(
                    indices, piece, piece_end, key, table, stamp, count, row, position
                )
            piece, skip = piece_end + 1, skip + 1
        for e in range(np.uint64(before), np.uint64(count)):
            col[e] = i
            if dense:
                row[e] = table[np.uint64(src_base + row[e])] - stamp
    return start.shape[0], count
