"""Rows of the user's attributes, by id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.lazy_tensor import (
    KEPT_ROWS,
    LazyTensor,
    OrderedTensor,
    PartedTensor,
    RowTensor,
    rows_of,
)
from ..core.pyg import BaseStorage, index_select
from ..core.quantized import QuantizedTensor
from ..core.types import Table, Traffic, maker
from ..ops import clock
from ..ops.backend import Backend
from ..ops.ids import IN_PLACE, Ids
from .roles import Attribute, converted, dtype_in_batch
from .sampled import NAMES as ID_FIELDS
from .sparse import csr_rows

HOST = torch.device("cpu")
PLAIN_CLASSES = (Tensor, torch.nn.Parameter)
new_table = maker(Table)


class Gatherer:
    """Gathers the rows of one batch.

    Args:
        backend: of the batch; gathers what it can.
        ids: brings attributes of the user's own that are ids to where the batch has its ids.
        feature_dtype: of attributes that are stored narrow, see `roles.is_narrow`; None for
            float32 from a `QuantizedTensor`, and all others as they are.
        found: as of `Traffic`; None for one of its own.

    Attributes:
        start: the instant when it was made; see `ops/clock.py`.
        gathers: the instants when each gather of the backend began and ended.
        traffic: what they asked of the link to host memory; None where there is none.
        stores: those of the batch by type, if `assemble` made it of a graph in memory.
    """

    def __init__(
        self,
        backend: Backend,
        ids: Ids = IN_PLACE,
        feature_dtype: torch.dtype | None = None,
        found: dict[tuple[float, float], Tensor] | None = None,
    ) -> None:
        self.backend, self.memory, self.ids = backend, backend.memory, ids
        self.feature_dtype = feature_dtype
        self.traffic = Traffic(found) if backend.reads_over_link else None
        self.gathers: list[tuple[float, float]] = []
        self.stores: dict[Any, BaseStorage] = {}
        self.start = clock.instant()

    def rows(self, value: Any, index: Tensor, dim: int = 0, end: int | None = None) -> Any:
        """Return the entries of one attribute that has no name; see `named_rows`."""
        return self.named_rows({"": value}, [Attribute("", dim)], index, end)[0]

    def named_rows(
        self,
        given: Mapping[str, Any],
        attributes: Sequence[Attribute],
        index: Tensor,
        end: int | None = None,
    ) -> list[Any]:
        """Return the entries `index` of attributes, each along its dimension, as PyG does.

        Rows that are kept with the ids (`keep_rows`) are handed out. Dense rows on the backend's
        device, or where it can read them, go through its kernels, all in one call; those of a
        `QuantizedTensor` come as float32. Rows of CSR matrices are selected here. All else is left
        to PyG: other layouts and dimensions, NumPy arrays and memory maps, `TensorFrame`, tensors
        elsewhere, and tensors that ask for a gradient (the backend's copy has no backward).

        Args:
            given: the values of the attributes, by name.
            attributes: their names and dimensions, and what was found of their values when rows of
                the same objects were last gathered, for the same `feature_dtype`.
            index: int64 [n], ids.
            end: what all ids are known to be below; None if that has to be checked.

        Raises:
            IndexError: an id for which an attribute has no entry.
            ValueError: an attribute PyG cannot select from, such as a list.
            RuntimeError: a tensor whose storage was made smaller than its shape.
        """
        tables, others, ordered = [], [], []
        found: dict[int, Any] = {}
        kept: dict[str, Tensor] = getattr(index, KEPT_ROWS, {})
        for i, attribute in enumerate(attributes):
            value = given[attribute.name]
            if attribute.name in kept:
                rows = converted(kept[attribute.name], self.feature_dtype)
                found[i] = self.memory.to_batch(rows, self.backend.device)
                continue
            if isinstance(value, OrderedTensor):
                ordered.append(i)
                continue
            if attribute.checked is not None and attribute.checked == facts_of(value):
                rows = self.memory.readable(value)
                table = None if rows is None else new_table((rows, None, None))
            else:
                table = self._table_of(value, attribute)
            if table is None:
                others.append(i)
            else:
                tables.append(table)
        selected: list[Any] = []
        if tables:
            start = clock.instant()
            selected = self.backend.gather(tables, index, end, self.traffic)
            self.gathers.append((start, clock.instant()))
        for i in others:
            check_rows(attributes[i].name, given[attributes[i].name])
            found[i] = self._select(given[attributes[i].name], index, attributes[i].dim)
        if ordered:
            roles = [attributes[i] for i in ordered]
            found.update(zip(ordered, self._ordered_rows(given, roles, index, end), strict=True))
        for i in sorted(found):
            selected.insert(i, found[i])
        for i, attribute in enumerate(attributes):
            if attribute.name in ID_FIELDS and isinstance(selected[i], Tensor):
                selected[i] = self.ids.of(selected[i])
        return selected

    def _ordered_rows(
        self,
        given: Mapping[str, OrderedTensor],
        attributes: Sequence[Attribute],
        index: Tensor,
        end: int | None,
    ) -> list[Any]:
        """Return the entries `index` of attributes that are stored in another order, as above.

        The positions are looked up once for all attributes that share them.
        """
        found: dict[str, Any] = {}
        for positions in {id(v := given[a.name].positions): v for a in attributes}.values():
            roles = [a for a in attributes if given[a.name].positions is positions]
            stored = {a.name: given[a.name].stored for a in roles}
            # Nothing is known of the positions in a file that may be damaged: they are checked.
            rows = self.named_rows(stored, roles, self.rows(positions, index, end=end))
            found.update(zip(stored, rows, strict=True))
        return [found[a.name] for a in attributes]

    def _table_of(self, value: Any, attribute: Attribute) -> Table | None:
        """Return what the backend gathers the rows of an attribute from; None if it cannot."""
        if not isinstance(value, Tensor) or isinstance(value, PartedTensor):
            return None
        parts = tables_in(value)
        for part in parts or [value]:
            _check_storage(part)
        if attribute.dim != 0 or not parts:
            return None
        found = [self.memory.readable(part) for part in parts]
        readable = [part for part in found if part is not None]
        if len(readable) < len(parts):
            return None
        rows, dtype = readable[0], dtype_in_batch(value, self.feature_dtype)
        if rows.dtype != dtype:
            return Table(rows, dtype, *readable[1:])
        if rows is value and not (value.is_complex() or value.requires_grad):
            attribute.checked = facts_of(value)
        return Table(rows)

    def _select(self, value: Any, index: Tensor, dim: int) -> Any:
        """Return the entries of an attribute that `Backend.gather` cannot read."""
        device = getattr(value, "device", HOST)  # a TensorFrame has one
        index, rows = index.to(device), None
        if isinstance(value, PartedTensor):
            rows = value.rows_at(index)
        elif isinstance(value, Tensor) and dim == 0:
            wanted = dtype_in_batch(value, self.feature_dtype)
            if isinstance(value, RowTensor):
                rows = rows_of(value, index).to(wanted)
            elif value.layout == torch.sparse_csr:
                rows = csr_rows(value, index)
        if rows is None:
            rows = index_select(value, index, dim=dim)
        return self.memory.to_batch(converted(rows, self.feature_dtype), device)


def check_rows(name: str, value: Any) -> None:
    """Raise a ValueError for an attribute that has entries, but none of which a tensor is made."""
    texts = isinstance(value, np.ndarray) and value.dtype.kind not in "biufc"
    if texts or isinstance(value, (list, tuple)):
        kind = f"an array of {value.dtype}" if texts else f"a {type(value).__name__}"
        raise ValueError(
            f"data.{name} is {kind} with an entry for each node or edge, which batches cannot "
            f"hold. Keep it outside of the data, and index it by batch.n_id or batch.e_id."
        )


def facts_of(value: Tensor) -> tuple[Any, ...]:
    """Return all that may change, in the same object, of what makes a real dense tensor plain.

    Its storage is made smaller only by a move to another address.
    """
    return (
        value.data_ptr(), value.shape, value.dtype, value.is_contiguous(), value.is_neg(),
        value.requires_grad,
    )  # fmt: skip


def tables_in(value: Any) -> list[Tensor]:
    """Return the tensors of an attribute whose rows a backend gathers; none if PyG selects them."""
    if isinstance(value, OrderedTensor):
        return [value.positions, *tables_in(value.stored)]
    if isinstance(value, QuantizedTensor):
        return [part for part in (value.stored, value.scale) if part is not None]
    if isinstance(value, LazyTensor) and hasattr(value, "host"):  # a unified one
        return [value.host]
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
    """Raise a RuntimeError unless a dense tensor's elements are within its storage.

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
