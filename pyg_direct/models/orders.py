"""Messages by the row that they go to."""

from __future__ import annotations

import torch
from torch import Tensor

from ..ops.products import positions_by_row

KEPT = 4  # orders: as many relations are usual in one layer


class Order:
    """The positions of a list of row numbers, by row; those of a row keep their order.

    Args:
        index: int64 [E] or int32, each in [0, num_rows); copied.
        num_rows: number of rows.

    Attributes:
        indptr: int64 [num_rows + 1], where the positions of each row begin.
        position: [E], int32 if that suffices.
    """

    def __init__(self, index: Tensor, num_rows: int) -> None:
        self.index = index
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
        values = narrow(values)
        for known, found in self._sorted:
            if torch.equal(known, values):
                return found
        self._sorted = [(values, values.index_select(0, self.position))]
        return self._sorted[0][1]


class Orders:
    """The orders of the latest lists; an equal list gets the same one."""

    def __init__(self) -> None:
        self.kept: list[Order] = []

    def of(self, index: Tensor, num_rows: int) -> Order:
        """Return the order of a list.

        Raises:
            IndexError: an entry that is not a row.
        """
        known = narrow(index.cpu())
        if known.numel() > 0 and (int(known.min()) < 0 or int(known.max()) >= num_rows):
            raise IndexError(
                f"An index names row {int(known.max())}, but there are {num_rows} rows to add to."
            )
        for order in self.kept:
            if order.indptr.numel() == num_rows + 1 and torch.equal(order.index, known):
                return order
        self.kept.insert(0, Order(known, num_rows))
        del self.kept[KEPT:]
        return self.kept[0]


def narrow(values: Tensor) -> Tensor:
    """Return a copy of integers, of 32 bits where these suffice."""
    limit = 1 << 31
    small = values.numel() == 0 or (int(values.max()) < limit and int(values.min()) >= -limit)
    return values.to(torch.int32 if small else torch.int64, copy=True).contiguous()
