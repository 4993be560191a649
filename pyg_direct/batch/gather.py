"""Rows of the user's attributes, by id."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.loader.utils import index_select

from ..ops.backend import Backend
from .sparse import csr_rows


def gather(value: Any, index: Tensor, dim: int, backend: Backend, end: int | None = None) -> Any:
    """Return the entries `index` of an attribute along `dim`, as PyG does.

    Dense rows on the backend's device, or where it can read them, go through its kernels. Rows of
    CSR matrices are selected here. All else is left to PyG: other layouts and dimensions, NumPy
    arrays and memory maps, `TensorFrame`, tensors elsewhere, and tensors that ask for a gradient
    (the backend's copy has no backward).

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
    if isinstance(value, Tensor):
        _check_storage(value)
        if dim == 0 and is_plain(value):
            table = backend.memory.readable(value)
            if table is not None:
                return backend.gather(table, index, end)
        device = value.device
        if value.layout == torch.sparse_csr and dim == 0:
            return backend.memory.to_batch(csr_rows(value, index.to(device)), device)
    else:
        device = getattr(value, "device", torch.device("cpu"))  # a TensorFrame has one
    return backend.memory.to_batch(index_select(value, index.to(device), dim=dim), device)


def is_plain(value: Tensor) -> bool:
    """Whether the rows of a tensor are runs of bytes that no autograd graph hangs on."""
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
