"""Whole hops, and their steps one by one, as Python calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import entry, light_kernel
from .relabel import enter_dense, relabel_dense
from .sample import LINEAR_SEARCH, list_items, list_nodes, plan_hop, sample_hop

Ints = npt.NDArray[Any]

LARGEST_FANOUT = LINEAR_SEARCH  # of `sample_hops`

# For hops that several threads share, and for the rules that `sample_hops` does not know.
each_node_listed = entry(list_nodes)
items_listed = entry(list_items)
hop_planned = entry(plan_hop)
hop_sampled = entry(sample_hop)
hop_relabelled = entry(relabel_dense)
seeds_entered = entry(enter_dense)


@light_kernel
def sample_hops(
    indptr: Ints,  # [sum_r (N_r + 1)]
    indices: Ints,  # [E]
    relations: Ints,  # [3, R]: source type, destination type, indptr base
    fanouts: Ints,  # [hops, R], each at most `LARGEST_FANOUT`
    num_nodes: Ints,  # [T]
    node_base: Ints,  # [T + 1]: first table entry of each type
    first: int,  # the range of hops to do
    last: int,
    k0: np.uint64,
    k1: np.uint64,
    stamp: np.uint32,
    node: Ints,  # [capacity]
    node_start: Ints,  # [T]
    node_room: Ints,  # [T]: places in `node`
    node_ptr: Ints,  # [hops + 2, T]
    node_bound: Ints,  # [T] out: how many nodes there may be of each type after the last hop tried
    edge_ptr: Ints,  # [hops, R + 1] out
    item_base: Ints,  # [R + 1] scratch
    items: Ints,  # [3, room]: scratch
    row: Ints,  # [edges] out
    col: Ints,  # [edges] out
    position: Ints,  # [edges] out
    table: Ints,  # uint32 [sum_t N_t]
) -> int:
    """Sample hops without times and weights, without replacement, in one call.

    Hop 0 begins with the seeds, which are in `node` and not in `table` yet.

    Returns:
        `last`; or the hop for which `items`, `row` or `node` is too short. Then `edge_ptr` (0 where
        `items` is too short) and `node_bound` tell how long they have to be, and the call can be
        repeated from that hop on.
    """
    zero = np.int64(0)  # numba would compile what is called once more for the constant 0
    if first == 0:  # again, too: what has been entered stays
        for t in range(node_start.shape[0]):
            begin = node_start[t]
            enter_dense(node, begin, begin + node_ptr[1, t], node_base[t], table, stamp)
    for hop in range(first, last):
        fanout = fanouts[hop]
        count = zero
        for r in range(relations.shape[1]):
            dst = relations[1, r]
            count += node_ptr[hop + 1, dst] - node_ptr[hop, dst]
        if count >= items.shape[1]:
            return hop
        lists = items[0], items[1], items[2]
        list_items(
            indptr, node, node_start, node_ptr, relations, hop, item_base, lists[0], lists[1]
        )
        edges = plan_hop(
            node_ptr, relations, fanout, False, hop, num_nodes, None, True, None,
            item_base, lists[0], lists[1], None, None, lists[2], edge_ptr, node_bound,
        )  # fmt: skip
        for t in range(node_bound.shape[0]):
            if edges > row.shape[0] or node_bound[t] >= node_room[t]:
                return hop
        sample_hop(
            indices, node_ptr, relations, fanout, None, hop, k0, k1,
            item_base, lists[0], lists[1], lists[2], zero, count, row, col, position,
            None, None, None, None,
        )  # fmt: skip
        relabel_dense(
            relations, node_base, edge_ptr, hop, row, table, stamp, node, node_start, node_ptr
        )
    return last
