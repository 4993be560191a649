"""From the workspace of a batch to the tensors that the user keeps."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel, prefetch
from .relabel import ONE, find_slot

Ints = npt.NDArray[Any]

PREFETCH_DISTANCE = 24  # in edges


@kernel
def emit_edges(
    relation: int,
    edge_ptr: Ints,  # [hops, R + 1]
    row: Ints,  # [edges]
    col: Ints,  # [edges]
    position: Ints,  # [edges]
    perm: Ints,  # [E], or [0] where the position is the edge id
    edge_base: int,
    edge_index: Ints,  # [2, e_r] out
    edge: Ints,  # [e_r] out
) -> None:
    """Collect the edges of one relation, which lie in one piece per hop."""
    at = 0
    for hop in range(edge_ptr.shape[0]):
        first, last = edge_ptr[hop, relation], edge_ptr[hop, relation + 1]
        offset = at - first
        for e in range(first, last):  # loops, as numba takes seconds to compile slice assignments
            edge_index[0, offset + e] = row[e]
        for e in range(first, last):
            edge_index[1, offset + e] = col[e]
        if perm.shape[0] == 0:
            for e in range(first, last):
                edge[offset + e] = position[e] - edge_base
        else:
            for e in range(first, last):
                if e + PREFETCH_DISTANCE < last:
                    prefetch(perm, position[e + PREFETCH_DISTANCE])
                edge[offset + e] = perm[position[e]]
        at += last - first


@kernel
def induced_edges(
    start: Ints, degree: Ints, indices: Ints,
    src_base: int, total: int, seed_of: Ints, dst_start: int,
    dense: bool, table: Ints, stamp: np.uint32,
    item: int,  # the destination to begin with
    count: int,  # edges that are listed already
    row: Ints, col: Ints, position: Ints,
) -> tuple[int, int]:  # fmt: skip
    """List the edges of one relation between sampled nodes.

    Edges come by destination in the order of the node list, then in CSC order; the copies of a
    duplicated seed each get all of its edges. `start` and `degree` [destinations] say which part of
    `indices` each destination may take.

    Returns:
        The destination at which the outputs may be too short, or how many destinations there are;
        and the number of edges listed. With longer outputs the list can be continued there.

    Example: nodes 7, 4 (local 0, 1) with the lists 7: [4, 9] and 4: [4] give rows 1, 1, columns
    0, 1; node 9 was not sampled.
    """
    for i in range(item, start.shape[0]):
        if count + degree[i] >= row.shape[0]:
            return i, count
        for p in range(start[i], start[i] + degree[i]):
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
    return start.shape[0], count
