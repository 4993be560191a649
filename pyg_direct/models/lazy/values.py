"""Lazy tensors, of which only the rows that are read are computed.

A `Value` stands for all rows of a tensor of a training step or of `inference`. In a step,
`compute_rows` computes a prefix of the rows, or the messages to a prefix (`Rows`): a sampled batch
lists nodes and edges hop by hop. A gradient has a support, outside of which it is zero. `inference`
computes all rows, block by block (`whole.blocks`).
"""

from __future__ import annotations

import heapq
import sys
import weakref
from collections.abc import Callable, Iterable
from itertools import count, repeat
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from ...core.private_torch import WithoutFunctionModes, writes_to
from .lists import Rows as Rows
from .modes import AsCalled, modes_now

_serial = count()


class Selection(Protocol):
    """Rows in a form of which `Value` knows nothing: it reads what a value is computed from."""

    @property
    def count(self) -> int:
        """How many there are."""

    def read(self, value: Value) -> Tensor:
        """Return these rows of a value; not to be written to."""

    def through(self, index: Tensor | tuple[int, int]) -> Selection:
        """Return the rows of another table that a list, or (start, step), names for these."""


class Box:
    """The computed rows of a value; it lives as long as they may be read.

    Tensors hold the boxes of their values, and a value that is not computed yet those of its
    inputs. So rows are freed when the last one who reads them has done so.

    Attributes:
        data, have: the rows, and which they are; of an operation with several results, a list.
        views: rows of the same value in other orders.
        shared: whether something else may have the same memory.
    """

    data: Tensor = None  # type: ignore[assignment]
    have: Rows | None = None
    views: dict[Rows, Tensor] | None = None
    shared = False

    def fill(self, data: Tensor, have: Rows) -> None:
        """Hold some rows."""
        self.data, self.have, self.views = data, have, None


def references(boxes: tuple[Box, ...], place: int) -> int:
    """Return how many hold one of some boxes, in the counting of this version of Python."""
    box = boxes[place]
    return sys.getrefcount(box)


ONE_REFERENCE = references((Box(),), 0)  # that of the tuple itself


def boxes_of(values: Iterable[Value]) -> tuple[Box, ...]:
    """Return where the rows of values are; whoever holds the boxes keeps them."""
    found = []
    for value in values:
        box = None if value.ref is None else value.ref()
        if box is None:
            box = Box()
            value.ref = weakref.ref(box)
        found.append(box)
    return tuple(found)


Scheduler = Callable[[dict["Value", Rows], dict["Value", Rows], bool], None]


