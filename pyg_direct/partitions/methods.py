"""Which part each node goes to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..core.arguments import check_choice
from ..graph.coo_to_csc import undirected
from ..graph.from_pyg import Graph
from ..ops.host.parts import by_greedy_passes, by_hash

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
        return _given(graph, parts, method)
    check_choice("method", method, METHODS)
    if method == "hash":
        return [by_hash(int(count), parts) for count in csc.num_nodes]
    part = by_greedy_passes(csc, parts) if method == "ldg" else _by_metis(graph, parts)
    return [np.ascontiguousarray(p) for p in np.split(part, csc.node_base[1:-1])]


def _given(graph: Graph, parts: int, method: Any) -> list[Ints]:
    typed = list(graph.node_types) != [None]
    if typed != isinstance(method, Mapping):
        wanted = "a dict of tensors by node type" if typed else "a tensor"
        raise TypeError(
            f"method must be one of {', '.join(map(repr, METHODS))}, or {wanted} with the part of "
            f"each node, got {type(method).__name__}."
        )
    by_type: Mapping[Any, Any] = method if typed else {None: method}
    if set(by_type) != set(graph.node_types):
        raise ValueError(f"method must have the node types {graph.node_types}, got {[*by_type]}.")
    found = []
    for kind, count in zip(graph.node_types, graph.csc.num_nodes.tolist(), strict=True):
        part, name = by_type[kind], "method" if kind is None else f"method[{kind!r}]"
        is_integer = isinstance(part, Tensor) and not (
            part.is_floating_point() or part.is_complex() or str(part.dtype) == "torch.bool"
        )
        if not is_integer or part.shape != (count,):
            raise ValueError(f"{name} must hold one integer for each of {count} nodes.")
        low, high = (int(end) for end in part.aminmax()) if count > 0 else (0, 0)
        if low < 0 or high >= parts:
            raise ValueError(f"{name} must hold parts in [0, {parts}), got {low} to {high}.")
        found.append(part.cpu().numpy().astype(np.int16))
    return found


def _by_metis(graph: Graph, parts: int) -> Ints:
    """Return METIS's parts of all nodes, which are weighted by their lists.

    Weights of one node and of the mean list count alike: with nodes alone, one part of a power-law
    graph had 2.4 times the mean of in-edges.
    """
    try:
        import pymetis
    except ImportError as error:
        raise ImportError(
            "method='metis' needs pymetis: pip install pymetis (or pyg-direct[cluster]). "
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
