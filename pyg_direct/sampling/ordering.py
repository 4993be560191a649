"""Subgraphs in the order in which PyG's sparse matrices hold them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels import ordering
from ..types import Csc

Ints = npt.NDArray[Any]

DIGIT_BITS = 11  # of a pass over node ids: the counters of a pass fit a core's first cache


class EgoGraphs(NamedTuple):
    """Disjoint subgraphs, one behind the other, each with its nodes in the order of their ids."""

    node: Tensor  # int64 [n], global ids
    seed_of: Tensor  # int64 [n], the number of the subgraph, ascending
    ptr: Tensor  # int64 [subgraphs + 1], where each begins
    root: Tensor  # int64 [subgraphs], the place of each seed in `node`
    edge_index: Tensor  # int64 [2, e], places in `node`, sorted by source, then by destination
    edge: Tensor  # int64 [e], columns of the user's `edge_index`


class SortedLists(NamedTuple):
    """A homogeneous graph's neighbours, each list in the order of the ids."""

    indptr: Ints  # [N + 1]
    indices: Ints  # [E]
    perm: Ints | None  # [E]: position -> column of the user's `edge_index`; None: the same


def sorted_lists(csc: Csc) -> SortedLists:
    """Return the lists of a homogeneous graph sorted by id, stably: `csc` itself if they are."""
    indptr, indices = csc.indptr, csc.indices
    end = np.repeat(np.arange(len(indptr) - 1), np.diff(indptr))
    if bool(((end[1:] > end[:-1]) | (indices[1:] >= indices[:-1])).all()):
        return SortedLists(indptr, indices, csc.perm)
    num_nodes = len(indptr) - 1
    order = _pass(indices, np.arange(len(indices)), num_nodes)
    order = _pass(end, order, num_nodes)
    perm = order if csc.perm is None else csc.perm[order]
    return SortedLists(indptr, indices[order], perm.astype(indptr.dtype))


def ego_graphs(node: Tensor, seed_of: Tensor, num_seeds: int, lists: SortedLists) -> EgoGraphs:
    """Return all edges within groups of nodes, in the order of PyG's `ShaDowKHopSampler`.

    Args:
        node: int64 [n], ids, the seeds first; a group has none of them twice.
        seed_of: integers [n], the group of each node.
        num_seeds: number of groups.
        lists: the graph.

    Example: seeds 7 and 4, each with the node 5 (node = 7, 4, 5, 5 and seed_of = 0, 1, 0, 1), give
    node = 5, 7, 4, 5, ptr = 0, 2, 4 and root = 1, 2.
    """
    ids, group, num_nodes = node.numpy(), seed_of.numpy(), len(lists.indptr) - 1
    order = np.arange(len(ids))
    for shift in range(0, max(num_nodes - 1, 1).bit_length(), DIGIT_BITS):
        order = _pass(ids, order, 1 << DIGIT_BITS, shift)
    order = _pass(group, order, num_seeds)
    place, sorted_ids, groups = np.empty_like(order), np.empty_like(order), np.empty_like(order)
    ordering.place_nodes(order, ids, place, sorted_ids)
    groups[:] = group[order]
    ptr = np.zeros(num_seeds + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=num_seeds), out=ptr[1:])
    row, col, position = _edges_between(ptr, groups, sorted_ids, lists)
    by_row = _pass(row, np.arange(len(row)), len(ids))  # by column they are in order
    edge = position if lists.perm is None else lists.perm[position]
    edge_index, edge_id = _placed(by_row, row, col, edge)
    return EgoGraphs(
        node=torch.from_numpy(sorted_ids),
        seed_of=torch.from_numpy(groups),
        ptr=torch.from_numpy(ptr),
        root=torch.from_numpy(place[:num_seeds].copy()),
        edge_index=edge_index,
        edge=edge_id,
    )


def _edges_between(
    ptr: Ints, groups: Ints, node: Ints, lists: SortedLists
) -> tuple[Ints, Ints, Ints]:
    """Return (row, col, position) of the edges within groups; see `kernels.ordering`."""
    graph = (ptr, groups, node, lists.indptr, lists.indices)
    out, item, count = np.empty((3, 2 * len(node)), np.int64), 0, 0
    while True:
        item, count = ordering.edges_between(*graph, item, count, *out)
        if item == len(node):
            row, col, position = out[:, :count]
            return row, col, position
        degree = int(lists.indptr[node[item] + 1] - lists.indptr[node[item]])
        longer = np.empty((3, 2 * (count + degree)), np.int64)
        longer[:, :count] = out[:, :count]
        out = longer


def _placed(order: Ints, row: Ints, col: Ints, edge: Ints) -> tuple[Tensor, Tensor]:
    """Return `edge_index` [2, e] and the ids of edges in a new order."""
    out, ids = (
        torch.empty((2, len(row)), dtype=torch.int64),
        torch.empty(len(row), dtype=torch.int64),
    )
    ordering.place_edges(order, row, col, edge, out.numpy(), ids.numpy())
    return out, ids


def _pass(key: Ints, order: Ints, digits: int, shift: int | None = None) -> Ints:
    """Sort `order` stably by one digit of `key`; without `shift`, by the whole key."""
    out, counts = np.empty_like(order), np.empty(digits + 1, np.int64)
    mask = -1 if shift is None else digits - 1
    ordering.counting_pass(key, shift or 0, mask, counts, order, out)
    return out