class Value:
    """All rows of a tensor, some of which are computed.

    Attributes:
        shape, dtype, device: of the tensor.
        dim: the dimension of the rows.
        num_rows: their number.
        support: outside of these rows it is zero; None if that is not known.
        inputs: what it is made of.
        boxes: their rows, until this one is computed.
        serial: of what was made first the lowest.
        modes: of torch, in which it is computed.
        kind: what it has in common with values of other batches: all but the number of rows.
        ref: weak reference to the box of its rows, or None.
        key: a name for its contents, once it was asked for.
    """

    __slots__ = (
        "__weakref__", "_meta", "boxes", "device", "dim", "dtype", "inputs", "key", "kind", "modes",
        "num_rows", "ref", "serial", "shape", "support",
    )  # fmt: skip

    key: str
    shape: tuple[int, ...]
    by_order = True  # whether it can be computed for the messages to some rows alone
    row_wise = False  # whether it reads the same rows of all inputs
    is_fill = False  # whether it is one number, whose rows are where those of others are
    # What computes it together with all that was asked for, in place of `compute_needed`.
    scheduler: Scheduler | None = None
    # Returns which rows messages ask for that read some of the rows up to one.
    rows_read: Callable[[int], Rows] = Rows

    def __init__(
        self, shape: Any, dtype: torch.dtype, device: torch.device, dim: int, kind: Any = None
    ) -> None:
        self.shape, self.dtype, self.device, self.dim = shape, dtype, device, dim
        self.num_rows = shape[dim] if shape else 1
        self.serial, self.modes = next(_serial), modes_now()
        self.support: Rows | None = None
        self.inputs: tuple[Value, ...] = ()
        self.boxes: tuple[Box, ...] | None = ()
        self.ref: Any = None
        if kind is None:
            whole = tuple(shape)
            kind = (dim, dtype, whole[:dim], whole[dim + 1 :] if whole else None)
        self.kind: Any = kind
        self._meta: Tensor | None = None

    def reads(self, *inputs: Value) -> None:
        """Remember what it is made of."""
        self.inputs, self.boxes = inputs, boxes_of(inputs)

    def box(self) -> Box:
        """Return where its rows are; whoever holds it keeps them."""
        found: Box | None = None if self.ref is None else self.ref()
        if found is None:
            found = Box()
            self.ref = weakref.ref(found)
        return found

    @property
    def meta(self) -> Tensor:
        """A meta tensor of its shape."""
        if self._meta is None:
            self._meta = torch.empty(self.shape, dtype=self.dtype, device="meta")
        return self._meta

    @property
    def have(self) -> Rows | None:
        """Which rows are computed."""
        box = None if self.ref is None else self.ref()
        return None if box is None else box.have

    @property
    def table(self) -> Tensor | None:
        """All rows, once they are computed."""
        box: Box | None = None if self.ref is None else self.ref()
        if box is None or box.have is None or box.have != (self.num_rows, None):
            return None
        return box.data

    def settle(self, table: Tensor) -> None:
        """Hold all rows, which are computed, and drop the inputs."""
        self.box().fill(table, Rows(self.num_rows))
        self.inputs, self.boxes = (), None
        self.release()

    def release(self) -> None:
        """Drop tensors that it was computed from."""

    def copy_held(self, storage: int) -> None:
        """Hold copies of tensors in a storage (`storage_of`), which is about to change."""

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        support = self.support
        if rows.order is not None and not self.by_order:
            rows = Rows(self.num_rows)
        if support is None or (support.order is rows.order and rows.count < support.count):
            return rows
        return support

    def lacking(self, rows: Rows) -> Rows | None:
        """Return which rows are to be computed where some are asked for; None if they are there."""
        rows = self.wanted(rows)
        box = None if self.ref is None else self.ref()
        have = None if box is None else box.have
        if have is None:
            return rows
        there = have.order is rows.order and have.count >= rows.count
        return None if there or have.count == self.num_rows else rows

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        return [(value, rows) for value in self.inputs]

    def parents(self) -> tuple[Value, ...]:
        """Return the values that operations made it of; `inputs` may leave some of them out."""
        return self.inputs

    def compute(self, rows: Any) -> Tensor:
        """Return some rows, `Rows` or a `Selection`, from those of the sources."""
        raise NotImplementedError

    def share(self) -> None:
        """Mark its memory, and that of its sources, as possibly shared."""
        self.box().shared = True
        for box in self.boxes or ():
            box.shared = True

    def with_known(self, data: Tensor, rows: Rows) -> Tensor:
        """Return rows, of which those that were computed before keep their numbers.

        Products with other numbers of rows round differently, and a maximum that was taken of the
        rows before has to be equal to one of them.
        """
        have, box = self.have, self.box()
        if have is None or have.count == 0 or not isinstance(data, Tensor):
            return data
        known = box.data
        moved = have.order is not rows.order
        if moved and (have.order is not None or rows.count < self.num_rows):
            return data
        first = min(have.count, rows.count)
        parts = [known.narrow(self.dim, 0, first), data.narrow(self.dim, first, rows.count - first)]
        return torch.cat(parts, self.dim)

    def take_rows(self, data: Tensor, rows: Rows) -> None:
        """Hold computed rows, and drop those of the inputs."""
        box = self.ref()
        if box.have is not None:
            data = self.with_known(data, rows)
        box.data, box.have, box.views = data, rows, None
        self.boxes = None

    def at(self, rows: Rows | Selection) -> Tensor:
        """Return rows that are computed; not to be written to."""
        if type(rows) is not Rows:
            return cast(Selection, rows).read(self)
        box: Box = self.ref()
        have: Any = box.have
        if have.order is rows.order:
            if have.count == rows.count:
                return box.data
            if have.count > rows.count:
                return box.data.narrow(self.dim, 0, rows.count)
        if box.views is None:
            box.views = {}
        if rows not in box.views:
            box.views[rows] = self._arranged(box.data, have, rows)
        return box.views[rows]

    def _arranged(self, data: Tensor, have: Rows, rows: Rows) -> Tensor:
        if have.order is None and rows.order is None:  # all others are zero
            return filled_up(data, self.dim, rows.count)
        if have.order is not None:
            all_rows = data.new_zeros(self.shape)
            all_rows.index_copy_(self.dim, have.order.position[: have.count], data)  # type: ignore[index]
        else:
            all_rows = filled_up(data, self.dim, self.num_rows)
        if rows.order is None:
            return all_rows.narrow(self.dim, 0, rows.count)
        return all_rows.index_select(self.dim, rows.order.position[: rows.count])  # type: ignore[index]


def filled_up(data: Tensor, dim: int, rows: int) -> Tensor:
    """Return a tensor with more rows, of zeros."""
    if data.size(dim) == rows:
        return data
    size = list(data.shape)
    size[dim] = rows
    out = data.new_zeros(size)
    out.narrow(dim, 0, data.size(dim)).copy_(data)
    return out


