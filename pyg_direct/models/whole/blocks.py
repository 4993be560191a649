"""Rows of tables that are computed block by block."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor, rows_of
from ...core.types import Table
from ...ops.backend import Backend
from ..lazy.calls import Operation
from ..lazy.lists import Order
from ..lazy.values import Value


class RowSelection:
    """Some rows of a table: from `first` to before `last`, or those that `index` lists."""

    def __init__(
        self, backend: Backend, first: int, last: int, index: Tensor | None = None
    ) -> None:
        self.backend, self.first, self.last, self.index = backend, first, last, index
        self.count = last - first if index is None else index.numel()
        self._known: dict[Value, Any] = {}
        self._others: dict[Hashable, tuple[Any, RowSelection]] = {}

    def read(self, value: Value) -> Any:
        """Return these rows of a value, not to be written to."""
        if value not in self._known:
            table = value.table
            self._known[value] = value.compute(self) if table is None else self._of(value, table)
        return self._known[value]

    def _of(self, value: Value, table: Tensor) -> Tensor:
        found = self.of(table, value.dim)
        return found if found.dtype == value.dtype else found.to(value.dtype)

    def of(self, table: Tensor, dim: int) -> Tensor:
        """Return these rows of a tensor, where the model computes."""
        device = self.backend.device
        if isinstance(table, RowTensor):
            index = slice(self.first, self.last) if self.index is None else self.index
            return rows_of(table, index).to(device)
        if self.index is None:
            return table.narrow(dim, self.first, self.count).to(device)
        if dim == 0 and table.dim() > 1 and table.is_contiguous():
            readable = self.backend.memory.readable(table)
            if readable is not None:
                return self.backend.gather([Table(readable)], self.index, len(table))[0]
        return table.index_select(dim, self.index.to(table.device)).to(device)

    def through(self, index: Tensor | tuple[int, int]) -> RowSelection:
        """Return the rows of another table that a list, or (start, step), names for these."""
        key = index if isinstance(index, tuple) else id(index)
        if key not in self._others:
            self._others[key] = index, self._through(index)
        return self._others[key][1]

    def _through(self, index: Tensor | tuple[int, int]) -> RowSelection:
        if isinstance(index, Tensor):
            return RowSelection(self.backend, 0, 0, self.of(index, 0).long().contiguous())
        start, step = index
        if self.index is None and step == 1:
            return RowSelection(self.backend, self.first + start, self.last + start)
        own = self.index
        if own is None:
            own = torch.arange(self.first, self.last, device=self.backend.device)
        return RowSelection(self.backend, 0, 0, own * step + start)

    def messages(self, order: Order, first: int, last: int) -> RowSelection:
        """Return the messages at some places of an order; the latest are kept for other sums."""
        key = order, first, last
        if key not in self._others:
            position = order.position[first:last].to(self.backend.device).long()
            rows = RowSelection(self.backend, 0, 0, position)
            self._others = {k: v for k, v in self._others.items() if not isinstance(k, tuple)}
            self._others[key] = None, rows
        return self._others[key][1]


class BlockTake(Value):
    """Rows of a value, by a list (then all of them are computed before), or by (start, step)."""

    __slots__ = ("index",)

    def __init__(
        self, source: Value, dim: int, index: Tensor | tuple[int, int], num_rows: int
    ) -> None:
        shape = source.shape
        shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.index: Any = index
        self.reads(source)

    @property
    def by_run(self) -> bool:
        """Whether it takes rows by (start, step)."""
        return isinstance(self.index, tuple)

    def compute(self, rows: Any) -> Any:
        """Return the rows that are named for some rows."""
        return self.inputs[0].at(rows.through(self.index))

    def copy_held(self, storage: int) -> None:
        """See `Value`."""
        self.index = self.index.clone()

    def release(self) -> None:
        """Let go of the list."""
        self.index = None


def row_bytes(value: Value) -> int:
    """Return the bytes of a row; 0 for several results, each of which is a value of its own."""
    if has_several(value):
        return 0
    size = torch.Size(value.shape).numel()
    return size // max(1, value.num_rows) * value.dtype.itemsize


def has_several(value: Value) -> bool:
    """Whether a value is several results of one operation."""
    return isinstance(value, Operation) and value.plan.container is not None
