"""Messages by the row that they go to."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.private_torch import storage_of
from ..ops.products import positions_by_row

KEPT = 4  # orders: as many relations are usual in one layer


class Narrow(NamedTuple):
    """A list of integers.

    Attributes:
        values: a copy of it, int32 where that suffices.
        low, high: its smallest and its largest entry; 0 and -1 if it has none.
    """

    values: Tensor
    low: int
    high: int


class Order:
    """The positions of a list of row numbers, by row; those of a row keep their order.

    Args:
        index: int64 [E] or int32, each in [0, num_rows); not to be written to.
        num_rows: number of rows.
        narrowed: makes lists narrow.

    Attributes:
        indptr: int64 [num_rows + 1], where the positions of each row begin.
        position: [E], int32 if that suffices.
    """

    def __init__(self, index: Tensor, num_rows: int, narrowed: Callable[[Tensor], Narrow]) -> None:
        self.index, self._narrowed = index, narrowed
        self.indptr, self.position = positions_by_row(index, num_rows)
        self._sorted: list[tuple[Tensor, Tensor]] = []

    @property
    def nbytes(self) -> int:
        """Bytes that it takes."""
        held = [self.index, self.indptr, self.position, *(v for pair in self._sorted for v in pair)]
        return sum(v.nbytes for v in held)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return where the positions of rows from `first` to before `last` begin and end."""
        return int(self.indptr[first]), int(self.indptr[last])

    def targets(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the rows of the positions from `begin` to before `end`, int64, `first` being 0."""
        bounds = self.indptr[first : last + 1].clamp(begin, end)
        return torch.arange(last - first).repeat_interleave(bounds.diff())

    def sorted(self, values: Tensor) -> Tensor:
        """Return entries in this order; the latest list of integers is kept."""
        if values.is_floating_point():
            return values.index_select(0, self.position)
        values = self._narrowed(values).values
        for known, found in self._sorted:
            if known is values or torch.equal(known, values):
                return found
        self._sorted = [(values, values.index_select(0, self.position))]
        return self._sorted[0][1]


class Orders:
    """The orders of the latest lists; an equal list gets the same one."""

    def __init__(self) -> None:
        self.kept: list[Order] = []
        self._narrow: dict[Any, tuple[weakref.ref[Any], Narrow]] = {}  # by where a list lies

    def of(self, index: Tensor, num_rows: int) -> Order:
        """Return the order of a list.

        Raises:
            IndexError: an entry that is not a row.
        """
        known, low, high = self.narrowed(index)
        if low < 0 or high >= num_rows:
            raise IndexError(
                f"An index names row {high if high >= num_rows else low}, but there are {num_rows} "
                f"rows to add to."
            )
        for order in self.kept:
            same = order.index is known or torch.equal(order.index, known)
            if order.indptr.numel() == num_rows + 1 and same:
                return order
        self.kept.insert(0, Order(known, num_rows, self.narrowed))
        del self.kept[KEPT:]
        return self.kept[0]

    def narrowed(self, index: Tensor) -> Narrow:
        """Return a list with its bounds; what is known of it holds until `forget`."""
        storage = index.untyped_storage()
        if not storage.resizable():  # NumPy's memory, to which it may write unseen
            return narrow(index)
        place = storage_of(index), index.data_ptr(), index.dtype, index.shape, index.stride()
        known = self._narrow.get(place)
        if known is None or known[0]() is None:
            self._narrow = {k: v for k, v in self._narrow.items() if v[0]() is not None}
            known = self._narrow[place] = weakref.ref(storage), narrow(index)
        return known[1]

    def forget(self, storage: int) -> None:
        """Forget the lists in a storage (`storage_of`), which is about to change."""
        self._narrow = {k: v for k, v in self._narrow.items() if k[0] != storage}


def narrow(index: Tensor) -> Narrow:
    """Return a copy of a list of integers, of 32 bits where these suffice."""
    index = index.detach().cpu()
    low, high = (int(v) for v in torch.aminmax(index)) if index.numel() else (0, -1)
    small = low >= -(1 << 31) and high < 1 << 31
    values = index.to(torch.int32 if small else torch.int64, copy=True).contiguous()
    return Narrow(values, low, high)
