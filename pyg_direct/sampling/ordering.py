"""Subgraphs in the order in which PyG's sparse matrices hold them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..kernels import ordering

Ints = npt.NDArray[Any]

DIGIT_BITS = 11  # of a pass over node ids: the counters of a pass fit a core's first cache


class EgoGraphs(NamedTuple):
    """Disjoint subgraphs, one behind the other, each with its nodes in the order of their ids."""

    node: Tensor  # int64 [n], global ids
    seed_of: Tensor  # int64 [n], the number of the subgraph, ascending
    ptr: Tensor  # int64 [subgraphs + 1], where each begins
    root: Tensor  # int64 [subgraphs], the place of each seed in `node`
    edge_index: Tensor  # [2, e], places in `node`, sorted by source, then by destination
    edge: Tensor  # int64 [e]


def ego_graphs(
    node: Tensor, seed_of: Tensor, edge_index: Tensor, edge: Tensor, num_seeds: int, num_nodes: int
) -> EgoGraphs:
    """Put disjoint subgraphs into the order of PyG's `ShaDowKHopSampler`.

    Args:
        node: int64 [n], global ids below `num_nodes`, the seeds first.
        seed_of: int64 [n], the seed of each node's subgraph.
        edge_index: [2, e], places in `node`.
        edge: int64 [e], ids of the edges.
        num_seeds: number of subgraphs.
        num_nodes: number of nodes in the whole graph.

    Example: seeds 7 and 4, each with the node 5 (node = 7, 4, 5, 5 and seed_of = 0, 1, 0, 1), give
    node = 5, 7, 4, 5, ptr = 0, 2, 4 and root = 1, 2.
    """
    ids, group = node.numpy(), seed_of.numpy()
    order = np.arange(len(ids))
    for shift in range(0, max(num_nodes - 1, 1).bit_length(), DIGIT_BITS):
        order = _pass(ids, order, 1 << DIGIT_BITS, shift)
    order = _pass(group, order, num_seeds)
    place, out = np.empty_like(order), np.empty_like(order)
    ordering.place_nodes(order, ids, place, out)
    ptr = np.zeros(num_seeds + 1, np.int64)
    np.cumsum(np.bincount(group, minlength=num_seeds), out=ptr[1:])
    ends = np.empty((2, edge.numel()), np.int64)
    ordering.renumber(edge_index.reshape(-1).numpy(), place, ends.reshape(-1))
    rows, edges = by_source(ends[0], ends[1], edge, len(ids))
    return EgoGraphs(
        node=torch.from_numpy(out),
        seed_of=torch.from_numpy(group[order]),
        ptr=torch.from_numpy(ptr),
        root=torch.from_numpy(place[:num_seeds].copy()),
        edge_index=rows,
        edge=edges,
    )


def by_source(row: Ints, col: Ints, edge: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return edges sorted by source, then by destination; parallel ones keep their order.

    Args:
        row: int64 [e], sources, each below `num_nodes`.
        col: int64 [e], destinations, each below `num_nodes`.
        edge: int64 [e], ids of the edges.
        num_nodes: number of nodes in the subgraph.

    Returns:
        `edge_index` [2, e], and the ids in the same order.

    Example: the edges 1->0, 0->2, 0->1 become 0->1, 0->2, 1->0.
    """
    order = _pass(col, np.arange(len(row)), num_nodes)
    order = _pass(row, order, num_nodes)
    out, ids = torch.empty((2, len(row)), dtype=torch.int64), torch.empty_like(edge)
    ordering.place_edges(order, row, col, edge.numpy(), out.numpy(), ids.numpy())
    return out, ids


def _pass(key: Ints, order: Ints, digits: int, shift: int | None = None) -> Ints:
    """Sort `order` stably by one digit of `key`; without `shift`, by the whole key."""
    out, counts = np.empty_like(order), np.empty(digits + 1, np.int64)
    mask = -1 if shift is None else digits - 1
    ordering.counting_pass(key, shift or 0, mask, counts, order, out)
    return out
