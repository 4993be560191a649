"""Lists of rows in a training step: where messages come from, and where they go to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.private_torch import pointers_of, writes_to
from ..ops.products import Adjacency, on_host, positions_by_row

COPIED_ENTRIES = 1 << 14  # a list with fewer is copied, one with more must not be written to


class MessageOrder:
    """The messages by the row that they go to.

    Args:
        index: int64 [E], the row of each message, in [0, num_rows).
        num_rows: number of rows.

    Attributes:
        position: int64 [E], the messages in this order; None if they are in it already.
        indptr: int64 [num_rows + 1], where those to each row begin.
        ends: the same numbers, for one at a time.
    """

    def __init__(self, index: Tensor, num_rows: int) -> None:
        self.index, self.num_rows = index, num_rows
        self.position: Tensor | None = None
        if index.numel() == 0 or bool((index[1:] >= index[:-1]).all()):
            self.indptr = pointers_of(index, num_rows)
        elif on_host(index):
            self.indptr, position = positions_by_row(index, num_rows)
            self.position = position.long()
        else:
            ids, self.position = index.sort(stable=True)
            self.indptr = pointers_of(ids, num_rows)
        self.ends = _Ends(self.indptr)


class _Ends(dict[int, int]):
    """Numbers of a tensor, each fetched once."""

    def __init__(self, numbers: Tensor) -> None:
        super().__init__()
        self._numbers = numbers

    def __missing__(self, place: int) -> int:
        self[place] = found = int(self._numbers[place])
        return found


def _writes_to(index: Tensor) -> int:
    return 0 if index.is_inference() else writes_to(index)


class Lists:
    """Lists of rows, of which equal ones are one, with their orders and matrices."""

    def __init__(self) -> None:
        self._at: dict[Any, tuple[Tensor, Tensor]] = {}  # by where a list lies
        self._known: dict[int, list[Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._bounds: dict[int, tuple[int, int]] = {}
        self._orders: dict[tuple[int, int], MessageOrder | None] = {}
        self._parts: dict[Any, Any] = {}
        self.late: list[Any] = []

    def one(self, index: Tensor) -> Tensor:
        """Return the known list that is equal to a list."""
        if index.is_inference():  # torch counts no writes to it
            return self._equal(index)
        place = index.data_ptr(), index.shape[0], index.stride(0), writes_to(index), index.dtype
        found = self._at.get(place)
        if found is None:
            found = self._at[place] = index, self._equal(index)  # both live on, at these addresses
        return found[1]

    def _equal(self, index: Tensor) -> Tensor:
        known = self._known.setdefault(index.numel(), [])
        for other in known:
            if torch.equal(other, index):
                return other
        made = index.long().contiguous()
        if made.data_ptr() == index.data_ptr():
            small = made.numel() < COPIED_ENTRIES or made.is_inference()
            made = made.clone() if small else made
        known.append(made)
        self._versions[id(made)] = _writes_to(made)
        return made

    def bounds(self, index: Tensor) -> tuple[int, int]:
        """Return the smallest and largest entry of a list of `one` that is not empty."""
        if id(index) not in self._bounds:
            low, high = torch.aminmax(index)
            self._bounds[id(index)] = int(low), int(high)
        return self._bounds[id(index)]

    def order(self, index: Tensor, num_rows: int) -> MessageOrder | None:
        """Return the order of a list of `one`; None if it names other rows."""
        key = id(index), num_rows
        if key not in self._orders:
            low, high = self.bounds(index) if index.numel() else (0, -1)
            fits = low >= 0 and high < num_rows
            self._orders[key] = MessageOrder(index, num_rows) if fits else None
        return self._orders[key]

    def part(self, index: Tensor, rows: Any) -> tuple[Tensor, int]:
        """Return the entries of some rows of a list, and how many rows they need."""
        key = id(index), rows
        if key not in self._parts:
            if _writes_to(index) != self._versions[id(index)]:
                raise RuntimeError("A list of rows was written to after messages were made by it.")
            taken = index[: rows.count]
            if rows.order is not None:
                taken = index.index_select(0, rows.order.position[: rows.count])
            if rows.count == index.numel():
                bound = self.bounds(index)[1] + 1 if rows.count else 0
            else:
                bound = int(taken.max()) + 1 if rows.count else 0
            self._parts[key] = taken, bound
        found: tuple[Tensor, int] = self._parts[key]
        return found

    def matrix(self, order: MessageOrder, index: Tensor, num_rows: int, rows: Any) -> Adjacency:
        """Return the messages to the first rows as a matrix.

        Args:
            order: of the messages.
            index: where they come from, a list of `one`.
            num_rows: that they go to.
            rows: which messages these are.
        """
        key = order, id(index), num_rows
        if key not in self._parts:
            sources, bound = self.part(index, rows)
            self._parts[key] = Adjacency(order.indptr[: num_rows + 1], sources, bound)
        found: Adjacency = self._parts[key]
        return found
