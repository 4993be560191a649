"""Values that an operation computes from rows of others: row by row, moved, drawn or normalised."""

from __future__ import annotations

from operator import methodcaller
from typing import Any, cast

import torch
from torch import Tensor

from ...core.private_torch import storage_of, tree_map
from .calls import CallPlan, Out
from .lists import Lists, MessageOrder
from .values import ONE_REFERENCE, Box, Rows, Selection, Value, references

aten = torch.ops.aten
DRAWN_ROWS = 1024  # that have one seed


class Operation(Value):
    """An operation that keeps rows apart; `Pick` gives one of several results."""

    __slots__ = ("args", "kwargs", "plan")
    row_wise = True

    def __init__(
        self, plan: CallPlan, out: Out, num_rows: int, device: torch.device, args: list[Any],
        kwargs: Any,
        values: list[Value], boxes: list[Box],
    ) -> None:  # fmt: skip
        shape, dtype, dim, kind = out
        if shape[dim] != num_rows:
            shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, dtype, device, dim, kind)
        self.plan, self.args, self.kwargs = plan, args, kwargs
        self.inputs, self.boxes = tuple(values), tuple(boxes)
        if plan.zero:
            self.support = plan.support(values)

    @property
    def func(self) -> Any:
        """The operation of torch."""
        return self.plan.func

    def compute(self, rows: Rows | Selection) -> Tensor:
        """Return some rows from those of the sources; of several results, a list."""
        result: Tensor
        if rows.count == 0:
            result = self._nothing()
            return result
        plan = self.plan
        if plan.zero == "all" and plan.func is aten.add.Tensor and not self.kwargs:
            found = self._added(rows) if type(rows) is Rows else None
            if found is not None:
                return found
        parts = map(methodcaller("at", rows), self.inputs)
        args, kwargs = plan.arguments(self.args, self.kwargs, parts, rows.count)
        if plan.may_share:
            self.share()
        elif plan.in_place is not None and self._owns(0, rows):
            result = plan.in_place(*args, **kwargs)
            return result
        result = plan.func(*args, *plan.more, **kwargs)
        return result

    def _owns(self, place: int, rows: Rows | Selection) -> bool:
        """Whether this operation alone reads the rows of an operand, which fit the result."""
        value, boxes = self.inputs[place], cast(Any, self.boxes)
        box = boxes[place]
        like = not box.shared and box.have == rows and value.kind == self.kind
        del box
        return like and references(boxes, place) == ONE_REFERENCE

    def release(self) -> None:
        """Drop the arguments."""
        self.args, self.kwargs = [], {}

    def copy_held(self, storage: int) -> None:
        """See `Value`."""

        def own(value: Any) -> Any:
            held = isinstance(value, Tensor) and value.layout == torch.strided
            return value.clone() if held and storage_of(value) == storage else value

        self.args, self.kwargs = tree_map(own, (self.args, self.kwargs))

    def _added(self, rows: Rows) -> Tensor | None:
        """Add up, where one operand is zero after its first rows."""
        boxes = cast(Any, self.boxes)
        one, other = boxes[0].have, boxes[-1].have
        if rows.order is not None or one.order is not None or other.order is not None:
            return None
        counts = [one.count, other.count]
        if max(counts) != rows.count or min(counts) == rows.count:
            return None
        if self.inputs[0].kind != self.kind or self.inputs[-1].kind != self.kind:
            return None
        large = counts.index(rows.count)
        value, fewer = self.inputs[large], self.inputs[1 - large]
        first, rest = min(counts), rows.count - min(counts)
        known: Tensor = value.at(rows)
        total = known
        if not self._owns(large, rows):
            total = torch.empty_like(known)
            total.narrow(self.dim, first, rest).copy_(known.narrow(self.dim, first, rest))
        part = known.narrow(self.dim, 0, first), fewer.at(Rows(first))
        torch.add(*part, out=total.narrow(self.dim, 0, first))
        return total

    def _nothing(self) -> Any:
        def empty(out: Any) -> Tensor:
            shape, dtype, row, _ = out
            size = list(shape)
            if row is not None:
                size[row] = 0
            return torch.empty(size, dtype=dtype, device=self.device)

        found = [empty(out) for out in self.plan.outs]
        return found[0] if self.plan.container is None else found


class Pick(Value):
    """One of several results."""

    __slots__ = ("place",)

    def __init__(self, several: Operation, place: int) -> None:
        shape, dtype, dim, kind = several.plan.outs[place]
        shape = (*shape[:dim], several.num_rows, *shape[dim + 1 :])
        super().__init__(shape, dtype, several.device, dim, kind)
        self.place = place
        self.reads(several)
        self.support = several.support

    def compute(self, rows: Rows | Selection) -> Tensor:
        """Return some rows from those of the sources."""
        several = self.inputs[0]
        if type(rows) is not Rows:
            return several.at(rows)[self.place]
        self.share()
        part = several.box().data[self.place]
        return part if several.have == rows else part.narrow(self.dim, 0, rows.count)


