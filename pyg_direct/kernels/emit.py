"""From the workspace of a batch to the tensors that the user keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .exclude import excluded_of
from .jit import kernel, light_kernel, prefetch, store
from .relabel import ONE, find_slot
from .sample import Maybe

Ints = npt.NDArray[Any]

PREFETCH_DISTANCE = 24  # in edges


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
    out: Ints,  # [R, 3]: addresses of the rows and columns of `edge_index`, and of int64 ids
) -> None:
    """Collect the edges of each relation, which lie in one piece per hop.

    Example: hops [a b | c] and [d | e f] of two relations give a b d and c e f.
    """
    for r in range(out.shape[0]):
        rows, cols, ids = out[r, 0], out[r, 1], out[r, 2]
        at = 0  # edges of earlier hops
        for hop in range(edge_ptr.shape[0]):
            begin, end = edge_ptr[hop, r], edge_ptr[hop, r + 1]
            shift = at - begin
            at += end - begin
            begin = begin if begin > first else first
            end = end if end < last else last
            for e in range(begin, end):  # short loops, so that they become vector instructions
                store(rows, shift + e, kind.dtype.type(row[e]))
            for e in range(begin, end):
                store(cols, shift + e, kind.dtype.type(col[e]))
            if perm is None:
                for e in range(begin, end):
                    store(ids, shift + e, np.int64(position[e] - edge_base[r]))
            else:
                for e in range(begin, end):
                    if e + PREFETCH_DISTANCE < end:
                        prefetch(perm, position[e + PREFETCH_DISTANCE])
                    store(ids, shift + e, np.int64(perm[position[e]]))


@kernel
def induced_edges(
    start: Ints, degree: Ints, indices: Ints,
    src_base: int, total: int, seed_of: Ints, dst_start: int,
    dense: bool, table: Ints, stamp: np.uint32,
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
    for i in range(item, start.shape[0]):
        if count + degree[i] >= row.shape[0]:
            return i, count
        skip, skip_end = excluded_of(i, list_excluded)
        piece, end = start[i], start[i] + degree[i] + skip_end - skip
        while piece < end:  # the pieces between excluded edges
            piece_end = excluded[skip] if skip < skip_end else end
            for p in range(piece, piece_end):
                if dense:
                    if p + PREFETCH_DISTANCE < indices.shape[0]:
                        prefetch(table, src_base + indices[p + PREFETCH_DISTANCE])
                    entry = table[src_base + indices[p]]
                else:
                    key = np.uint64(seed_of[dst_start + i] * total + src_base + indices[p])
                    entry = table[find_slot(key, table, stamp) + ONE]
                # Written whether sampled or not: a misprediction costs more than the stores.
                row[count] = entry - stamp
                col[count] = i
                position[count] = p
                count += entry >= stamp
            piece, skip = piece_end + 1, skip + 1
    return start.shape[0], count
