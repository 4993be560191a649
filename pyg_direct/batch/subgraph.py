"""Attributes of a subgraph that no sampler of PyG's has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from .gather import Gatherer
from .roles import Attribute


def swapped_ends(edge_index: Tensor) -> Tensor:
    """Return edges [2, e] with their ends exchanged; in a CSC grouped by source they are.

    By NumPy: torch would wake its threads, and those that spin for the processor while producers
    hold it cost more time than the copy of a whole batch.
    """
    return torch.from_numpy(np.ascontiguousarray(edge_index.numpy()[::-1]))


def attributes_of(
    data: Data,
    ends: tuple[int | None, int | None],
    node: Tensor,
    edge: Tensor | Callable[[], Tensor],
    gatherer: Gatherer,
) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a subgraph, by name, without its edges and its number of nodes.

    As in PyG's GraphSAINT and ShaDow samplers, a tensor with one row for each node is of nodes, one
    with a row for each edge is of edges, and all else is passed on by reference.

    Args:
        data: the full graph.
        ends: its numbers of nodes and of edges.
        node: int64 [n], ids of the subgraph's nodes.
        edge: int64 [e], ids of its edges; or what returns them, called if they are needed.
        gatherer: gathers the rows.
    """
    values = _attributes(data)
    for names, end, index in zip(_names_by_size(values, ends), ends, (node, edge), strict=True):
        if not names:
            continue
        roles = [Attribute(name, 0) for name in names]
        chosen = index if isinstance(index, Tensor) else index()
        chosen = gatherer.memory.to_batch(chosen, gatherer.backend.device)
        values.update(zip(names, gatherer.named_rows(values, roles, chosen, end), strict=True))
    yield from values.items()
    gatherer.ids.wait()


def has_rows_of_edges(data: Data, ends: tuple[int | None, int | None]) -> bool:
    """Whether `attributes_of` picks anything by the ids of edges."""
    return bool(_names_by_size(_attributes(data), ends)[1])


def _attributes(data: Data) -> dict[str, Any]:
    return {n: v for n, v in data.items() if n not in ("edge_index", "adj_t", "num_nodes")}


def _names_by_size(
    values: dict[str, Any], ends: tuple[int | None, int | None]
) -> tuple[list[str], list[str]]:
    """Return which tensors have one row for each node, and which for each edge."""
    names: tuple[list[str], list[str]] = [], []
    for name, value in values.items():
        if isinstance(value, Tensor) and value.dim() > 0 and (size := value.size(0)) in ends:
            names[ends.index(size)].append(name)
    return names


def named_attributes_of(
    data: Data,
    ends: tuple[int, int],
    node: Tensor,
    edge: Tensor,
    gatherer: Gatherer,
) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of nodes and edges, by name, as PyG's `Data` tells them apart.

    Args:
        data: the full graph; `edge_index` need not be there.
        ends: its numbers of nodes and of edges, which all ids are below.
        node: int64 [n], ids of the subgraph's nodes.
        edge: int64 [e], ids of its edges.
        gatherer: gathers the rows.
    """
    bring, device = gatherer.memory.to_batch, gatherer.backend.device
    node, edge = bring(node, device), bring(edge, device)
    for name, value in data.items():
        of_nodes = data.is_node_attr(name)
        if of_nodes or data.is_edge_attr(name):
            index, end = (node, ends[0]) if of_nodes else (edge, ends[1])
            role = Attribute(name, data.__cat_dim__(name, value))
            yield name, *gatherer.named_rows({name: value}, [role], index, end)
    gatherer.ids.wait()
