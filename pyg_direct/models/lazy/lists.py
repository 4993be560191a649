"""Lists of rows: where messages come from, where they go to, and messages sorted by target."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.private_torch import pointers_of, storage_of, writes_to
from ...ops.products import Adjacency, on_host, positions_by_row

Hold = Callable[[Tensor], None]
COPIED_ENTRIES = 1 << 14  # a list with fewer is copied, one with more must not be written to


class NarrowIndex(NamedTuple):
    """A list of integers.

    Attributes:
        values: a copy of it, int32 where that suffices.
        low, high: its smallest and its largest entry; 0 and -1 if it has none.
    """

    values: Tensor
    low: int
    high: int


class MessageOrder:
    """The messages by the row that they go to; those of a row keep their order.

    Args:
        index: int64 [E], the row of each message, in [0, num_rows); of `inference` also int32.
        num_rows: number of rows.
        hold: of `inference`: told the tensors that are made and held, which may be int32 there.

    Attributes:
        position: [E], the messages in this order; None if they are in it already. int64, or int32
            with `hold` if that suffices.
        indptr: int64 [num_rows + 1], where those to each row begin.
        ends: the same numbers, for one at a time.
    """

    def __init__(self, index: Tensor, num_rows: int, hold: Hold | None = None) -> None:
        self.index, self.num_rows, self._hold = index, num_rows, hold
        self.position: Tensor | None = None
        if index.numel() == 0 or bool((index[1:] >= index[:-1]).all()):
            self.indptr = pointers_of(index, num_rows)
        elif on_host(index):
            self.indptr, position = positions_by_row(index, num_rows)
            self.position = position.long() if hold is None else position
        else:
            ids, self.position = index.sort(stable=True)
            self.indptr = pointers_of(ids, num_rows)
        self.ends = _Ends(self.indptr)
        self._sorted: tuple[Tensor, Tensor] | None = None
        if hold is not None:
            hold(self.indptr)
            if self.position is not None:
                hold(self.position)

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return where the messages to rows from `first` to before `last` begin and end."""
        return int(self.indptr[first]), int(self.indptr[last])

    def targets(self, first: int, last: int, begin: int, end: int) -> Tensor:
        """Return the rows of the messages from `begin` to before `end`, int64, `first` being 0."""
        bounds = self.indptr[first : last + 1].clamp(begin, end)
        return torch.arange(last - first).repeat_interleave(bounds.diff())

    def sorted(self, values: Tensor) -> Tensor:
        """Return entries in this order. Integers must not be written to: the latest are kept."""
        if self.position is None:
            return values
        if self._sorted is not None and self._sorted[0] is values:
            return self._sorted[1]
        found = values.index_select(0, self.position)
        if self._hold is not None:
            self._hold(found)
        if not values.is_floating_point():
            self._sorted = values, found
        return found


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


class Rows(NamedTuple):
    """The first rows of a value, or the first messages in the order of the rows they go to."""

    count: int  # type: ignore[assignment]
    order: MessageOrder | None = None


class Lists:
    """Lists of rows, of which equal ones are one, with their orders and matrices."""

    def __init__(self) -> None:
        self._at: dict[Any, tuple[Tensor, Tensor]] = {}  # by the address of a list
        self._known: dict[int, list[Tensor]] = {}
        self._versions: dict[int, int] = {}
        self._bounds: dict[int, tuple[int, int]] = {}
        self._orders: dict[tuple[int, int], MessageOrder | None] = {}
        self._parts: dict[Any, Any] = {}
        self.deferred: list[Any] = []

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

    def part(self, index: Tensor, rows: Rows) -> tuple[Tensor, int]:
        """Return the entries of some rows of a list, and how many rows they need."""
        key = id(index), rows
        if key not in self._parts:
            if _writes_to(index) != self._versions[id(index)]:
                raise RuntimeError(
                    "an index was modified in place after rows were gathered or scattered by it; "
                    "modify a clone of it"
                )
            taken = index[: rows.count]
            if rows.order is not None and rows.order.position is not None:
                taken = index.index_select(0, rows.order.position[: rows.count])
            if rows.count == index.numel():
                bound = self.bounds(index)[1] + 1 if rows.count else 0
            else:
                bound = int(taken.max()) + 1 if rows.count else 0
            self._parts[key] = taken, bound
        found: tuple[Tensor, int] = self._parts[key]
        return found

    def matrix(self, order: MessageOrder, index: Tensor, num_rows: int, rows: Rows) -> Adjacency:
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


