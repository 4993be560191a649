"""Whole hops, and their steps one by one, as Python calls them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import entry, helper, light_kernel, load
from .relabel import enter_dense, relabel_dense
from .sample import LINEAR_SEARCH, list_items, list_nodes, plan_hop, sample_hop

Ints = npt.NDArray[Any]

LARGEST_FANOUT = LINEAR_SEARCH  # of `sample_batch`

# For hops that several threads share, and for the rules that `sample_batch` does not know.
each_node_listed = entry(list_nodes)
items_listed = entry(list_items)
hop_planned = entry(plan_hop)
hop_sampled = entry(sample_hop)
hop_relabelled = entry(relabel_dense)
seeds_entered = entry(enter_dense)


@helper
def enter_seeds(
    seeds: int, num_seeds: Ints, num_nodes: Ints, node_base: Ints, table: Ints, stamp: np.uint32,
    node: Ints, node_start: Ints, node_ptr: Ints,
) -> bool:  # fmt: skip
    """Begin the lists of all types with their seeds; False if one of them is not a node.

    Then none is entered into the table, as the next batch must not know the others.
    """
    seed = np.int64(0)
    for t in range(num_seeds.shape[0]):
        start, end = node_start[t], num_nodes[t]
        for i in range(num_seeds[t]):
            v = load(seeds, seed)
            if v < 0 or v >= end:
                return False
            node[start + i] = v
            seed += 1
        node_ptr[1, t] = num_seeds[t]
    for t in range(num_seeds.shape[0]):
        start = node_start[t]
        enter_dense(node, start, start + num_seeds[t], node_base[t], table, stamp)
    return True


@helper
def count_hops(node_ptr: Ints, edge_ptr: Ints, hop_nodes: Ints, hop_edges: Ints) -> None:
    """Count the new nodes of each type and hop, and the edges of each relation and hop.

    Example: node_ptr = [[0], [2], [5]] and edge_ptr = [[0, 4]] give [[2, 3]] and [[4]].
    """
    for t in range(hop_nodes.shape[0]):
        for h in range(hop_nodes.shape[1]):
            hop_nodes[t, h] = node_ptr[h + 1, t] - node_ptr[h, t]
    for r in range(hop_edges.shape[0]):
        for h in range(hop_edges.shape[1]):
            hop_edges[r, h] = edge_ptr[h, r + 1] - edge_ptr[h, r]


hops_counted = entry(count_hops)


@light_kernel
def sample_batch(
    indptr: Ints,  # [sum_r (N_r + 1)]
    indices: Ints,  # [E]
    relations: Ints,  # [3, R]: source type, destination type, indptr base
    fanouts: Ints,  # [hops, R], each at most `LARGEST_FANOUT`
    num_nodes: Ints,  # [T]
    node_base: Ints,  # [T + 1]: first table entry of each type
    seeds: int,  # address of the ids of all seeds, int64, type by type
    num_seeds: Ints,  # [T]
    first: int,  # the hop to begin with
    k0: int,
    k1: int,
    stamp: int,
    node: Ints,  # [capacity] out; has room for the seeds
    node_start: Ints,  # [T]
    node_room: Ints,  # [T]: places in `node`
    node_ptr: Ints,  # [hops + 2, T] 0; out
    node_bound: Ints,  # [T] out: how many nodes there may be of each type after the hop tried last
    edge_ptr: Ints,  # [hops, R + 1] 0; out
    item_base: Ints,  # [R + 1] scratch
    items: Ints,  # [3, room]: scratch
    row: Ints,  # [edges] out
    col: Ints,  # [edges] out
    position: Ints,  # [edges] out
    table: Ints,  # uint32 [sum_t N_t]
    hop_nodes: Ints,  # [T, hops + 1] out: new nodes
    hop_edges: Ints,  # [R, hops] out
) -> int:
    """Sample a batch without times and weights, without replacement, in one call.

    Returns:
        The number of hops. Or -1: a seed is not a node, and none was entered. Or the hop for which
        `items`, `row` or `node` is too short: `edge_ptr` (0 where `items` is too short) and
        `node_bound` tell how long they have to be, and the call can be repeated from that hop on.
    """
    zero = np.int64(0)  # numba would compile what is called once more for the constant 0
    words, mark = (np.uint64(k0), np.uint64(k1)), np.uint32(stamp)
    if first == 0 and not enter_seeds(  # perhaps again: what has been entered stays
        seeds, num_seeds, num_nodes, node_base, table, mark, node, node_start, node_ptr
    ):
        return -1
    last: int = fanouts.shape[0]
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
            indices, node_ptr, relations, fanout, None, hop, words[0], words[1],
            item_base, lists[0], lists[1], lists[2], zero, count, row, col, position,
            None, None, None, None, None,
        )  # fmt: skip
        relabel_dense(
            relations, node_base, edge_ptr, hop, row, table, mark, node, node_start, node_ptr
        )
    count_hops(node_ptr, edge_ptr, hop_nodes, hop_edges)
    return last