class RandomRows(Value):
    """Random numbers by row, from a seed that is drawn at the call."""

    __slots__ = ("call", "kept", "seed")
    by_order = False

    def __init__(self, target: Value, func: Any, args: Any, kwargs: Any) -> None:
        super().__init__(target.shape, target.dtype, target.device, target.dim)
        self.call, self.seed = (func, args, kwargs), int(torch.randint(1 << 62, ()))

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        func, args, kwargs = self.call
        size = list(self.shape)
        size[self.dim] = rows.count
        out = torch.empty(size, dtype=self.dtype, device=self.device)
        draw = torch.Generator(self.device)
        for place, part in enumerate(torch.split(out, DRAWN_ROWS, self.dim)):
            size[self.dim] = DRAWN_ROWS
            full = torch.empty(size, dtype=self.dtype, device=self.device)
            func(full, *args, **{**kwargs, "generator": draw.manual_seed(self.seed + place)})
            part.copy_(full.narrow(self.dim, 0, part.size(self.dim)))
        return out


class Gather(Value):
    """Rows of a value, `source`, by a list of row numbers.

    Args:
        source: the value.
        dim: of its rows.
        index: the list, which is not written to.
        lists: of a training step; None in `inference`, which computes all rows of `source` first.
    """

    __slots__ = ("index", "lists", "order", "source")

    def __init__(self, source: Value, dim: int, index: Tensor, lists: Lists | None = None) -> None:
        shape = source.shape
        shape = (*shape[:dim], index.numel(), *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.index, self.source = index, source
        self.lists: Lists = lists  # type: ignore[assignment]  # None in `inference`
        self.reads(source)
        self.order: MessageOrder | None = None
        if lists is not None and source.support is not None and source.support.order is None:
            self.order = lists.order(index, source.num_rows)
            if self.order is not None:
                self.support = to_rows(self.order, source.support.count)

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        source = self.source
        return [(source, source.rows_read(self.lists.part(self.index, rows)[1]))]

    def compute(self, rows: Rows | Selection) -> Tensor:
        """Return some rows from those of the sources."""
        source = self.source
        if type(rows) is not Rows:
            return source.at(cast(Selection, rows).through(self.index))
        index, bound = self.lists.part(self.index, rows)
        return source.at(Rows(bound)).index_select(self.dim, index)

    def release(self) -> None:
        """Drop the source and the list."""
        self.source = self.index = None  # type: ignore[assignment]


def to_rows(order: MessageOrder, num_rows: int) -> Rows:
    """Return the messages to the first rows."""
    return Rows(order.ends[num_rows], None if order.position is None else order)


class Narrow(Value):
    """Each `step`-th row from `start` on of a value; in a training step each row."""

    __slots__ = ("start", "step")
    by_order = False

    def __init__(self, source: Value, start: int, num_rows: int, step: int = 1) -> None:
        shape, dim = source.shape, source.dim
        shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.start, self.step = start, step
        self.reads(source)
        support = source.support
        if support is not None and support.order is None:
            self.support = Rows(min(num_rows, max(0, support.count - start)))

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        return [(self.inputs[0], Rows(self.start + rows.count))]

    def compute(self, rows: Rows | Selection) -> Tensor:
        """Return some rows from those of the sources."""
        if type(rows) is not Rows:
            return self.inputs[0].at(cast(Selection, rows).through((self.start, self.step)))
        self.share()
        table = self.inputs[0].at(Rows(self.start + rows.count))
        return table.narrow(self.dim, self.start, rows.count)


class Pad(Value):
    """Rows padded with zeros: the gradient of `narrow`."""

    __slots__ = ()

    def __init__(self, source: Value, num_rows: int) -> None:
        shape, dim = source.shape, source.dim
        shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.reads(source)
        support = source.wanted(Rows(source.num_rows))
        self.support = support if support.order is None else Rows(source.num_rows)

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        self.share()
        return self.inputs[0].at(rows)


class NeededNorm(Value):
    """A batch normalised by the statistics of the rows that are asked for first.

    Attributes:
        mean, scale: of the columns, once they are computed: mean, and 1 / deviation.
        normalised: the rows that they are of.
    """

    __slots__ = ("call", "mean", "normalised", "scale")
    by_order = False

    def __init__(self, func: Any, x: Value, rest: Any) -> None:
        super().__init__(x.shape, x.dtype, x.device, 0)
        self.call, self.normalised = (func, rest), Rows(0)
        self.mean, self.scale = torch.empty(2, x.shape[1], dtype=x.dtype, device=x.device)
        self.reads(x)

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        func, rest = self.call
        x = self.inputs[0].at(rows)
        if self.normalised.count == 0:
            out, mean, scale = func(x, *rest)
            self.mean.data.copy_(mean)  # autograd has kept them, without their numbers
            self.scale.data.copy_(scale)
            self.normalised = rows
            return cast(Tensor, out)
        return self.scaled(x, *rest[:2])

    def scaled(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """Return rows normalised by the known statistics."""
        out: Tensor = (x - self.mean) * self.scale
        out = out if weight is None else out * weight
        return out if bias is None else out + bias

    def gradients(self, func: Any, grad: Tensor, x: Tensor, rest: Any) -> Any:
        """Return the gradients of the normalised rows, of weight and bias.

        Args:
            func: the operation that computes them.
            grad: of the result's normalised rows.
            x: these rows.
            rest: of the operation's arguments.
        """
        return func(grad, x, *rest)
