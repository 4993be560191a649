"""Graphs in a user's `GraphStore`."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from torch_geometric.data import EdgeLayout
from torch_geometric.typing import EdgeType, NodeType

from ..core.pyg import remote_backend_utils
from .coo_to_csc import Compressed


class Relation(NamedTuple):
    """One edge type: where its edges are, and the numbers of its node types."""

    edge_type: EdgeType | None
    store: Any  # PyG's storage, or `Compressed` where a graph store has compressed the edges
    src: int
    dst: int


def remote_parts(
    feature_store: Any, graph_store: Any, backward: bool = False
) -> tuple[list[NodeType | None], list[Relation], list[int]]:
    """Return the node types, the relations and the numbers of nodes.

    Types come in the order in which the stores list them; node types that only edges know are
    last. Edges are compressed by destination, with `backward` by source.

    Raises:
        ValueError: the stores do not have the number of nodes of a type.
    """
    edge_attrs = graph_store.get_all_edge_attrs()
    if all(attr.edge_type is None for attr in edge_attrs) and edge_attrs:
        row, ptr, perm = _by_destination(graph_store, backward)
        sizes = [int(end) for attr in edge_attrs if attr.size is not None for end in attr.size]
        sizes += [
            int(feature_store.get_tensor_size(attr)[0])
            for attr in feature_store.get_all_tensor_attrs()
            if attr.group_name is None and not sizes
        ]
        if not sizes:
            raise ValueError("The graph store has no size; set it with put_edge_index(..., size=).")
        _check_rows(feature_store, max(sizes), len(row))
        return [None], [Relation(None, _compressed(ptr, row, perm), 0, 0)], [max(sizes)]
    row_dict, ptr_dict, perm_dict = _by_destination(graph_store, backward)
    groups = [attr.group_name for attr in feature_store.get_all_tensor_attrs()]
    ends = [end for key in row_dict for end in (key[0], key[-1])]
    node_types = list(dict.fromkeys([g for g in groups if isinstance(g, str)] + ends))
    relations = [
        Relation(
            key,
            _compressed(ptr_dict[key], row_dict[key], perm_dict.get(key)),
            node_types.index(key[0]),
            node_types.index(key[-1]),
        )
        for key in row_dict
    ]
    num_nodes = [
        int(remote_backend_utils.num_nodes(feature_store, graph_store, key)) for key in node_types
    ]
    return list(node_types), relations, num_nodes


def _check_rows(feature_store: Any, num_nodes: int, num_edges: int) -> None:
    """Raise a ValueError if a tensor of a homogeneous store has not a row for each node.

    PyG selects rows by node ids, whatever a tensor is of, which a store without types does not
    tell. So there may be more rows than nodes, which no batch has, with a warning where there are
    as many as edges.
    """
    for attr in feature_store.get_all_tensor_attrs():
        size = feature_store.get_tensor_size(attr)
        if size is None or size[0] == num_nodes:
            continue
        text = (
            f"{attr.attr_name!r} in the feature store has {size[0]} rows, and the graph "
            f"{num_nodes} nodes and {num_edges} edges. Without types all tensors are of nodes: put "
            f"features of edges into stores with node and edge types, under their edge type."
        )
        if size[0] < num_nodes:
            raise ValueError(text)
        if size[0] == num_edges:
            warnings.warn(text, UserWarning, stacklevel=2)


def _by_destination(graph_store: Any, backward: bool) -> tuple[Any, Any, Any]:
    """Return (neighbours, pointers, permutation), each by edge type if there are any."""
    _check_ids(graph_store, 0 if backward else 1)
    if not backward:
        row, ptr, perm = graph_store.csc()
        return row, ptr, perm
    ptr, col, perm = graph_store.csr()
    return col, ptr, perm


def _check_ids(graph_store: Any, end: int) -> None:
    """Raise a ValueError if PyG would compress edges by ids that do not exist.

    Its conversion counts them into an array of `size` entries and looks at none of them before.

    Args:
        graph_store: of the user.
        end: 1 if edges are compressed by destination, 0 by source.
    """
    compressed = (EdgeLayout.CSR, EdgeLayout.CSC)[end]
    continued = bool(getattr(graph_store, "meta", {}).get("is_hetero"))  # PyG takes the largest id
    for attr in graph_store.get_all_edge_attrs():
        if attr.layout == compressed:
            continue
        ids = graph_store.get_edge_index(attr)[end]
        if len(ids) == 0:
            continue
        size = None if attr.size is None or continued else attr.size[end]
        low, high = int(ids.min()), int(ids.max())
        if low < 0 or (size is not None and high >= size):
            name, bad = ("source", "destination")[end], low if low < 0 else high
            raise ValueError(
                f"An edge of type {attr.edge_type} in the graph store has the {name} {bad}, but "
                f"ids must be in [0, {'...' if size is None else size})."
            )


def _compressed(ptr: Any, row: Any, perm: Any) -> Compressed:
    def array(tensor: Any) -> Any:
        return np.ascontiguousarray(tensor.detach().cpu().numpy())

    return Compressed(array(ptr), array(row), None if perm is None else array(perm))
