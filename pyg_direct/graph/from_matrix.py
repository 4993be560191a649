"""Edges as a sparse matrix: `adj`, which is [source, destination], or its transpose `adj_t`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.private_torch import coo_parts
from ..core.pyg import SparseTensor
from .coo_to_csc import Compressed, compress, pad_and_check

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
    compressed = _compressed(adj, by_row)
    if compressed is not None:
        return pad_and_check(Compressed(*compressed, None), size, name)
    first, second = _entries(adj, name)
    row, col = (second, first) if by_row else (first, second)
    return compress(row, col, *size, False, (f"{name} entry {{}}",) * 2)


def _compressed(adj: Any, by_row: bool) -> tuple[Any, Any] | None:
    """Return (pointers, indices) if the matrix is stored so, in this direction."""
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
