"""Times and weights of a graph, in the order of its CSC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType, NodeType

from .ops.sorting import Ints

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class Times:
    """The times of nodes or of edges, by type. Exactly one of the two is set.

    Raises:
        ValueError: no such attribute, times on nodes and on edges, or times that are not integers.
    """

    def __init__(self, data: Data | HeteroData, name: str) -> None:
        self.node: dict[NodeType | None, Ints] = {}
        self.edge: dict[EdgeType | None, Ints] = {}
        if isinstance(data, Data):
            if name in data and data.is_node_attr(name):
                self.node[None] = _integers(data[name], f"data.{name}")
            elif name in data and data.is_edge_attr(name):
                self.edge[None] = _integers(data[name], f"data.{name}")
        else:
            for key, store in data.node_items():
                if name in store:
                    self.node[key] = _integers(store[name], f"data[{key!r}].{name}")
            for edge_type, edges in data.edge_items():
                if name in edges:
                    self.edge[edge_type] = _integers(edges[name], f"data[{edge_type}].{name}")
        if self.node and self.edge:
            raise ValueError(
                f"time_attr={name!r} is an attribute of nodes and of edges; rename one."
            )
        if not self.node and not self.edge:
            raise ValueError(f"time_attr={name!r} is no attribute of the nodes or of the edges.")


def _integers(value: Any, name: str) -> Ints:
    if not isinstance(value, Tensor) or value.dtype not in INTEGERS or value.dim() != 1:
        kind = f"{value.dtype} {tuple(value.shape)}" if isinstance(value, Tensor) else type(value)
        raise ValueError(f"{name} must hold integer times of one dimension, got {kind}.")
    times: Ints = value.detach().cpu().to(torch.int64).contiguous().numpy()
    return times


def edge_weights(data: Data | HeteroData, name: str) -> dict[Any, np.ndarray[Any, Any]]:
    """Return the weights of the edges of each edge type that has some, float64 [E].

    Raises:
        ValueError: no such attribute, not one number for each edge, or negative, infinite or NaN.
    """
    found: dict[Any, np.ndarray[Any, Any]] = {}
    stores: Sequence[tuple[Any, Any]] = (
        [(None, data._store)] if isinstance(data, Data) else data.edge_items()
    )
    for key, store in stores:
        if name not in store:
            continue
        label = f"data.{name}" if key is None else f"data[{key}].{name}"
        value, edges = store[name], store.num_edges
        if not isinstance(value, Tensor) or value.numel() != edges or value.is_complex():
            kind = tuple(value.shape) if isinstance(value, Tensor) else type(value)
            raise ValueError(f"{label} must hold one weight for each of {edges} edges, got {kind}.")
        weights = value.detach().cpu().to(torch.float64).reshape(-1)
        wrong = ~(torch.isfinite(weights) & (weights >= 0))
        if wrong.any():
            at = int(wrong.nonzero()[0])
            raise ValueError(
                f"{label}[{at}] is {weights[at].item()}, but weights must be finite and not "
                f"negative."
            )
        found[key] = weights.numpy()
    if not found:
        raise ValueError(f"weight_attr={name!r} is no attribute of the edges.")
    return found
