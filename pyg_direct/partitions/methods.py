"""Which part each node goes to."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..core.arguments import check_choice
from ..graph.coo_to_csc import undirected
from ..graph.from_pyg import Graph
from ..ops.host.parts import by_greedy_passes, by_hash
from ..ranks.owners import check_parts

METHODS = ("metis", "ldg", "hash")
GIVEN = "given"  # what a report calls parts that the user gave

Ints = npt.NDArray[Any]


def parts_of(graph: Graph, parts: int, method: Any) -> list[Ints]:
    """Return the part of each node, int16 [N_t] for each type.

    Args:
        graph: verified, on the host.
        parts: how many.
        method: as of `pyg_direct.partition`.

    Raises:
        ValueError, TypeError: no such method, or parts that are not in [0, parts) for each node.
        ImportError: 'metis' without `pymetis`.
    """
    csc = graph.csc
    if not isinstance(method, str):
        names = ", ".join(map(repr, METHODS))
        counts = graph.csc.num_nodes.tolist()
        return check_parts(method, "method", graph.node_types, counts, parts, f"one of {names}")
    check_choice("method", method, METHODS)
    if method == "hash":
        return [by_hash(int(count), parts) for count in csc.num_nodes]
    part = by_greedy_passes(csc, parts) if method == "ldg" else _by_metis(graph, parts)
    return [np.ascontiguousarray(p) for p in np.split(part, csc.node_base[1:-1])]


def _by_metis(graph: Graph, parts: int) -> Ints:
    """Return METIS's parts of all nodes, which are weighted by their lists.

    Weights of one node and of the mean list count alike: with nodes alone, one part of a power-law
    graph had 2.4 times the mean of in-edges.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "method='metis' needs pymetis: pip install pymetis. "
            "method='ldg' needs nothing, and reads the graph in order, in bounded memory."
        ) from error
    csc = graph.csc
    if parts == 1:
        return np.zeros(int(csc.node_base[-1]), np.int16)
    ends, degrees = [], np.zeros(int(csc.node_base[-1]), np.int64)
    for r, (src, dst) in enumerate(zip(csc.src_type, csc.dst_type, strict=True)):
        first, count = int(csc.indptr_base[r]), int(csc.num_nodes[dst])
        degree = np.diff(csc.indptr[first : first + count + 1])
        base = int(csc.node_base[dst])
        degrees[base : base + count] += degree
        destination = np.repeat(np.arange(base, base + count), degree)
        source = csc.indices[slice(*csc.edge_base[r : r + 2])] + csc.node_base[src]
        ends.append(np.stack([source.astype(np.int64), destination]))
    pointers, neighbours = undirected(
        np.concatenate([np.empty((2, 0), np.int64), *ends], 1), len(degrees)
    )
    mean = max(1, int(degrees.mean())) if len(degrees) else 1
    adjacency = pymetis.CSRAdjacency(pointers, neighbours)
    _, part = pymetis.part_graph(parts, adjacency, vweights=(degrees + mean).tolist())
    return np.array(part, np.int16)
