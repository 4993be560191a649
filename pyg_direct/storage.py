"""PyG data to CSC: every relation's edges grouped by destination, each array placed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.data.storage import BaseStorage
from torch_geometric.typing import EdgeType, NodeType, SparseTensor

from .ops.sorting import Compressed, Ints, compress, narrow
from .types import Csc


@dataclass(frozen=True)
class Graph:
    """A graph as the sampler sees it. A homogeneous one has the one node and edge type None."""

    csc: Csc
    node_types: Sequence[NodeType | None]
    edge_types: Sequence[EdgeType | None]
    id_dtype: torch.dtype  # dtype of the user's `edge_index`: int64 or int32


def graph_of(data: Any, is_sorted: bool = False) -> Graph:
    """Convert PyG data for sampling.

    Args:
        data: `Data` or `HeteroData`, each relation with `edge_index` (a tensor or an `EdgeIndex`),
            `adj_t` or `adj` (a `torch_sparse.SparseTensor`), or no edges at all.
        is_sorted: the user says that `edge_index` is sorted by column. Sorted edges are recognised
            without it, too; with it, unsorted ones are an error.

    Raises:
        ValueError: ids out of range, a wrong shape or dtype, or unsorted edges with `is_sorted`.
        NotImplementedError: remote stores.
    """
    if isinstance(data, Data):
        num_nodes = _num_nodes(data, "data")
        compressed, dtype = _compressed(data._store, (num_nodes, num_nodes), is_sorted, "data")
        return Graph(_fuse([compressed], [0], [0], [num_nodes]), [None], [None], dtype)
    if isinstance(data, HeteroData):
        return _hetero_graph(data, is_sorted)
    raise NotImplementedError(
        f"This version takes torch_geometric.data.Data and HeteroData, got "
        f"{type(data).__name__}. Remote stores are planned; use "
        f"torch_geometric.loader.NeighborLoader for them until then."
    )


def _hetero_graph(data: HeteroData, is_sorted: bool) -> Graph:
    node_types, edge_types = data.metadata()
    num_nodes = [_num_nodes(data[key], f"data[{key!r}]") for key in node_types]
    number = {key: i for i, key in enumerate(node_types)}
    src_type, dst_type, relations, dtypes = [], [], [], []
    for key in edge_types:
        for end in (key[0], key[-1]):
            if end not in number:
                raise ValueError(
                    f"Edge type {key} refers to the node type {end!r}, of which the data knows "
                    f"nothing: set data[{end!r}].x or data[{end!r}].num_nodes."
                )
        src, dst = number[key[0]], number[key[-1]]
        compressed, dtype = _compressed(
            data[key], (num_nodes[src], num_nodes[dst]), is_sorted, f"data[{key}]"
        )
        src_type.append(src)
        dst_type.append(dst)
        relations.append(compressed)
        dtypes.append(dtype)
    id_dtype = torch.int32 if set(dtypes) == {torch.int32} else torch.int64
    return Graph(_fuse(relations, src_type, dst_type, num_nodes), node_types, edge_types, id_dtype)


def _num_nodes(store: Any, name: str) -> int:
    num_nodes = store.num_nodes
    if num_nodes is None:
        raise ValueError(f"The number of nodes is unknown: set {name}.num_nodes or {name}.x.")
    return int(num_nodes)


def _compressed(
    store: BaseStorage, size: tuple[int, int], is_sorted: bool, name: str
) -> tuple[Compressed, torch.dtype]:
    """Group the edges of one store by destination, and tell the dtype of its ids."""
    for key in ("adj", "adj_t"):  # PyG's order of preference
        if key in store:
            return _from_sparse(store[key], f"{name}.{key}", size), torch.int64
    edge_index = getattr(store, "edge_index", None)
    if edge_index is None:
        none = np.empty(0, np.int64)
        return compress(none, none, *size), torch.int64
    if isinstance(edge_index, EdgeIndex):
        is_sorted = is_sorted or edge_index.sort_order == "col"
        edge_index = edge_index.as_tensor()
    _check_edge_index(edge_index, f"{name}.edge_index")
    row, col = (np.ascontiguousarray(part.numpy()) for part in edge_index.detach().cpu())
    return compress(row, col, *size, is_sorted, f"{name}.edge_index"), edge_index.dtype


def _from_sparse(adj: Any, name: str, size: tuple[int, int]) -> Compressed:
    if not isinstance(adj, SparseTensor):
        raise ValueError(
            f"{name} must be a torch_sparse.SparseTensor, got {type(adj).__name__}. Store the "
            f"graph as edge_index, or convert it with torch_geometric.transforms.ToSparseTensor."
        )
    # `adj` is [source, destination], `adj_t` the transpose: both keep their values where they are.
    ptr, row, _ = adj.csr() if name.endswith("_t") else adj.csc()
    if ptr.numel() != size[1] + 1:
        raise ValueError(
            f"{name} has {ptr.numel() - 1} destination nodes, but the data has {size[1]}."
        )
    return Compressed(ptr.cpu().numpy(), row.cpu().numpy(), None)


def _check_edge_index(edge_index: Any, name: str) -> None:
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.size(0) != 2:
        shape = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index)
        raise ValueError(f"{name} must be a tensor of shape [2, num_edges], got {shape}.")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} must be int64 or int32, got {edge_index.dtype}.")


def _fuse(
    relations: Sequence[Compressed],
    src_type: Sequence[int],
    dst_type: Sequence[int],
    num_nodes: Sequence[int],
) -> Csc:
    """Put all relations into one CSC; a single one is used as it is."""
    sizes = [len(relation.indices) for relation in relations]
    edge_base = np.cumsum([0, *sizes], dtype=np.int64)
    indptr_base = np.cumsum([0, *(num_nodes[t] + 1 for t in dst_type)], dtype=np.int64)[:-1]
    perm: Ints | None = None
    if len(relations) == 1:
        indptr, indices, perm = relations[0]
    else:
        indptr = _concatenate(
            [
                r.indptr.astype(np.int64) + base
                for r, base in zip(relations, edge_base, strict=False)
            ],
            narrow(int(edge_base[-1]) + 1),
        )
        indices = _concatenate([r.indices for r in relations], narrow(max(num_nodes, default=0)))
        if any(r.perm is not None for r in relations):
            perm = _concatenate(
                [np.arange(len(r.indices)) if r.perm is None else r.perm for r in relations],
                narrow(max(sizes) + 1),
            )
    return Csc(
        indptr=indptr,
        indices=indices,
        perm=perm,
        src_type=np.array(src_type, np.int64),
        dst_type=np.array(dst_type, np.int64),
        indptr_base=indptr_base,
        edge_base=edge_base,
        num_nodes=np.array(num_nodes, np.int64),
    )


def _concatenate(arrays: Sequence[Ints], dtype: type[np.signedinteger[Any]]) -> Ints:
    return np.concatenate([np.empty(0, dtype), *arrays], dtype=dtype, casting="unsafe")
