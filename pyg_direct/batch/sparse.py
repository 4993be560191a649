"""Sparse adjacency matrices and sparse feature rows in a batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.private_torch import coo_parts
from ..core.pyg import SparseTensor

COMPRESSED = {torch.sparse_csr, torch.sparse_csc}
ROWS_UNREADABLE = {torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


class MatrixEntries:
    """The sampled edges of one type.

    Args:
        row: int64 [E'], local ids of the sources.
        col: int64 [E'], local ids of the destinations.
        edge: int64 [E'], positions among the values of the full matrix; None if not known.
    """

    def __init__(self, row: Tensor, col: Tensor, edge: Tensor | None) -> None:
        self.row, self.col, self.edge = row, col, edge

    def like(self, name: str, matrix: Any, sizes: tuple[int, int]) -> Any:
        """Return the edges as a matrix like the attribute `name`: same class, layout and device.

        Args:
            name: 'adj', which is [source, destination], or 'adj_t', its transpose.
            matrix: a `SparseTensor` or a sparse tensor of torch's, the full graph's.
            sizes: numbers of source and destination nodes in the batch.
        """
        first, second = (self.row, self.col) if name == "adj" else (self.col, self.row)
        shape = sizes if name == "adj" else sizes[::-1]
        if not isinstance(matrix, SparseTensor):
            return self._torch_matrix(matrix, first, second, shape)
        device, value = matrix.device(), self._selected(matrix.storage.value())
        first, second = first.to(device), second.to(device)
        order = _order(first, second, shape[1])
        return SparseTensor(
            row=first[order],
            col=second[order],
            value=None if value is None else value[order],
            sparse_sizes=shape,
            is_sorted=True,  # its own sort leaves the order of parallel edges open
            trust_data=True,
        )

    def _selected(self, values: Tensor | None) -> Tensor | None:
        if values is None or self.edge is None:
            return None
        return values[self.edge.to(values.device)]

    def _torch_matrix(
        self, matrix: Tensor, first: Tensor, second: Tensor, shape: tuple[int, int]
    ) -> Tensor:
        first, second = first.to(matrix.device), second.to(matrix.device)
        full = values_of(matrix)
        values = self._selected(full)
        if values is None:  # no positions, as in bidirectional subgraphs of typed graphs
            values = torch.ones((len(first), *full.shape[1:]), dtype=full.dtype, device=full.device)
        size = (*shape, *full.shape[1:])
        if matrix.layout not in COMPRESSED:
            indices = torch.stack([first, second])
            return torch.sparse_coo_tensor(indices, values, size, check_invariants=False)
        by_row = matrix.layout == torch.sparse_csr
        major, minor = (first, second) if by_row else (second, first)
        num_major, num_minor = shape if by_row else shape[::-1]
        order = _order(major, minor, num_minor)
        pointer = _pointer(torch.bincount(major, minlength=num_major))
        make = torch.sparse_csr_tensor if by_row else torch.sparse_csc_tensor
        return make(pointer, minor[order], values[order], size, check_invariants=False)


def values_of(matrix: Tensor) -> Tensor:
    """Return the stored values of a sparse tensor, also of one that is not coalesced."""
    return coo_parts(matrix)[1] if matrix.layout == torch.sparse_coo else matrix.values()


def stored_parts(value: Tensor) -> list[Tensor]:
    """Return the strided tensors that a tensor's elements, and their indices, are stored in."""
    if value.layout == torch.strided:
        return [value]
    if value.layout == torch.sparse_coo:
        return [*coo_parts(value)]
    if value.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [value.crow_indices(), value.col_indices(), value.values()]
    return [value.ccol_indices(), value.row_indices(), value.values()]


def stored_bytes(value: Tensor) -> int:
    """Return the bytes of a tensor's elements; of a sparse one, of its values and indices."""
    return sum(part.nbytes for part in stored_parts(value))


def csr_rows(table: Tensor, index: Tensor) -> Tensor:
    """Return ``table[index]`` of a CSR matrix, as a CSR matrix [n, ...]; torch cannot.

    Args:
        table: sparse CSR [N, ...].
        index: int64 [n], each in [0, N), on the same device.

    Example: rows [1, 1] of ``[[1, 0], [0, 2]]`` are ``[[0, 2], [0, 2]]``.
    """
    pointer, column, values = table.crow_indices(), table.col_indices(), table.values()
    start = pointer[index]
    count = pointer[index + 1] - start
    out = _pointer(count)
    size = int(out[-1])
    offset = torch.arange(size, device=index.device) - out[:-1].repeat_interleave(count)
    position = offset + start.repeat_interleave(count)
    column, values = column[position], values[position]
    shape = (len(index), *table.shape[1:])
    return torch.sparse_csr_tensor(out, column, values, shape, check_invariants=False)


def _order(major: Tensor, minor: Tensor, num_minor: int) -> Tensor:
    """Return what sorts entries by `major`, then `minor`; equal ones stay as they are."""
    place = major.to(torch.int64) * num_minor + minor  # int32 ids would overflow
    return place.argsort(stable=True)


def _pointer(count: Tensor) -> Tensor:
    """Return the prefix sums of `count` [n], from 0 on: [n + 1]."""
    return torch.cat([count.new_zeros(1), count.cumsum(0)])
