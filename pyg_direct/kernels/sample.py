"""One hop of neighbour sampling: how many edges each frontier node gets, and which.

The work of a hop is a list of items, one for each (relation, frontier node of the relation's
destination type), relation by relation. `list_items` lists them, `temporal.cut_items` removes
neighbours that are too late, `exclude_edges` those that the batch does without; `plan_hop` counts
their edges, `sample_hop` draws them.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from .exclude import exclude_from_lists, excluded_of, step_over
from .jit import helper, kernel, prefetch
from .philox import PURPOSE_UNIFORM, below, philox4x32, stream_of
from .relabel import HASH_MULTIPLIER, ONE

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]
Maybe: TypeAlias = Any
"""An array; or None, of which numba knows when it compiles, and leaves out the code for arrays."""


ITEMS_AHEAD = np.uint64(16)  # about as many cache misses as a core has in flight
LINEAR_SEARCH = 64  # up to this fan-out collisions are found by linear search, above by hashing
WORD_BITS = 64
GATHER_ITEMS = 64  # items whose sources are read together, so that their cache misses overlap

SLOT_SHIFT = np.uint64(2)


@helper
def list_nodes(
    indptr: Ints, base: int, node: Ints, first_node: int, first: int, last: int,
    start: Ints, degree: Ints,
) -> None:  # fmt: skip
    """Write to start[first:last] and degree[first:last] the lists of node[first_node:].

    Example: with the lists [8, 9] and [7] of nodes 0 and 1, node = [1, 0] gives start = [2, 0] and
    degree = [1, 2].
    """
    offset = np.uint64(first_node - first)  # may stand for a negative number; sums make it right
    for item in range(np.uint64(first), np.uint64(last)):
        if item + ITEMS_AHEAD < last:
            prefetch(indptr, base + node[offset + item + ITEMS_AHEAD])
        v = np.uint64(base + node[offset + item])
        begin = indptr[v]
        start[item] = begin
        degree[item] = indptr[v + ONE] - begin


@helper
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
def exclude_edges(
    node_start: Ints,  # [T]
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    hop: int,
    disjoint: bool,
    seed_of: Ints,  # [capacity]
    excluded: Ints,  # [n]: positions, ascending within each subgraph
    bounds: Ints,  # [2, groups]: where those of each subgraph begin and end, or of all
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items]
    item_degree: Ints,  # [items] in and out: how many positions may be taken
    item_excluded: Ints,  # [2, items] out: where the excluded edges of each item begin and end
) -> None:
    """Find the excluded edges of the items of hop `hop`; see `exclude_from_lists`."""
    for r in range(relations.shape[1]):
        dst = relations[1, r]
        exclude_from_lists(
            item_start, item_degree, item_base[r], item_base[r + 1],
            disjoint, seed_of, node_start[dst] + node_ptr[hop, dst], excluded, bounds,
            item_excluded,
        )  # fmt: skip


@helper
def plan_hop(
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    fanout: Ints,  # [R]
    replace: bool,
    hop: int,
    num_nodes: Ints,  # [T]: how many nodes a type can have, or a larger number
    weighted: Maybe,  # bool [R]; None for none of them
    all_positive: bool,  # whether no weight of these relations is 0
    weight: Maybe,  # float64 [E]; as `weighted`
    item_base: Ints,  # [R + 1]
    item_start: Ints,  # [items]: first position that may be taken
    item_degree: Ints,  # [items]: how many positions may be taken
    excluded: Maybe,  # positions that no item may take
    item_excluded: Maybe,  # [2, items]: those of each item; [2, 0] where no item has any
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
        for item in range(np.uint64(item_base[r]), np.uint64(item_base[r + 1])):
            degree = item_degree[item]
            if k < 0:
                edges += degree
            else:
                there = k if k < degree else degree
                if weighted is not None and weighted[r] and not all_positive:
                    begin, end = excluded_of(item, item_excluded)
                    there = count_positive(
                        weight, item_start[item], degree, k, excluded, begin, end
                    )
                edges += k if replace and there > 0 else there
            item_ptr[item + ONE] = edges
        node_bound[relations[0, r]] += edges - edge_ptr[hop, r]
    edge_ptr[hop, fanout.shape[0]] = edges
    for t in range(node_bound.shape[0]):
        # A hop finds no node twice; only seeds can be there more than once.
        new = node_bound[t] if node_bound[t] < num_nodes[t] else num_nodes[t]
        node_bound[t] = node_ptr[hop + 1, t] + new
    return edges


@helper
def count_positive(
    weight: Doubles, start: int, degree: int, enough: int, excluded: Ints, begin: int, end: int
) -> int:
    """Return how many of a list's weights are positive, counting no further than `enough`.

    The list has `degree` edges beside the excluded ones, excluded[begin:end].
    """
    found = 0
    for p in range(start, start + degree + end - begin):
        if found == enough:
            break
        if begin < end and excluded[begin] == p:
            begin += 1
        elif weight[p] > 0.0:
            found += 1
    return found


@helper
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


@helper
def empty_slots(slots: Ints, k: int) -> int:
    """Empty a hash table for k numbers at slots[:size], and return its size; 0 for a short list."""
    if k <= LINEAR_SEARCH:
        return 0
    size = 1
    while size < 2 * k:
        size *= 2
    for i in range(size):
        slots[i] = -1
    return size


@helper
def enter(slots: Ints, size: int, pick: int) -> bool:
    """Enter a number in the hash table slots[:size], and return whether it was not there yet."""
    mask = np.uint64(size - 1)
    at = ((np.uint64(pick) * HASH_MULTIPLIER) >> np.uint64(32)) & mask
    while slots[at] != -1:
        if slots[at] == pick:
            return False
        at = (at + np.uint64(1)) & mask
    slots[at] = pick
    return True


@helper
def without_replacement(
    position: Ints, first: int, k: int, start: int, degree: int,
    local: np.uint64, stream: np.uint64, k0: np.uint64, k1: np.uint64, slots: Maybe,
) -> None:  # fmt: skip
    """Write k of the list's `degree` positions, every k-subset equally likely, 0 < k < degree.

    `slots` [2 * power of two >= 2 k] is scratch memory of a k above `LINEAR_SEARCH`, or None where
    there is no such k, which is known when compiling.

    Method: Floyd's algorithm (Bentley and Floyd, "A Sample of Brilliance", CACM 30(9), 1987).
    Slot j draws t from [0, degree - k + j]; if t was picked before, it takes degree - k + j.

    Example: degree 5, k 3, draws 1, 1, 4: slot 0 takes 1; slot 1 drew 1 again and takes 3; slot 2
    takes 4. The picks are 1, 3, 4.
    """
    words = (np.uint64(0), np.uint64(0), np.uint64(0), np.uint64(0))
    size = 0
    if slots is not None:
        size = empty_slots(slots, k)
    place = np.uint64(first)
    picked = np.uint64(0)  # of a list of at most 64 positions, one bit for each
    for j in range(k):
        slot = np.uint64(j)
        if j & 3 == 0:
            words = philox4x32(slot >> SLOT_SHIFT, local, stream, PURPOSE_UNIFORM, k0, k1)
        top = degree - k + j
        pick = np.int64(below(words[j & 3], np.uint64(top + 1), slot, local, stream, k0, k1))
        if degree <= WORD_BITS:
            there = (picked >> np.uint64(pick)) & np.uint64(1)
            pick = top if there != 0 else pick
            picked |= np.uint64(1) << np.uint64(pick)
        elif size == 0:
            for i in range(place, place + slot):
                if position[i] == start + pick:
                    pick = top
                    break
        elif slots is not None and not enter(slots, size, pick):
            pick = top
            enter(slots, size, pick)
        position[place + slot] = start + pick


@helper
def read_sources(indices: Ints, position: Ints, first: int, last: int, row: Ints) -> None:
    """Write to row[first:last] the sources at position[first:last]."""
    for e in range(np.uint64(first), np.uint64(last)):
        row[e] = indices[np.uint64(position[e])]


@helper
def local_of(item: int, offset: int, item_local: Maybe) -> np.uint64:
    """Return the local id of an item's node, which its draws depend on.

    Args:
        item: number of the item.
        offset: of the relation, from items to places in the list of the destination type.
        item_local: [items], where local ids are not these places; else None.
    """
    if item_local is not None:
        return np.uint64(item_local[item])  # type: ignore[no-any-return]
    return np.uint64(item + offset)  # type: ignore[no-any-return]


@helper
def sample_hop(
    indices: Ints,  # [E]
    node_ptr: Ints,  # [hops + 2, T]
    relations: Ints,  # [3, R]
    fanout: Ints,  # [R]
    replace: bool | None,
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
    weighted: Maybe,  # bool [R]: `draw_weighted` has filled in the positions
    excluded: Maybe,  # positions that no item may take
    item_excluded: Maybe,  # [2, items]: those of each item; [2, 0] where no item has any
    slots: Maybe,  # of `without_replacement`
    item_local: Maybe,  # of `local_of`
) -> None:
    """Fill the edges of the items in [item_first, item_last).

    The draws of an item depend on the key, the hop, the relation, the local id of its node and the
    slot, so items may be done in any order and by any thread.

    Some arguments may be None, which makes numba leave out the code that they would need, as that
    takes longer to compile than all else: `weighted`, `slots`, `excluded`, `item_local`, and
    `replace` for False.
    """
    for r in range(fanout.shape[0]):
        begin = item_base[r] if item_base[r] > item_first else item_first
        end = item_base[r + 1] if item_base[r + 1] < item_last else item_last
        offset = node_ptr[hop, relations[1, r]] - item_base[r]
        stream = stream_of(hop, r)
        given = False  # whether the positions are there already
        if weighted is not None:
            given = weighted[r]
        drawn = False
        if replace is not None:
            drawn = replace and fanout[r] >= 0
        for block in range(begin, end, GATHER_ITEMS):
            block_end = block + GATHER_ITEMS if block + GATHER_ITEMS < end else end
            for item in range(np.uint64(block), np.uint64(block_end)):
                first = item_ptr[item]
                k = item_ptr[item + ONE] - first
                start, degree = item_start[item], item_degree[item]
                at = item + np.uint64(offset)
                local = local_of(item, np.uint64(offset), item_local)
                whole = k == degree and not (given or drawn)  # most items; may be of no edges
                if whole:
                    prefetch(indices, start)
                    prefetch(indices, start + k - 1)  # of a long list the processor reads ahead
                    shift = np.uint64(start - first)
                    for e in range(np.uint64(first), np.uint64(first + k)):
                        position[e] = shift + e
                        col[e] = at
                elif given or k == 0:
                    pass
                elif drawn:
                    if replace is not None:
                        with_replacement(position, first, k, start, degree, local, stream, k0, k1)
                else:
                    without_replacement(
                        position, first, k, start, degree, local, stream, k0, k1, slots
                    )
                if excluded is not None and not given:
                    begin_at, end_at = excluded_of(item, item_excluded)
                    step_over(position, first, first + k, excluded, begin_at, end_at)
                if not whole:
                    for e in range(np.uint64(first), np.uint64(first + k)):
                        col[e] = at
                        prefetch(indices, position[e])
            read_sources(indices, position, item_ptr[block], item_ptr[block_end], row)
