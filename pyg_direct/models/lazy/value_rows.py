"""Values of a training step whose rows are those of others, or are drawn or normalised together."""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from .lists import MessageOrder
from .values import Rows, Value

DRAWN_ROWS = 1024  # that have one seed


class Draw(Value):
    """Random numbers, which depend on the row and on a number drawn when the model asked."""

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


class Take(Value):
    """Rows of a value, `source`, by a list."""

    __slots__ = ("index", "lists", "order", "source")

    def __init__(self, lists: Any, source: Value, dim: int, index: Tensor) -> None:
        shape = source.shape
        shape = (*shape[:dim], index.numel(), *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.lists, self.index, self.source = lists, index, source
        self.reads(source)
        self.order: MessageOrder | None = None
        if source.support is not None and source.support.order is None:
            self.order = lists.order(index, source.num_rows)
            if self.order is not None:
                self.support = to_rows(self.order, source.support.count)

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return what has to be computed first."""
        source = self.source
        return [(source, source.up_to(self.lists.part(self.index, rows)[1]))]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        index, bound = self.lists.part(self.index, rows)
        found: Tensor = self.inputs[0].at(Rows(bound)).index_select(self.dim, index)
        return found


def to_rows(order: MessageOrder, num_rows: int) -> Rows:
    """Return the messages to the first rows."""
    return Rows(order.ends[num_rows], None if order.position is None else order)


class First(Value):
    """Rows from `start` on of a value."""

    __slots__ = ("start",)
    by_order = False

    def __init__(self, source: Value, start: int, num_rows: int) -> None:
        shape, dim = source.shape, source.dim
        shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.start = start
        self.reads(source)
        support = source.support
        if support is not None and support.order is None:
            self.support = Rows(min(num_rows, max(0, support.count - start)))

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return what has to be computed first."""
        return [(self.inputs[0], Rows(self.start + rows.count))]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        self.share()
        whole: Tensor = self.inputs[0].at(Rows(self.start + rows.count))
        return whole.narrow(self.dim, self.start, rows.count)


class Longer(Value):
    """A value, followed by zeros: the gradient of its first rows."""

    __slots__ = ()

    def __init__(self, source: Value, num_rows: int) -> None:
        shape, dim = source.shape, source.dim
        shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.reads(source)
        support = source.wanted(Rows(source.num_rows))
        self.support = support if support.order is None else Rows(source.num_rows)

    def compute(self, rows: Rows) -> Any:
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
