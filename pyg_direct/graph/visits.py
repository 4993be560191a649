"""How often batches visit each node: what caches and the order of rows in files go by."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..core.types import Csc, IntTable
from ..kernels.visits import add_expected_draws

Doubles = npt.NDArray[np.float64]


def out_degrees(csc: Csc) -> list[Doubles]:
    """Return how many edges leave each node, float64 [N_t] for each type.

    Args:
        csc: a graph of NumPy arrays whose ids were verified.
    """
    found = [np.zeros(count) for count in csc.num_nodes.tolist()]
    for r, source in enumerate(csc.src_type.tolist()):
        first, last = csc.edge_base[r : r + 2].tolist()
        found[source] += np.bincount(csc.indices[first:last], minlength=len(found[source]))
    return found


def expected_visits(
    csc: Csc, seeds: Sequence[IntTable | None], fanouts: IntTable, batch_size: int
) -> list[Doubles]:
    """Return the probability of each node to be in a batch, float64 [N_t] for each type.

    It follows from the fan-outs and degrees, as if nodes were drawn independently of each other:
    for each hop, the nodes that it expands are those that no hop before it had found. Weights and
    times are not looked at. One pass over the edges for each hop, nothing is drawn.

    Args:
        csc: a graph of NumPy arrays whose ids were verified.
        seeds: ids of each type that batches take their seeds from, or None.
        fanouts: [hops, R]; negative for all neighbours.
        batch_size: seeds of a batch, at random from all.

    Example: 10 seeds, batches of 5 and one hop that takes all neighbours: each seed is in a batch
    with probability 0.5, and a node whose only edges lead to two of them with 1 - exp(-2 * 0.5).
    """
    num_seeds = sum(len(ids) for ids in seeds if ids is not None)
    share = min(1.0, batch_size / max(1, num_seeds))
    frontier = [np.zeros(count) for count in csc.num_nodes.tolist()]
    for found, ids in zip(frontier, seeds, strict=True):
        if ids is not None:
            found[ids] = share
    visited = [found.copy() for found in frontier]
    for of_hop in fanouts.tolist():
        expected = [np.zeros(count) for count in csc.num_nodes.tolist()]
        for r, fanout in enumerate(of_hop):
            source, target = int(csc.src_type[r]), int(csc.dst_type[r])
            begin = int(csc.indptr_base[r])
            lists = csc.indptr[begin : begin + len(frontier[target]) + 1]
            add_expected_draws(lists, csc.indices, fanout, frontier[target], expected[source])
        for t, draws in enumerate(expected):
            frontier[t] = (1 - visited[t]) * -np.expm1(-draws)
            visited[t] += frontier[t]
    return visited