KEPT = 4  # orders: as many relations are usual in one layer
COMPARED_ENTRIES = 1 << 20  # at a time


class Orders:
    """Narrow copies of lists, and the orders of the latest ones; an equal list gets the same ones.

    Args:
        hold: told each tensor that is made and held.
    """

    def __init__(self, hold: Hold) -> None:
        self.kept: list[MessageOrder] = []
        self._hold = hold
        self._narrow: dict[Any, tuple[weakref.ref[Any], NarrowIndex]] = {}  # by address
        self._unwatched: list[NarrowIndex] = []  # the latest of lists in the memory of NumPy

    def of(self, index: Tensor, num_rows: int) -> MessageOrder:
        """Return the order of a list.

        Raises:
            IndexError: an entry that is not a row.
        """
        known, low, high = self.narrowed(index)
        if low < 0 or high >= num_rows:
            raise IndexError(
                f"index {high if high >= num_rows else low} is out of range for a dimension of "
                f"size {num_rows}, into which rows are scattered"
            )
        for order in self.kept:
            same = order.index is known or torch.equal(order.index, known)
            if order.indptr.numel() == num_rows + 1 and same:
                return order
        self.kept.insert(0, MessageOrder(known, num_rows, self._hold))
        del self.kept[KEPT:]
        return self.kept[0]

    def narrowed(self, index: Tensor) -> NarrowIndex:
        """Return a list with its bounds; what is known of it holds until `forget`."""
        storage = index.untyped_storage()
        if not storage.resizable():  # NumPy's memory, to which it may write unseen
            same = (k for k in self._unwatched if _same_numbers(k.values, index))
            found = next(same, None) or self._copied(index)
            self._unwatched = [found, *(k for k in self._unwatched if k is not found)][: 2 * KEPT]
            return found
        place = storage_of(index), index.data_ptr(), index.dtype, index.shape, index.stride()
        known = self._narrow.get(place)
        if known is None or known[0]() is None:
            self._narrow = {k: v for k, v in self._narrow.items() if v[0]() is not None}
            known = self._narrow[place] = weakref.ref(storage), self._copied(index)
        return known[1]

    def _copied(self, index: Tensor) -> NarrowIndex:
        found = narrow(index)
        self._hold(found.values)
        return found

    def forget(self, storage: int) -> None:
        """Forget the lists in a storage (`storage_of`), which is about to change."""
        self._narrow = {k: v for k, v in self._narrow.items() if k[0] != storage}


def _same_numbers(known: Tensor, index: Tensor) -> bool:
    """Whether two lists are equal, whatever their dtypes, in little memory."""
    parts = (torch.split(v, COMPARED_ENTRIES) for v in (known, index))
    return len(known) == len(index) and all(
        torch.equal(a.long(), b.long()) for a, b in zip(*parts, strict=True)
    )


def narrow(index: Tensor) -> NarrowIndex:
    """Return a copy of a list of integers, of 32 bits where these suffice."""
    index = index.detach().cpu()
    low, high = (int(v) for v in torch.aminmax(index)) if index.numel() else (0, -1)
    small = low >= -(1 << 31) and high < 1 << 31
    values = index.to(torch.int32 if small else torch.int64, copy=True).contiguous()
    return NarrowIndex(values, low, high)
