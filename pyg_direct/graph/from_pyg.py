"""PyG data to CSC: the edges of every relation, grouped by destination."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType, NodeType

from ..core.arguments import check_dense
from ..core.lazy_tensor import LazyTensor
from ..core.private_torch import coo_parts
from ..core.pyg import BaseStorage, SparseTensor, store_of
from ..core.types import EDGE_TIME, NO_TIME, Csc, TimeTable
from .attributes import TimeAttributes, check_length, edge_weights
from .compressed import compressed_graph
from .coo_to_csc import (
    Compressed,
    Ints,
    compress,
    narrow,
    out_of_range,
    pad_and_check,
    sort_by_time,
)
from .from_stores import Relation, remote_parts
from .weights import with_weights

NO_EDGES = Compressed(np.zeros(1, np.int64), np.empty(0, np.int64), None)


@dataclass(frozen=True)
class Graph:
    """A graph as the sampler sees it. A homogeneous one has the one node and edge type None.

    Its arrays are copies, or maps of files that nobody else has: the user's tensors may be changed,
    moved or freed once it is built.
    """

    csc: Csc
    node_types: Sequence[NodeType | None]
    edge_types: Sequence[EdgeType | None]
    id_dtype: torch.dtype  # dtype of the user's `edge_index`: int64 or int32
    node_times: Mapping[NodeType | None, Ints] | None = None
    """int64 [num_nodes] of the node types that have times; None without `time_attr`."""


def graph_of(
    data: Any,
    is_sorted: bool = False,
    time_attr: str | None = None,
    weight_attr: str | None = None,
    backward: bool = False,
    checks_ids: bool = False,
) -> Graph:
    """Convert PyG data for sampling.

    Args:
        data: `Data` or `HeteroData`, each relation with `edge_index` (a tensor or an `EdgeIndex`),
            `adj_t` or `adj` (see `from_matrix`); or a (`FeatureStore`, `GraphStore`).
        is_sorted: the user says that `edge_index` is sorted by column and, with `time_attr`, by
            time within each column. Sorted edges are recognised without it, too; with it, unsorted
            ones are an error.
        time_attr: integer attribute of nodes or of edges that holds their times.
        weight_attr: attribute of edges that holds their weights.
        backward: group the edges by source instead, to follow them forward: in the CSC, the
            sources of the data are the destinations. "Column" above then means row.
        checks_ids: the caller takes a CSC that is not `verified`, as of a graph that was opened.

    Raises:
        ValueError: ids out of range, a wrong shape or dtype, unsorted edges with `is_sorted`, or a
            relation without edges of any of these forms.
    """
    saved = None if backward else compressed_graph(data, time_attr, weight_attr)
    if saved is not None and saved.has_order_for(time_attr):
        csc = saved.with_attributes(time_attr, weight_attr, checks_ids)
        node_times = None if time_attr is None else saved.node_times()
        return Graph(csc, saved.node_types, saved.edge_types, saved.id_dtype, node_times)
    if isinstance(data, Data):
        node_types: list[NodeType | None] = [None]
        edges: list[Relation] = [Relation(None, _edges_of(data), 0, 0)]
        num_nodes = [_num_nodes(data, "data")]
    elif isinstance(data, HeteroData):
        node_types, edges, num_nodes = _hetero_parts(data)
    else:
        node_types, edges, num_nodes = remote_parts(data[0], data[1], backward)
    if backward:
        edges = [edge._replace(src=edge.dst, dst=edge.src) for edge in edges]
    times = None if time_attr is None else TimeAttributes(data, time_attr)
    weights = {} if weight_attr is None else edge_weights(data, weight_attr)
    if times is not None:
        for node_type, count in zip(node_types, num_nodes, strict=True):
            check_length("time_attr", time_attr, times.node.get(node_type), count, "nodes")
    relations, dtypes = [], set()
    for key, store, src, dst in edges:
        name = "data" if key is None else f"data[{key}]"
        size = (num_nodes[src], num_nodes[dst])
        if isinstance(store, Compressed):
            compressed, dtype = pad_and_check(store, size, name), torch.int64
        else:
            compressed, dtype = _compressed(store, size, is_sorted, name, backward)
        check_length("weight_attr", weight_attr, weights.get(key), len(compressed.indices), "edges")
        if times is not None:
            by_node, by_edge = times.node.get(node_types[src]), times.edge.get(key)
            check_length("time_attr", time_attr, by_edge, len(compressed.indices), "edges")
            if by_node is not None or by_edge is not None:
                compressed = sort_by_time(compressed, by_node, by_edge, is_sorted, name)
        relations.append(compressed)
        dtypes.add(dtype)
    csc = _fuse(relations, [e.src for e in edges], [e.dst for e in edges], num_nodes)
    edge_types = [e.edge_type for e in edges]
    if times is not None:
        csc = _with_times(csc, times, node_types, edge_types)
    if weights:
        csc = _with_weights(csc, weights, edge_types)
    id_dtype = torch.int32 if dtypes == {torch.int32} else torch.int64
    return Graph(csc, node_types, edge_types, id_dtype, None if times is None else times.node)


def _edges_of(data: Data) -> Any:
    """Return the edges of a homogeneous graph; without an `edge_index` it has none, as in PyG.

    Where there are attributes of edges, the edges themselves have been forgotten.
    """
    given = any(key in data for key in ("edge_index", "adj", "adj_t"))
    return store_of(data, None) if given or data.num_edges > 0 else NO_EDGES


def _hetero_parts(
    data: HeteroData,
) -> tuple[list[NodeType | None], list[Relation], list[int]]:
    """Return the node types, the relations and the numbers of nodes."""
    node_types, edge_types = data.metadata()
    edges = []
    for key in edge_types:
        for end in (key[0], key[-1]):
            if end not in node_types:
                raise ValueError(
                    f"Edge type {key} refers to the node type {end!r}, which the data does "
                    f"not have: set data[{end!r}].x or data[{end!r}].num_nodes."
                )
        ends = node_types.index(key[0]), node_types.index(key[-1])
        edges.append(Relation(key, data[key], *ends))
    num_nodes = [_num_nodes(data[key], f"data[{key!r}]") for key in node_types]
    return list(node_types), edges, num_nodes


def _with_times(
    csc: Csc,
    times: TimeAttributes,
    node_types: Sequence[NodeType | None],
    edge_types: Sequence[EdgeType | None],
) -> Csc:
    """Add the times: those of the nodes as they are, those of edges in the order of the CSC."""
    base = np.full(csc.num_relations, NO_TIME, np.int64)
    if times.node:
        size = int(csc.node_base[-1])
        for r, src in enumerate(csc.src_type):
            if node_types[src] in times.node:
                base[r] = csc.node_base[src]
        time = np.zeros(size, np.int64)
        for t, key in enumerate(node_types):
            if key in times.node:
                time[csc.node_base[t] : csc.node_base[t + 1]] = times.node[key]
    else:
        base[[key in times.edge for key in edge_types]] = EDGE_TIME
        time = _by_position(csc, times.edge, edge_types, np.int64)
    return replace(csc, times=TimeTable(time, base))


def _with_weights(csc: Csc, weights: dict[Any, Any], edge_types: Sequence[EdgeType | None]) -> Csc:
    """Add the weights, in the order of the CSC."""
    weight = _by_position(csc, weights, edge_types, np.float64)
    relations = np.array([key in weights for key in edge_types], np.bool_)
    positive = all(bool((value > 0).all()) for value in weights.values())
    return with_weights(csc, weight, relations, positive)


def _by_position(
    csc: Csc, values: Mapping[Any, Any], edge_types: Sequence[EdgeType | None], dtype: Any
) -> Any:
    """Return a new array [E] with the values of edges in the order of the CSC; 0 without one."""
    out = np.zeros(len(csc.indices), dtype)
    for r, key in enumerate(edge_types):
        if key in values:
            positions = slice(*csc.edge_base[r : r + 2])
            if csc.perm is None:
                out[positions] = values[key]
            else:  # "clip" writes to `out` without a buffer; no id is out of range
                np.take(values[key], csc.perm[positions], out=out[positions], mode="clip")
    return out


def _num_nodes(store: Any, name: str) -> int:
    num_nodes = store.num_nodes
    if num_nodes is None:
        raise ValueError(f"The number of nodes is unknown: set {name}.num_nodes or {name}.x.")
    return int(num_nodes)


def _compressed(
    store: BaseStorage, size: tuple[int, int], is_sorted: bool, name: str, backward: bool
) -> tuple[Compressed, torch.dtype]:
    """Group the edges of one store by destination; return the dtype of its ids, too."""
    for key in ("adj", "adj_t"):  # PyG's order of preference
        if key in store:
            return from_matrix(store[key], f"{name}.{key}", size, backward), torch.int64
    edge_index = getattr(store, "edge_index", None)
    if edge_index is None:
        raise ValueError(
            f"{name} has no edges: set {name}.edge_index (int64 [2, num_edges], [2, 0] for none), "
            f"{name}.adj_t or {name}.adj."
        )
    if isinstance(edge_index, EdgeIndex):
        is_sorted = is_sorted or edge_index.sort_order == ("row" if backward else "col")
        edge_index = edge_index.as_tensor()
    check_edge_index(edge_index, f"{name}.edge_index")
    ends = (f"{name}.edge_index[0, {{}}]", f"{name}.edge_index[1, {{}}]")
    row, col = (np.ascontiguousarray(part.numpy()) for part in edge_index.detach().cpu())
    if backward:
        row, col, ends = col, row, ends[::-1]
    return compress(row, col, *size, is_sorted, ends), edge_index.dtype


def check_edge_index(edge_index: Any, name: str) -> None:
    """Raise a ValueError unless `edge_index`, `name` in errors, can hold the ends of edges."""
    if isinstance(edge_index, Tensor) and edge_index.layout != torch.strided:
        raise ValueError(
            f"{name} must hold the ends of edges, [2, num_edges], got a matrix of the layout "
            f"{edge_index.layout}. Set data.adj_t to its transpose, and leave edge_index out."
        )
    check_dense(name, edge_index)
    if not isinstance(edge_index, Tensor) or edge_index.dim() != 2 or edge_index.size(0) != 2:
        shape = tuple(edge_index.shape) if isinstance(edge_index, Tensor) else type(edge_index)
        raise ValueError(f"{name} must be a tensor of shape [2, num_edges], got {shape}.")
    if edge_index.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"{name} must be int64 or int32, got {edge_index.dtype}.")


def check_ends(edge_index: Any, size: tuple[int | None, int | None], name: str) -> None:
    """Raise a ValueError unless edges are two rows of ids below the numbers of nodes.

    Args:
        edge_index: as the user gives it; that of a saved graph is not looked at.
        size: the numbers of sources and of destinations; None if one is not known.
        name: of the edges.
    """
    if isinstance(edge_index, LazyTensor):
        return
    check_edge_index(edge_index, name)
    edges = edge_index.as_tensor() if isinstance(edge_index, EdgeIndex) else edge_index.detach()
    for side, (ids, end) in enumerate(zip(edges, size, strict=True)):
        if end is not None and ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= end):
            at = int(((ids < 0) | (ids >= end)).nonzero()[0])
            raise ValueError(out_of_range(f"{name}[{side}, {at}]", int(ids[at]), end))


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


LAYOUTS = (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo)


def from_matrix(adj: Any, name: str, size: tuple[int, int], backward: bool) -> Compressed:
    """Group the entries of a matrix by destination. Edge ids are positions among its values.

    Args:
        adj: a `torch_sparse.SparseTensor`, or a tensor of torch in one of `LAYOUTS`.
        name: how errors call it; ends in '_t' if the matrix is [destination, source].
        size: numbers of sources and destinations, as `backward` has them.
        backward: group by source.

    Raises:
        ValueError: not such a matrix, or ids out of range.
    """
    # Whether the rows of the matrix are what the edges are grouped by.
    by_row = name.endswith("_t") != backward
    compressed = _compressed_matrix(adj, by_row)
    if compressed is not None:
        return pad_and_check(Compressed(*compressed, None), size, name)
    first, second = _entries(adj, name)
    row, col = (second, first) if by_row else (first, second)
    return compress(row, col, *size, False, (f"{name} entry {{}}",) * 2)


def _compressed_matrix(adj: Any, by_row: bool) -> tuple[Any, Any] | None:
    """Return (pointers, indices) if the matrix is compressed in this direction."""
    if isinstance(adj, SparseTensor):
        if not by_row:
            return None
        pointer, index, _ = adj.csr()
    elif isinstance(adj, Tensor) and adj.layout == torch.sparse_csr and by_row:
        pointer, index = adj.crow_indices(), adj.col_indices()
    elif isinstance(adj, Tensor) and adj.layout == torch.sparse_csc and not by_row:
        pointer, index = adj.ccol_indices(), adj.row_indices()
    else:
        return None
    return _array(pointer), _array(index)


def _entries(adj: Any, name: str) -> tuple[Any, Any]:
    """Return the row and the column of each entry, in the order of the values."""
    if isinstance(adj, SparseTensor):
        row, col, _ = adj.coo()
        return _array(row), _array(col)
    if not isinstance(adj, Tensor) or adj.layout not in LAYOUTS or adj.dim() - adj.dense_dim() != 2:
        kind = f"{adj.layout} tensor" if isinstance(adj, Tensor) else type(adj).__name__
        raise ValueError(
            f"{name} must be a sparse matrix (torch.sparse_csr, torch.sparse_csc, torch.sparse_coo "
            f"or torch_sparse.SparseTensor), got a {kind}. Store the edges as edge_index, int64 "
            f"[2, num_edges], or convert a dense matrix with .to_sparse_csr()."
        )
    if adj.layout == torch.sparse_coo:
        first, second = coo_parts(adj)[0]
        return _array(first), _array(second)
    by_row = adj.layout == torch.sparse_csr
    pointer = _array(adj.crow_indices() if by_row else adj.ccol_indices())
    major = np.repeat(np.arange(len(pointer) - 1), np.diff(pointer))
    minor = _array(adj.col_indices() if by_row else adj.row_indices())
    return (major, minor) if by_row else (minor, major)


def _array(tensor: Tensor) -> Any:
    return np.ascontiguousarray(tensor.detach().cpu().numpy())
