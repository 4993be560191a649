"""One hop of neighbour sampling: how many edges each frontier node gets, and which.

The work of a hop is a list of items, one for each (relation, frontier node of the relation's
destination type), relation by relation. `list_items` lists them, `temporal.cut_items` removes
neighbours that are too late, `plan_hop` counts their edges, `sample_hop` draws them.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel, prefetch
from .philox import PURPOSE_UNIFORM, below, philox4x32, stream_of

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


PREFETCH_DISTANCE = 16  # in items: about as many cache misses as a core has in flight
LINEAR_SEARCH = 64  # up to this fan-out collisions are found by linear search, above by hashing
GATHER_ITEMS = 64  # items whose sources are read together, so that their cache misses overlap

SLOT_SHIFT = np.uint64(2)
HASH_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)


@kernel
def list_nodes(
    indptr: Ints, base: int, node: Ints, first_node: int, first: int, last: int,
    start: Ints, degree: Ints,
) -> None:  # fmt: skip
    """Write to start[first:last] and degree[first:last] the lists of node[first_node:].

    Example: with the lists [8, 9] and [7] of nodes 0 and 1, node = [1, 0] gives start = [2, 0] and
    degree = [1, 2].
    """
    offset = first_node - first
    for item in range(first, last):
        if item + PREFETCH_DISTANCE < last:
            prefetch(indptr, base + node[offset + item + PREFETCH_DISTANCE])
        v = base + node[offset + item]
        start[item] = indptr[v]
        degree[item] = indptr[v + 1] - indptr[v]


@kernel
def list_items(
    indptr: Ints,  # [sum_r (N_r + 1)]
    node: Ints,  # [capacity]
    node_start: Ints,  # [T]
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]: source type, destination type, indptr base
    hop: int,
    item_base: Ints,  # [R + 1] out: first item of each relation
    item_start: Ints,  # [items] out: first position of the node's list
    item_degree: Ints,  # [items] out: length of the node's list
) -> None:
    """List the items of hop `hop`."""
    item_base[0] = 0
    for r in range(relations.shape[1]):
        dst = relations[1, r]
        known, found = node_ptr[hop, dst], node_ptr[hop + 1, dst]
        item_base[r + 1] = item_base[r] + found - known
        list_nodes(
            indptr, relations[2, r], node, node_start[dst] + known, item_base[r], item_base[r + 1],
            item_start, item_degree,
        )  # fmt: skip


@kernel
def plan_hop(
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    fanout: Ints,  # [R]
    replace: bool,
    hop: int,
    num_nodes: Ints,  # [T]: how many nodes a type can have, or a larger number
    weighted: npt.NDArray[np.bool_],  # [R]
    all_positive: bool,  # whether no weight of these relations is 0
    weight: Doubles,  # [E]; [0] without weights
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items]: first position that may be taken
    item_degree: Ints,  # [items]: how many positions may be taken
    item_ptr: Ints,  # [items + 1] out: first edge of each item
    edge_ptr: Ints,  # [hops, R + 1] out: first edge of each relation
    node_bound: Ints,  # [T] out: how many nodes there may be of each type after the hop
) -> int:
    """Count the edges of every item of hop `hop`, and return their number in all hops so far.

    Example: fan-out 2 and frontier nodes of degree 3, 0 and 1 give item_ptr = [e, e+2, e+2, e+3],
    where e is the number of edges that earlier hops took.
    """
    edges = 0 if hop == 0 else edge_ptr[hop - 1, fanout.shape[0]]
    for t in range(node_bound.shape[0]):
        node_bound[t] = 0
    item_ptr[0] = edges
    for r in range(fanout.shape[0]):
        k = fanout[r]
        edge_ptr[hop, r] = edges
        for item in range(item_base[r], item_base[r + 1]):
            degree = item_degree[item]
            if k < 0:
                edges += degree
            elif not weighted[r]:
                edges += k if replace and degree > 0 else min(k, degree)
            else:
                positive = min(k, degree)
                if not all_positive:
                    positive = count_positive(weight, item_start[item], degree, k)
                edges += k if replace and positive > 0 else positive
            item_ptr[item + 1] = edges
        node_bound[relations[0, r]] += edges - edge_ptr[hop, r]
    edge_ptr[hop, fanout.shape[0]] = edges
    for t in range(node_bound.shape[0]):
        # A hop finds no node twice; only seeds can be there more than once.
        node_bound[t] = node_ptr[hop + 1, t] + min(node_bound[t], num_nodes[t])
    return edges


@kernel
def count_positive(weight: Doubles, start: int, degree: int, enough: int) -> int:
    """Return how many of a list's weights are positive, counting no further than `enough`."""
    found = 0
    for p in range(start, start + degree):
        if found == enough:
            break
        if weight[p] > 0.0:
            found += 1
    return found


