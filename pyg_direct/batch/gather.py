"""Rows of the user's attributes, by id."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.pyg import index_select
from ..core.quantized import QuantizedTensor, rows_of
from ..ops.backend import Backend
from .narrow import converted, dtype_in_batch
from .roles import Attribute
from .sparse import csr_rows

PLAIN_CLASSES = (Tensor, torch.nn.Parameter)


def gather(
    value: Any,
    index: Tensor,
    dim: int,
    backend: Backend,
    end: int | None = None,
    feature_dtype: torch.dtype | None = None,
) -> Any:
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
        feature_dtype: of attributes that are stored narrow, see `narrow.is_narrow`; None for
            float32 from a `QuantizedTensor`, and all others as they are.

    Raises:
        IndexError: an id for which the attribute has no entry.
        ValueError: an attribute PyG cannot select from, such as a list.
        RuntimeError: a tensor whose storage was made smaller than its shape.
    """
    alone = Attribute("", dim)
    return gather_all({"": value}, [alone], index, backend, end, feature_dtype)[0]


def gather_all(
    given: Mapping[str, Any],
    attributes: Sequence[Attribute],
    index: Tensor,
    backend: Backend,
    end: int | None = None,
    feature_dtype: torch.dtype | None = None,
) -> list[Any]:
    """As `gather`, of several attributes; the backend is called once for all that it can read.

    Args:
        given: the values of the attributes, by name.
        attributes: their names and dimensions, and what was found of their values when rows of the
            same objects were last gathered, for the same `feature_dtype`.
        index: as in `gather`, like all that follows.
    """
    plain, others = [], []
    in_place = backend.in_host_memory
    for i, attribute in enumerate(attributes):
        value = given[attribute.name]
        if attribute.checked is not None and attribute.checked == (
            value.data_ptr(), value.shape, value.dtype, value.is_contiguous(), value.is_neg(),
            value.requires_grad,
        ):  # fmt: skip
            table = value if in_place else backend.memory.readable(value)
        else:
            table = _table_of(value, attribute, backend, feature_dtype)
        if table is None:
            others.append(i)
        else:
            plain.append(table)
    selected = list(backend.gather_all(plain, index, end)) if plain else []
    for i in others:
        value, dim = given[attributes[i].name], attributes[i].dim
        rows = _select(value, index, dim, backend, end, feature_dtype)
        selected.insert(i, rows)
    return selected


def _table_of(
    value: Any, attribute: Attribute, backend: Backend, feature_dtype: torch.dtype | None
) -> Tensor | None:
    """Return what the backend copies the rows of an attribute from; None if it cannot."""
    attribute.checked = None
    if not isinstance(value, Tensor):
        return None
    stored = value.stored if isinstance(value, QuantizedTensor) else value
    _check_storage(stored)
    if attribute.dim != 0 or not is_plain(stored):
        return None
    is_decoded = feature_dtype is not None or stored is not value
    if is_decoded and stored.dtype != dtype_in_batch(value, feature_dtype):
        return None
    table = backend.memory.readable(stored)
    if table is value and not (value.is_complex() or value.requires_grad):
        # All that may change, in the same object, of what makes a real dense tensor plain: its
        # storage is made smaller only by a move to another address.
        attribute.checked = (
            value.data_ptr(), value.shape, value.dtype, value.is_contiguous(), value.is_neg(),
            value.requires_grad,
        )  # fmt: skip
    return table


def _select(
    value: Any,
    index: Tensor,
    dim: int,
    backend: Backend,
    end: int | None,
    feature_dtype: torch.dtype | None,
) -> Any:
    """Return the entries of an attribute that `Backend.gather_all` cannot read."""
    if isinstance(value, Tensor):
        wanted = dtype_in_batch(value, feature_dtype)
        quantized = isinstance(value, QuantizedTensor)
        if dim == 0 and (quantized or (wanted != value.dtype and is_plain(value))):
            return _decoded(value, index, backend, end, wanted)
        device = value.device
        if value.layout == torch.sparse_csr and dim == 0:
            rows = converted(csr_rows(value, index.to(device)), feature_dtype)
            return backend.memory.to_batch(rows, device)
    else:
        device = getattr(value, "device", torch.device("cpu"))  # a TensorFrame has one
    rows = converted(index_select(value, index.to(device), dim=dim), feature_dtype)
    return backend.memory.to_batch(rows, device)


def _decoded(
    value: Tensor, index: Tensor, backend: Backend, end: int | None, dtype: torch.dtype
) -> Tensor:
    """Return the rows `index` of a narrow table; those it cannot read are decoded by torch."""
    readable = backend.memory.readable
    stored, scale = (
        (value.stored, value.scale) if isinstance(value, QuantizedTensor) else (value, None)
    )
    for part in (stored, scale):
        if part is not None:
            _check_storage(part)
    table, factors = readable(stored), None if scale is None else readable(scale)
    if table is not None and (scale is None or factors is not None):
        shape = value.shape[1:]
        flat = table.detach().view(len(table), math.prod(shape))
        return backend.gather_decoded(flat, factors, index, end, dtype).view(len(index), *shape)
    rows = rows_of(value, index.to(value.device)).to(dtype)
    return backend.memory.to_batch(rows, value.device)  # type: ignore[no-any-return]


def tables_in(value: Any) -> list[Tensor]:
    """Return the tensors of an attribute whose rows a backend gathers; none if PyG selects them."""
    if isinstance(value, QuantizedTensor):
        return [part for part in (value.stored, value.scale) if part is not None]
    return [value] if isinstance(value, Tensor) and is_plain(value) else []


def is_plain(value: Tensor) -> bool:
    """Whether the rows of a tensor are runs of bytes that no autograd graph refers to."""
    return (
        type(value) in PLAIN_CLASSES
        and value.layout is torch.strided
        and value.is_contiguous()
        and not (value.requires_grad and torch.is_grad_enabled())
        and not (value.is_conj() or value.is_neg() or value.is_quantized)
    )


def _check_storage(value: Tensor) -> None:
    """Raise a RuntimeError unless a dense tensor's elements lie in its storage.

    Neither our kernels nor those of torch look at this before they read.
    """
    if value.layout is torch.strided and (elements := value.numel()) > 0:
        if not value.is_contiguous():
            ends = zip(value.shape, value.stride(), strict=True)
            elements = 1 + sum((size - 1) * stride for size, stride in ends)
        needed = (value.storage_offset() + elements) * value.itemsize
        there = value.untyped_storage().nbytes()
        if needed > there:
            raise RuntimeError(
                f"An attribute of shape {tuple(value.shape)} needs {needed} bytes, but its storage "
                f"has {there} bytes. Was the storage resized?"
            )
