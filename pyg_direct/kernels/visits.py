"""How often the hop of a batch draws each node, as an expectation over the draws."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel

Ints = npt.NDArray[Any]
Doubles = npt.NDArray[np.float64]


@kernel
def add_expected_draws(
    indptr: Ints,  # [N_dst + 1], of one relation
    indices: Ints,  # [E], of all relations, each in [0, N_src)
    fanout: int,  # negative: all neighbours
    frontier: Doubles,  # [N_dst]: probability that the hop expands a node
    expected: Doubles,  # [N_src], which is added to
) -> None:
    """Add how often a hop is expected to draw each source: min(fanout, d) / d for each edge.

    Example: node 0 has the neighbours 3 and 5, a fan-out of 1 and the probability 0.5 to be
    expanded: `expected` of 3 and of 5 grows by 0.25 each.
    """
    for v in range(frontier.shape[0]):
        first, last = indptr[v], indptr[v + 1]
        if last > first and frontier[v] > 0:
            degree = last - first
            share = 1.0
            if 0 <= fanout < degree:
                share = fanout / degree
            for e in range(first, last):
                expected[indices[e]] += share * frontier[v]
