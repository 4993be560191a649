"""Attributes of a subgraph that no sampler of PyG's has made."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import select

from .gather import Gatherer
from .roles import Attribute, Roles

NOT_ATTRIBUTES = ("edge_index", "adj_t", "num_nodes")


def swapped_ends(edge_index: Tensor) -> Tensor:
    """Return edges [2, e] with their ends exchanged; in a CSC grouped by source they are.

    By NumPy: torch would wake its threads, and those that spin for the processor while producers
    hold it cost more time than the copy of a whole batch.
    """
    return torch.from_numpy(np.ascontiguousarray(edge_index.numpy()[::-1]))


def attributes_of(
    data: Data,
    roles: Roles,
    ends: tuple[int, int],
    node: Tensor,
    edge: Tensor | Callable[[], Tensor],
    gatherer: Gatherer,
) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a subgraph, by name, without its edges and its number of nodes.

    Args:
        data: the full graph.
        roles: its attributes of nodes and edges; all others are passed on by reference.
        ends: its numbers of nodes and of edges.
        node: int64 [n], ids of the subgraph's nodes.
        edge: int64 [e], ids of its edges; or what returns them, called if they are needed.
        gatherer: gathers the rows.
    """
    values = {n: v for n, v in data.items() if n not in NOT_ATTRIBUTES}
    for attributes, end, index in zip(roles, ends, (node, edge), strict=True):
        if attributes:
            chosen = index if isinstance(index, Tensor) else index()
            values.update(rows_of_each(values, attributes, chosen, end, gatherer))
    yield from values.items()
    gatherer.ids.wait()


def rows_of_each(
    values: Mapping[str, Any],
    attributes: Sequence[Attribute],
    index: Tensor,
    end: int,
    gatherer: Gatherer,
) -> dict[str, Any]:
    """Return the entries of attributes by name; of a list, or an array of texts, one of its kind.

    Args:
        values: the attributes of the graph.
        attributes: those that entries are selected of.
        index: int64 [n] on the host, ids.
        end: what they are below.
        gatherer: gathers the rows.
    """
    found = {
        attribute.name: entries_of(values[attribute.name], index, attribute.dim)
        for attribute in attributes
        if not _makes_a_tensor(values[attribute.name])
    }
    gathered = [attribute for attribute in attributes if attribute.name not in found]
    if gathered:
        chosen = gatherer.memory.to_batch(index, gatherer.backend.device)
        rows = gatherer.named_rows(values, gathered, chosen, end)
        found.update(zip((attribute.name for attribute in gathered), rows, strict=True))
    return found


def entries_of(value: Any, index: Tensor, dim: int) -> Any:
    """Return the entries `index` of an attribute, as an object of its kind."""
    if isinstance(value, np.ndarray):
        return value.take(index.cpu().numpy(), axis=dim)
    return select(value, index, dim)


def _makes_a_tensor(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "biufc"
    return not isinstance(value, (list, tuple))
