"""The order in which a breadth-first search meets the nodes of a graph."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from .jit import light_kernel

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
