"""How often batches visit each node, for caches and for the order of rows in files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..core.types import ONCE, Csc, IntTable, SeedVisits
from ..kernels.traverse import add_log_missed

Doubles = npt.NDArray[np.float64]

BISECTIONS = 12  # to 0.1 % of the draws


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
    csc: Csc,
    seeds: Sequence[SeedVisits | None],
    fanouts: IntTable,
    replace: bool = False,
    found: Doubles | None = None,
) -> list[Doubles]:
    """Return the probability of each node to be in a batch, float64 [N_t] for each type.

    It follows from the fan-outs and degrees, as if nodes were drawn independently of each other:
    each hop expands the nodes that no earlier hop found. Draws are uniform; weights and times are
    ignored. One pass over the edges for each hop, without random draws.

    Args:
        csc: a graph of NumPy arrays whose ids were verified.
        seeds: how often batches have each node of each type as a seed, or None.
        fanouts: [hops, R]; negative for all neighbours.
        replace: whether edges are drawn with replacement.
        found: [hops, T], how many new nodes batches find in each hop. The probabilities are scaled
            to these, as paths from one seed to the same node are not independent.

    Example: 10 seeds, batches of 5 and one hop that takes all neighbours: each seed is in a batch
    with probability 0.5, and a node whose only edges lead to two of them with 1 - 0.5 * 0.5.
    """
    counts = csc.num_nodes.tolist()
    times = [ONCE if of_type is None else of_type.times for of_type in seeds]
    frontier = [
        np.zeros(count) if of_type is None else of_type.share.copy()
        for count, of_type in zip(counts, seeds, strict=True)
    ]
    visited = [found.copy() for found in frontier]
    for hop, of_hop in enumerate(fanouts.tolist()):
        log_missed = [np.zeros(count) for count in counts]
        for r, fanout in enumerate(of_hop):
            source, target = int(csc.src_type[r]), int(csc.dst_type[r])
            begin = int(csc.indptr_base[r])
            lists = csc.indptr[begin : begin + counts[target] + 1]
            add_log_missed(
                lists, csc.indices, fanout, replace, frontier[target], times[target],
                log_missed[source],
            )  # fmt: skip
        for t, missed in enumerate(log_missed):
            power = 1.0 if found is None else _power(1 - visited[t], missed, float(found[hop, t]))
            frontier[t] = _drawn(1 - visited[t], missed, power)
            visited[t] += frontier[t]
        times = [ONCE] * len(counts)
    return visited


def _drawn(new: Doubles, log_missed: Doubles, power: float) -> Doubles:
    """Return how likely each new node is drawn, with the draws raised to a power."""
    drawn: Doubles = new * -np.expm1(power * log_missed)
    return drawn


def _power(new: Doubles, log_missed: Doubles, found: float) -> float:
    """Return the power at which `found` new nodes are expected, by bisection; 4 at most."""
    low, high = 0.0, 4.0
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        if _drawn(new, log_missed, middle).sum() < found:
            low = middle
        else:
            high = middle
    return (low + high) / 2
