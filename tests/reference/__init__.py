"""Slow and obvious samplers to check the fast one against: pure Python, one line per fact."""

from __future__ import annotations

import random
from typing import NamedTuple

from torch import Tensor


class Expected(NamedTuple):
    """A sampled subgraph, as lists."""

    n_id: list[int]
    row: list[int]
    col: list[int]
    e_id: list[int]
    batch: list[int]  # the subgraph of each node; all 0 unless disjoint
    num_sampled_nodes: list[int]
    num_sampled_edges: list[int]


def in_edges(edge_index: Tensor, num_nodes: int) -> list[list[tuple[int, int]]]:
    """Return, for every node, (source, column of edge_index) of its in-edges in their order."""
    lists: list[list[tuple[int, int]]] = [[] for _ in range(num_nodes)]
    for e, (source, target) in enumerate(edge_index.t().tolist()):
        lists[target].append((source, e))
    return lists


def sample(
    edge_index: Tensor,
    num_nodes: int,
    seeds: list[int],
    fanouts: list[int],
    disjoint: bool = False,
    rng: random.Random | None = None,
    replace: bool = False,
) -> Expected:
    """Sample by the book, hop by hop, numbering nodes by first discovery.

    A negative fan-out takes all in-edges, 0 takes none; a draw needs `rng`.
    """
    lists = in_edges(edge_index, num_nodes)
    n_id, batch = list(seeds), list(range(len(seeds))) if disjoint else [0] * len(seeds)
    local: dict[tuple[int, int], int] = {}
    for i, key in enumerate(zip(batch, n_id, strict=True)):
        local.setdefault(key, i)  # the later copies of a duplicated seed are the source of no edge
    row, col, e_id = [], [], []
    nodes, edges, first = [len(seeds)], [], 0
    for k in fanouts:
        last, edges_before = len(n_id), len(row)
        for target in range(first, last):
            chosen = lists[n_id[target]]
            if k >= 0 and replace:
                chosen = rng.choices(chosen, k=k) if chosen else []
            elif 0 <= k < len(chosen):
                chosen = rng.sample(chosen, k) if k > 0 else []
            for source, e in chosen:
                key = (batch[target], source)
                if key not in local:
                    local[key] = len(n_id)
                    n_id.append(source)
                    batch.append(batch[target])
                row.append(local[key])
                col.append(target)
                e_id.append(e)
        nodes.append(len(n_id) - last)
        edges.append(len(row) - edges_before)
        first = last
    return Expected(n_id, row, col, e_id, batch, nodes, edges)