def union(first: Rows | None, second: Rows | None, num_rows: int) -> Rows | None:
    """Return rows that hold both; None is all of them."""
    if first is None or second is None:
        return None
    if first.order is second.order or first.count == 0 or second.count == 0:
        return first if first.count >= second.count else second
    return Rows(num_rows)


def compute_rows(value: Value, rows: Rows, again: bool = False) -> Tensor:
    """Return some rows of a value. Shared inputs are computed once.

    Args:
        value: whose rows they are.
        rows: which.
        again: compute what was computed before, too.
    """
    box = value.box()  # holds them until they are returned
    if value.lacking(rows) is not None or (again and value.inputs):
        asked = {value: rows}
        needs = needed_by(asked, again)
        schedulers = [one.scheduler for one in needs if one.scheduler is not None]
        if schedulers:
            schedulers[0](asked, needs, again)
        else:
            compute_needed(needs)
    box.shared = True  # by whoever asks
    return value.at(rows)


def compute_needed(needs: dict[Value, Rows]) -> None:
    """Compute rows of values, of which `needs` has those first that read the others."""
    with AsCalled() as called, WithoutFunctionModes():  # what is called is not the forward's
        for one in reversed(needs):
            if one.modes is not called.now:
                called.take(one.modes)
            one.take_rows(one.compute(needs[one]), needs[one])


def needed_by(asked: dict[Value, Rows], again: bool) -> dict[Value, Rows]:
    """Return which rows of which values are to be computed, those first that read the others."""
    needs = {value: value.wanted(rows) for value, rows in asked.items()}
    heap = [(-value.serial, value) for value in asked]
    heapq.heapify(heap)
    found = {}
    while heap:  # from those made last; so all who ask are known before one is asked
        one = heapq.heappop(heap)[1]
        wanted, box = needs[one], None if one.ref is None else one.ref()
        if box is not None and box.have is not None:
            wanted = one.wanted(union(wanted, box.have, one.num_rows) or wanted)
        needs[one] = found[one] = wanted
        if one.boxes is None:
            one.boxes = boxes_of(one.inputs)
        parts = zip(one.inputs, repeat(wanted)) if one.row_wise else one.sources(wanted)
        for source, part in parts:
            if source in needs:
                needs[source] = source.wanted(union(needs[source], part, source.num_rows) or part)
                continue
            lacking = source.lacking(part)
            if lacking is not None or (again and source.inputs):
                needs[source] = source.wanted(part) if lacking is None else lacking
                heapq.heappush(heap, (-source.serial, source))
    return found


class Leaf(Value):
    """A tensor; of a gradient, its first rows, all others being zero."""

    __slots__ = ("_writes", "kept")

    def __init__(
        self, tensor: Tensor, dim: int, num_rows: int | None = None, watched: bool = False
    ) -> None:
        shape = tuple(tensor.shape)
        held = shape[dim] if shape else 1
        if num_rows is not None:
            shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, tensor.dtype, tensor.device, dim)
        self.kept = self.box()
        self.kept.fill(tensor, Rows(held))
        self.kept.shared = True
        if num_rows is not None:
            self.support = Rows(held)
        self._writes = writes_to(tensor) if watched and not tensor.is_inference() else None

    def at(self, rows: Rows | Selection) -> Tensor:
        """Return rows that are computed; not to be written to."""
        if self._writes is not None and writes_to(self.kept.data) != self._writes:
            raise RuntimeError(
                f"an argument of the model, of shape {tuple(self.shape)}, was modified in place "
                f"before the backward, which needs it"
            )
        return super().at(rows)

    def copy_held(self, storage: int) -> None:
        """See `Value`."""
        self.keep_own()

    def keep_own(self) -> None:
        """Hold a copy, as the tensor is written to."""
        self._writes = None
        self.kept.fill(self.kept.data.clone(), cast(Rows, self.kept.have))

    @property
    def tensor(self) -> Tensor:
        """The rows that it holds."""
        return self.kept.data


class Fill(Value):
    """One number."""

    __slots__ = ("value",)
    is_fill = True

    def __init__(
        self, shape: Any, dtype: torch.dtype, device: torch.device, dim: int, value: Any
    ) -> None:
        super().__init__(shape, dtype, device, dim)
        self.value = value
        if value == 0:
            self.support = Rows(0)

    def compute(self, rows: Rows | Selection) -> Tensor:
        """Return some rows from those of the sources."""
        size = list(self.shape)
        size[self.dim] = rows.count
        return torch.full(size, self.value, dtype=self.dtype, device=self.device)
