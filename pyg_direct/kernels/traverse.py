"""The order in which a breadth-first search meets nodes, and how likely a hop draws them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .jit import kernel, light_kernel

Ints = npt.NDArray[Any]


@light_kernel
def breadth_first(
    indptr: Ints,
    indptr_base: Ints,  # [R]
    indices: Ints,
    src_type: Ints,  # [R]
    dst_type: Ints,  # [R]
    node_base: Ints,  # [T + 1]: number of each type's first node
    root: Ints,  # [N]: all nodes, in the order in which searches begin at those not met yet
    rank: Ints,  # [N] out, of -1: number of nodes that were met before
    met: Ints,  # [N] out: the nodes by rank
) -> None:
    """Search from each node to its in-neighbours, by relation.

    Example: the lists [1, 2], [0], [0] and [] of the nodes 0 to 3, and the roots 2, 3, 0, 1: the
    search meets 2, 0, 1 and then 3, so rank = [1, 2, 0, 3].
    """
    count, done = 0, 0
    for i in range(root.shape[0]):
        if rank[root[i]] >= 0:
            continue
        rank[root[i]], met[count] = count, root[i]
        count += 1
        while done < count:
            node = met[done]
            done += 1
            kind = 0
            while node >= node_base[kind + 1]:
                kind += 1
            for r in range(dst_type.shape[0]):
                if dst_type[r] != kind:
                    continue
                v = indptr_base[r] + node - node_base[kind]
                for p in range(indptr[v], indptr[v + 1]):
                    source = node_base[src_type[r]] + indices[p]
                    if rank[source] < 0:
                        rank[source], met[count] = count, source
                        count += 1


Doubles = npt.NDArray[np.float64]

SURE = 1.0 - 2.0**-53  # so that its logarithm is finite


@kernel
def add_log_missed(
    indptr: Ints,  # [N_dst + 1], of one relation
    indices: Ints,  # [E], of all relations, each in [0, N_src)
    fanout: int,  # negative: all neighbours
    replace: bool,
    frontier: Doubles,  # [N_dst]: probability that the hop expands a node
    times: Doubles,  # [N_dst]: how often it is expanded then; [0] where once
    log_missed: Doubles,  # [N_src], which is added to
) -> None:
    """Add for each edge the logarithm of the probability that no draw takes it.

    A list of d edges that is expanded once takes each with probability min(fanout, d) / d, or with
    replacement 1 - (1 - 1 / d)^fanout.

    Example: node 0 has the neighbours 3 and 5, a fan-out of 1 and the probability 0.5 to be
    expanded: `log_missed` of 3 and of 5 grows by log(1 - 0.25).
    """
    for v in range(frontier.shape[0]):
        first, last = indptr[v], indptr[v + 1]
        if last > first and frontier[v] > 0:
            degree = last - first
            share = 1.0
            if fanout >= 0:
                if replace:
                    share = 1.0 - (1.0 - 1.0 / degree) ** fanout
                elif fanout < degree:
                    share = fanout / degree
            if times.shape[0] > 0:
                share = 1.0 - (1.0 - share) ** times[v]
            missed = np.log1p(-min(share * frontier[v], SURE))
            for e in range(first, last):
                log_missed[indices[e]] += missed
