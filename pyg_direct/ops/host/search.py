"""Searches of a graph on the host: for edges by their ends, and breadth-first."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import EDGE_TIME, Csc
from ...kernels import exclude
from ...kernels.traverse import breadth_first

Ints = npt.NDArray[Any]
NO_INTS = np.empty(0, np.int64)


def find_edges(
    csc: Csc, relation: int, near: Ints, far: Ints, link_time: Tensor | None
) -> tuple[Ints, Ints]:
    """Find the edges of a relation between pairs of nodes, parallel ones too.

    Args:
        csc: the graph, with NumPy arrays, verified.
        relation: which of its relations.
        near: int64 [n], destinations, whose lists are read, each once.
        far: int64 [n], sources.
        link_time: integers [n]: where edges have times of their own, they must be these.

    Returns:
        int64 [found] each: the pair that found an edge, and the edge's position.
    """
    order = np.lexsort((far, near))
    time = wanted = NO_INTS
    if csc.times is not None and csc.times.base[relation] == EDGE_TIME:
        assert link_time is not None, "checked for each batch"
        time, wanted = csc.times.time, link_time.numpy().astype(np.int64)[order]
    size = 2 * len(near)
    while True:
        query, position = np.empty((2, size), np.int64)
        count = exclude.find_edges(
            csc.indptr, int(csc.indptr_base[relation]), csc.indices, near[order], far[order],
            time, wanted, query, position,
        )  # fmt: skip
        if count <= size:
            return order[query[:count]], position[:count]
        size = count


def breadth_first_ranks(csc: Csc) -> list[Tensor]:
    """Return for each node type int64 [N_t]: how many nodes of all types a search meets before.

    The searches begin at nodes in a random order, which is the same in every call.

    Args:
        csc: a graph on the host, verified.
    """
    total = int(csc.node_base[-1])
    generator = torch.Generator().manual_seed(0)
    root = torch.randperm(total, generator=generator).numpy()
    rank, met = np.full(total, -1, np.int64), np.empty(total, np.int64)
    breadth_first(
        csc.indptr, csc.indptr_base, csc.indices, csc.src_type, csc.dst_type, csc.node_base, root,
        rank, met,
    )  # fmt: skip
    return list(torch.split(torch.from_numpy(rank), csc.num_nodes.tolist()))
