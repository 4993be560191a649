"""PyG's batch contract, in one place: from a `SamplerOutput` to the batch that the user sees."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.data.storage import BaseStorage
from torch_geometric.sampler import SamplerOutput
from torch_geometric.typing import SparseTensor

from .gather import gather
from .ops import Backend


def assemble(data: Data, out: SamplerOutput, backend: Backend) -> Data:
    """Join what was sampled with its attributes.

    The batch is a shallow copy of `data`, so its class, its graph-level attributes and everything
    that is not a tensor carry over by reference.

    Args:
        data: the full graph.
        out: from a sampler whose `edge` holds columns of `data.edge_index`; its `metadata` is
            (input ids int64 [seeds], seed times [seeds] or None).
        backend: gathers the rows.
    """
    batch = copy.copy(data)
    _filter_nodes(data._store, batch._store, out.node, backend)
    _filter_edges(data._store, batch._store, out, backend)
    store = batch._store
    if "n_id" not in store:
        store["n_id"] = out.node
    if out.edge is not None and "e_id" not in store:
        store["e_id"] = out.edge
    # Assigning None removes a key, as in PyG: a user's own `batch` does not survive.
    store["batch"] = out.batch
    store["num_sampled_nodes"] = out.num_sampled_nodes
    store["num_sampled_edges"] = out.num_sampled_edges
    if out.orig_row is not None and out.orig_col is not None:
        store["_orig_edge_index"] = torch.stack([out.orig_row, out.orig_col])
    assert out.metadata is not None
    input_id, seed_time = out.metadata
    store["input_id"] = input_id
    store["seed_time"] = seed_time
    store["batch_size"] = input_id.numel()
    return batch


def _filter_nodes(source: BaseStorage, target: BaseStorage, node: Tensor, backend: Backend) -> None:
    for key, value in source.items():
        if key == "num_nodes":
            target["num_nodes"] = node.numel()
        elif source.is_node_attr(key):
            dim = source._parent().__cat_dim__(key, value, source)
            target[key] = gather(value, node, dim, backend)


def _filter_edges(
    source: BaseStorage, target: BaseStorage, out: SamplerOutput, backend: Backend
) -> None:
    for key, value in source.items():
        if key == "edge_index":
            target[key] = _stack(out.row, out.col).to(value.device)
        elif key in ("adj", "adj_t"):
            target[key] = _sparse(key, value, target, out)
        elif source.is_edge_attr(key):
            dim = source._parent().__cat_dim__(key, value, source)
            target[key] = None if out.edge is None else gather(value, out.edge, dim, backend)


def _stack(row: Tensor, col: Tensor) -> Tensor:
    """Return [row; col], without a copy where one lies behind the other, as in our outputs."""
    size = row.numel()
    adjacent = (
        row.data_ptr() + row.nbytes == col.data_ptr()
        and size == col.numel() > 0
        and row.dtype == col.dtype
        and row.is_contiguous()
        and col.is_contiguous()
        and row.untyped_storage().data_ptr() == col.untyped_storage().data_ptr()
    )
    return row.as_strided((2, size), (size, 1)) if adjacent else torch.stack([row, col])


def _sparse(key: str, value: Any, target: BaseStorage, out: SamplerOutput) -> Any:
    """Return the sampled edges as a SparseTensor like `value`: `adj_t` is [destination, source]."""
    edge_value = value.storage.value()
    if edge_value is not None and out.edge is not None:
        edge_value = edge_value[out.edge.to(edge_value.device)]
    elif out.edge is None:
        edge_value = None
    row, col = out.row.to(value.device()), out.col.to(value.device())
    sizes = target.size()
    if key == "adj_t":
        row, col, sizes = col, row, sizes[::-1]
    return SparseTensor(
        row=row,
        col=col,
        value=edge_value,
        sparse_sizes=sizes,
        is_sorted=False,
        trust_data=True,
    )
