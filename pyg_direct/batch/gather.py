"""Rows of the user's attributes, by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.loader.utils import index_select

from ..ops.backend import Backend
from ..quantized import QuantizedTensor
from .sparse import csr_rows


def gather(value: Any, index: Tensor, dim: int, backend: Backend, end: int | None = None) -> Any:
    """Return the entries `index` of an attribute along `dim`, as PyG does.

    Dense rows on the backend's device, or where it can read them, go through its kernels; those of
    a `QuantizedTensor` come as float32. Rows of CSR matrices are selected here. All else is left to
    PyG: other layouts and dimensions, NumPy arrays and memory maps, `TensorFrame`, tensors
    elsewhere, and tensors that ask for a gradient (the backend's copy has no backward).

    Args:
        value: the attribute.
        index: int64 [n], ids.
        dim: along which they count.
        backend: gathers what it can.
        end: what all ids are known to be below; None if that has to be checked.

    Raises:
        IndexError: an id for which the attribute has no entry.
        ValueError: an attribute PyG cannot select from, such as a list.
        RuntimeError: a tensor whose storage was made smaller than its shape.
    """
    return gather_all([(value, dim)], index, backend, end)[0]


def gather_all(
    attributes: Sequence[tuple[Any, int]], index: Tensor, backend: Backend, end: int | None = None
) -> list[Any]:
    """As `gather`, of several attributes: (value, dim); the backend is called once for all."""
    tables = [_table_of(value, dim, backend) for value, dim in attributes]
    plain = [table for table in tables if table is not None]
    rows = iter(backend.gather_all(plain, index, end) if plain else ())
    return [
        _select(value, index, dim, backend, end) if table is None else next(rows)
        for (value, dim), table in zip(attributes, tables, strict=True)
    ]


def _table_of(value: Any, dim: int, backend: Backend) -> Tensor | None:
    """Return what the backend gathers the rows of an attribute from; None if it cannot."""
    if not isinstance(value, Tensor) or isinstance(value, QuantizedTensor):
        return None
    _check_storage(value)
    return backend.memory.readable(value) if dim == 0 and is_plain(value) else None


def _select(value: Any, index: Tensor, dim: int, backend: Backend, end: int | None) -> Any:
    """Return the entries of an attribute that `Backend.gather_all` cannot read."""
    if isinstance(value, QuantizedTensor) and dim == 0:
        return _decoded(value, index, backend, end)
    if isinstance(value, Tensor):
        device = value.device
        if value.layout == torch.sparse_csr and dim == 0:
            return backend.memory.to_batch(csr_rows(value, index.to(device)), device)
    else:
        device = getattr(value, "device", torch.device("cpu"))  # a TensorFrame has one
    return backend.memory.to_batch(index_select(value, index.to(device), dim=dim), device)


def _decoded(value: QuantizedTensor, index: Tensor, backend: Backend, end: int | None) -> Tensor:
    """Return the rows `index` of a quantized table; those it cannot read are decoded by torch."""
    readable, scale = backend.memory.readable, value.scale
    for part in (value.stored, scale):
        if part is not None:
            _check_storage(part)
    table, factors = readable(value.stored), None if scale is None else readable(scale)
    if table is not None and (scale is None or factors is not None):
        return backend.gather_decoded(table, factors, index, end)
    rows = value.decoded(index.to(value.device))
    return backend.memory.to_batch(rows, value.device)  # type: ignore[no-any-return]


def tables_in(value: Any) -> list[Tensor]:
    """Return the tensors of an attribute whose rows a backend gathers; none if PyG selects them."""
    if isinstance(value, QuantizedTensor):
        return [part for part in (value.stored, value.scale) if part is not None]
    return [value] if isinstance(value, Tensor) and is_plain(value) else []


def is_plain(value: Tensor) -> bool:
    """Whether the rows of a tensor are runs of bytes that no autograd graph refers to."""
    return (
        value.layout == torch.strided
        and value.is_contiguous()
        and not (value.requires_grad and torch.is_grad_enabled())
        and not (value.is_conj() or value.is_neg() or value.is_quantized)
        and type(value) in (Tensor, torch.nn.Parameter)
    )


def _check_storage(value: Tensor) -> None:
    """Raise a RuntimeError unless a dense tensor's elements lie in its storage.

    Neither our kernels nor those of torch look at this before they read.
    """
    if value.layout == torch.strided and value.numel() > 0:
        last = value.storage_offset() + sum(
            (size - 1) * stride for size, stride in zip(value.shape, value.stride(), strict=True)
        )
        needed, there = (last + 1) * value.element_size(), value.untyped_storage().nbytes()
        if needed > there:
            raise RuntimeError(
                f"An attribute of shape {tuple(value.shape)} needs {needed} bytes, but its storage "
                f"has {there} bytes. Was the storage resized?"
            )