@kernel
def with_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Write k independent uniform draws from the list at `start` to position[first:first + k]."""
    bound = np.uint64(degree)
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    for j in range(k):
        slot = np.uint64(j)
        if j & 3 == 0:
            words = philox4x32(slot >> SLOT_SHIFT, local, stream, PURPOSE_UNIFORM, k0, k1)
        position[first + j] = start + np.int64(
            below(words[j & 3], bound, slot, local, stream, k0, k1)
        )


@kernel
def without_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64,
) -> None:  # fmt: skip
    """Write k of the list's `degree` positions, every k-subset equally likely, 0 < k < degree.

    Method: Floyd's algorithm (Bentley and Floyd, "A Sample of Brilliance", CACM 30(9), 1987).
    Slot j draws t from [0, degree - k + j]; if t was picked before, it takes degree - k + j.

    Example: degree 5, k 3, draws 1, 1, 4: slot 0 takes 1; slot 1 drew 1 again and takes 3; slot 2
    takes 4. The picks are 1, 3, 4.
    """
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    hashed = k > LINEAR_SEARCH
    size = 1
    while size < 2 * k:
        size *= 2
    table = np.full(size if hashed else 1, -1, np.int64)
    mask = np.uint64(size - 1)
    for j in range(k):
        slot = np.uint64(j)
        if j & 3 == 0:
            words = philox4x32(slot >> SLOT_SHIFT, local, stream, PURPOSE_UNIFORM, k0, k1)
        top = degree - k + j
        pick = np.int64(below(words[j & 3], np.uint64(top + 1), slot, local, stream, k0, k1))
        if hashed:
            at = ((np.uint64(pick) * HASH_MULTIPLIER) >> np.uint64(32)) & mask
            while table[at] != -1 and table[at] != pick:
                at = (at + np.uint64(1)) & mask
            if table[at] == pick:
                pick = top
                at = ((np.uint64(pick) * HASH_MULTIPLIER) >> np.uint64(32)) & mask
                while table[at] != -1:
                    at = (at + np.uint64(1)) & mask
            table[at] = pick
        else:
            for i in range(first, first + j):
                if position[i] == start + pick:
                    pick = top
                    break
        position[first + j] = start + pick


@kernel
def sample_hop(
    indices: Ints,  # [E]
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    fanout: Ints,  # [R]
    replace: bool,
    hop: int,
    k0: np.uint64,
    k1: np.uint64,
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items]
    item_degree: Ints,  # [items]
    item_ptr: Ints,  # [items + 1]
    item_first: int,  # the range of items to do
    item_last: int,
    row: Ints,  # [edges] out: global id of the source
    col: Ints,  # [edges] out: local id of the destination
    position: Ints,  # [edges] out: position in `indices`
    weighted: npt.NDArray[np.bool_],  # [R]: `draw_weighted` has filled in the positions
) -> None:
    """Fill the edges of the items in [item_first, item_last).

    The draws of an item depend on the key, the hop, the relation, the local id of its node and the
    slot, so items may be done in any order and by any thread.
    """
    for r in range(fanout.shape[0]):
        begin, end = max(item_base[r], item_first), min(item_base[r + 1], item_last)
        offset = node_ptr[hop, relations[1, r]] - item_base[r]
        stream = stream_of(hop, r)
        drawn = replace and fanout[r] >= 0
        for block in range(begin, end, GATHER_ITEMS):
            block_end = min(block + GATHER_ITEMS, end)
            for item in range(block, block_end):
                first = item_ptr[item]
                k = item_ptr[item + 1] - first
                start, degree = item_start[item], item_degree[item]
                local = np.uint64(item + offset)
                if weighted[r] or k == 0:
                    pass
                elif k == degree and not drawn:
                    for j in range(k):
                        position[first + j] = start + j
                elif drawn:
                    with_replacement(position, first, k, start, degree, local, stream, k0, k1)
                else:
                    without_replacement(position, first, k, start, degree, local, stream, k0, k1)
                for j in range(first, first + k):
                    col[j] = item + offset
                    prefetch(indices, position[j])
            for j in range(item_ptr[block], item_ptr[block_end]):
                row[j] = indices[position[j]]
