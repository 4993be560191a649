"""Times and weights, found by attribute name in PyG data or in a user's stores."""

from __future__ import annotations

import copy
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType, NodeType

from ..core.arguments import NODES_OR_EDGES, check_dense, missing_attribute
from ..core.pyg import NOT_ATTRIBUTES
from .coo_to_csc import Ints

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Named(NamedTuple):
    """An attribute's value, and its name in errors."""

    value: Any
    label: str


def find(
    data: Any, name: str, of_edges: bool = False
) -> tuple[dict[NodeType | None, Named], dict[EdgeType | None, Named]]:
    """Return an attribute of each node type and of each edge type that has it.

    In a homogeneous graph PyG tells the two apart by length and name; `of_edges` says that it can
    only be of the edges.
    """
    node: dict[NodeType | None, Named] = {}
    edge: dict[EdgeType | None, Named] = {}
    if isinstance(data, Data):
        if name in data:
            found = Named(data[name], f"data.{name}")
            if data.is_node_attr(name) and not of_edges:
                node[None] = found
            elif data.is_edge_attr(name) or of_edges:
                edge[None] = found
    elif isinstance(data, HeteroData):
        for key, nodes in data.node_items():
            if name in nodes:
                node[key] = Named(nodes[name], f"data[{key!r}].{name}")
        for edge_type, edges in data.edge_items():
            if name in edges:
                edge[edge_type] = Named(edges[name], f"data[{edge_type}].{name}")
    else:
        features, _ = data
        for attr in features.get_all_tensor_attrs():
            if attr.attr_name == name:
                attr = copy.copy(attr)
                attr.index = None
                found = Named(features.get_tensor(attr), f"{name!r} of {attr.group_name!r}")
                # Without types, PyG takes only the name 'time' for an attribute of the nodes.
                by_edge = isinstance(attr.group_name, tuple) or (
                    attr.group_name is None and name != "time"
                )
                (edge if by_edge else node)[attr.group_name] = found
    return node, edge


def names_in(data: Any, of_edges: bool = False) -> set[str]:
    """Return the names of all attributes of nodes and edges, or of edges alone."""
    if isinstance(data, Data):
        names = set(data.keys()) - {*NOT_ATTRIBUTES}
        return {name for name in names if data.is_edge_attr(name)} if of_edges else names
    if isinstance(data, HeteroData):
        stores = data.edge_stores if of_edges else data.stores
        return {name for store in stores for name in store if name not in NOT_ATTRIBUTES}
    kinds = {attr.attr_name: attr.group_name for attr in data[0].get_all_tensor_attrs()}
    return {name for name, kind in kinds.items() if not (of_edges and isinstance(kind, str))}


class TimeAttributes:
    """The times of nodes or of edges, by type, int64. Exactly one of the two is set.

    Those of nodes are copies. Those of edges may be in the user's memory: they are read while the
    graph is built, and not kept.

    Raises:
        ValueError: no such attribute, times on nodes and on edges, or times that are not integers.
    """

    def __init__(self, data: Any, name: str) -> None:
        node, edge = find(data, name)
        if node and edge:
            raise ValueError(
                f"time_attr={name!r} is an attribute of nodes and of edges; rename one."
            )
        if not node and not edge:
            raise missing_attribute("time_attr", name, NODES_OR_EDGES, names_in(data))
        self.node = {key: _integers(found, name).copy() for key, found in node.items()}
        self.edge = {key: _integers(found, name) for key, found in edge.items()}


def _integers(found: Named, name: str) -> Ints:
    """Return times as int64 of one dimension, in the user's memory where they are that already."""
    value, label = found
    if not isinstance(value, Tensor):
        raise ValueError(_no_times(name, label, str(type(value))))
    check_dense(f"time_attr={name!r}: {label}", value)
    check_times(name, label, value.dtype, tuple(value.shape))
    times: Ints = value.detach().cpu().to(torch.int64).contiguous().numpy()
    return times


def check_times(name: str, label: str, dtype: torch.dtype, shape: tuple[Any, ...]) -> None:
    """Raise a ValueError unless the attribute `name`, `label` in messages, can hold times."""
    if dtype not in INTEGERS or len(shape) != 1:
        raise ValueError(_no_times(name, label, f"{dtype} {shape}"))


def _no_times(name: str, label: str, kind: str) -> str:
    return f"time_attr={name!r}: {label} must hold integer times of one dimension, got {kind}."


def edge_weights(data: Any, name: str) -> dict[EdgeType | None, npt.NDArray[np.float64]]:
    """Return the weights of the edges of each edge type that has some, float64 [E].

    They may be in the user's memory: to be read while the graph is built, and not kept.

    Raises:
        ValueError: no such attribute, not one-dimensional, or negative, infinite or NaN.
    """
    weights: dict[EdgeType | None, npt.NDArray[np.float64]] = {}
    for key, (value, label) in find(data, name, of_edges=True)[1].items():
        if not isinstance(value, Tensor):
            raise ValueError(_no_weights(name, label, str(type(value))))
        weights[key] = weights_of(value, name, label)
    if not weights:
        raise missing_attribute("weight_attr", name, "the edges", names_in(data, of_edges=True))
    return weights


def weights_of(value: Tensor, name: str, label: str, first: int = 0) -> npt.NDArray[np.float64]:
    """Return weights, float64 [n], of the attribute `name`, in the user's memory where they can be.

    Args:
        value: of n edges.
        name: of the attribute.
        label: what errors call it.
        first: number of the first of these edges.

    Raises:
        ValueError: more than one number an edge, or negative, infinite or NaN.
    """
    check_dense(f"weight_attr={name!r}: {label}", value)
    one_each = value.shape.numel() == value.shape[:1].numel()
    if not one_each or value.dim() == 0 or value.is_complex():
        raise ValueError(_no_weights(name, label, str(tuple(value.shape))))
    numbers = value.detach().cpu().to(torch.float64).reshape(-1)
    wrong = ~(torch.isfinite(numbers) & (numbers >= 0))
    if wrong.any():
        at = int(wrong.nonzero()[0])
        raise ValueError(
            f"weight_attr={name!r}: {label}[{first + at}] is {numbers[at].item()}, but weights "
            f"must be finite and not negative."
        )
    return numbers.numpy()


def _no_weights(name: str, label: str, kind: str) -> str:
    return f"weight_attr={name!r}: {label} must hold one weight for each edge, got {kind}."


def check_length(argument: str, name: str | None, values: Any, count: int, what: str) -> None:
    """Raise a ValueError unless `values` is None or holds one entry for each node or edge."""
    if values is not None and len(values) != count:
        raise ValueError(
            f"{argument}={name!r} must name an attribute with one entry for each of {count} "
            f"{what}, got {len(values)}."
        )
