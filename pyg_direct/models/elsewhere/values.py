"""Values of a step that have rows from elsewhere: from a table of earlier steps, or other ranks."""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..lazy.tensor import BatchTensor
from ..lazy.values import Rows, Value


class RowExchange(Protocol):
    """How the rows of one gathered value come, and how their gradient goes back."""

    def reach(self, count: int) -> tuple[int, int]:
        """Return (read, computed): what is done where the first `count` rows are asked for.

        Args:
            count: of rows, at most N.

        Returns:
            How many rows `forward` gives, at least `count` (for `read` itself, the same again); and
            how many of the layer below have to be computed for that.
        """

    def forward(self, computed: Tensor, read: int) -> Tensor:
        """Return the first `read` rows, [read, ...]; gradients are not recorded.

        Args:
            computed: the first rows of the layer below, [computed, ...]; not to be written to.
            read: as `reach` said.
        """

    def backward(self, grad: Tensor) -> Tensor:
        """Return the gradient of the rows that `forward` was given, [computed, ...].

        Called once for a `forward` whose value needs a gradient, even where that is zero.

        Args:
            grad: of what `forward` returned, [read, ...]; not to be written to.
        """


class WayBack:
    """How the gradient of rows that came from other ranks goes back there.

    Attributes:
        messages: of the step, a `StepMessages`.
    """

    messages: Any

    def gone(self, grad: Tensor) -> Any:
        """Return the rows that go to other ranks, a `Moved`."""
        raise NotImplementedError

    def come(self, grad: Tensor, parts: list[Tensor]) -> Tensor:
        """Return the gradient of the rows that were given, with the parts of all ranks."""
        raise NotImplementedError


class AgreedExchange:
    """An exchange with other ranks, which all read rows of the same hops: the most that one needs.

    Attributes:
        messages: of the step, a `StepMessages`.
        title: see `Agreement`.
        asked: number of the last hop that is read.
    """

    messages: Any
    title: str
    asked: int

    def ask(self, end: int) -> bool:
        """Tell that messages read rows up to `end`; return whether what is agreed covers them."""
        raise NotImplementedError

    def take(self) -> None:
        """See `Agreement`."""
        raise NotImplementedError

    def reach(self, count: int) -> tuple[int, int]:
        """See `RowExchange`; the same for any count, once the hops are agreed."""
        raise NotImplementedError

    def gone(self, computed: Tensor) -> Any:
        """Return the rows that go to other ranks, a `Moved`."""
        raise NotImplementedError

    def come(self, computed: Tensor, read: int, parts: list[Tensor]) -> Tensor:
        """Return the first `read` rows, with the parts of all ranks; see `RowExchange.forward`."""
        raise NotImplementedError

    def way_back(self) -> WayBack:
        """Return the way back of what is agreed now; more rows may be read later."""
        raise NotImplementedError


class _Exchanged(Value):
    """The rows of a value after an exchange."""

    __slots__ = ("computed", "exchange", "read", "way_back")

    def __init__(self, source: Value, exchange: RowExchange | AgreedExchange) -> None:
        super().__init__(source.shape, source.dtype, source.device, 0)
        self.exchange: Any = exchange
        self.read = self.computed = 0
        self.way_back: Any = getattr(exchange, "backward", None)
        self.reads(source)

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        count = rows.count if rows.order is None else self.num_rows
        return Rows(self.exchange.reach(count)[0])

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return what has to be computed first."""
        return [(self.inputs[0], Rows(self.exchange.reach(rows.count)[1]))]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        ((source, part),) = self.sources(rows)
        self.read, self.computed = rows.count, part.count
        found: Tensor = self.exchange.forward(source.at(part), rows.count)
        return found


class _Agreed(_Exchanged):
    """The rows of a value after an exchange in which all ranks read rows of the same hops.

    Args:
        source: the value before.
        exchange: of its rows.
        is_kept: whether the rows live as long as the value. A backward may ask for them again on
            one rank, whose lists reach further, and not on the others.
    """

    __slots__ = ("is_covered", "kept")

    def __init__(self, source: Value, exchange: AgreedExchange, is_kept: bool) -> None:
        super().__init__(source, exchange)
        self.kept = self.box() if is_kept else None
        self.is_covered = True  # unless messages ask for more

    @property
    def ranks(self) -> Any:
        """See `Value`."""
        return self.exchange.messages

    @property
    def agreement(self) -> Any:
        """See `Value`."""
        return self.exchange

    def up_to(self, end: int) -> Rows:
        """Return which rows messages ask for that read some of the rows up to `end`."""
        self.is_covered = self.exchange.ask(end)
        return Rows(end)

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        return rows if rows.order is None else Rows(self.num_rows)

    def covers(self, rows: Rows) -> bool:
        """Whether rows are computed; as the other ranks have it."""
        return self.have is not None and self.is_covered

    def settled(self, rows: Rows) -> Rows:
        """Return which rows are to be computed, once all who read them have asked."""
        return Rows(self.exchange.reach(rows.count)[0])

    def gone(self, rows: Rows) -> Any:
        """See `Value`."""
        ((source, part),) = self.sources(rows)
        self.read, self.computed = rows.count, part.count
        self.way_back = self.exchange.way_back()
        return self.exchange.gone(source.at(part))

    def come(self, rows: Rows, parts: list[Tensor]) -> Tensor:
        """See `Value`."""
        found: Tensor = self.exchange.come(
            self.inputs[0].at(Rows(self.computed)), rows.count, parts
        )
        return found

    def with_known(self, data: Any, rows: Rows) -> Any:
        """Return rows as they are: others lie behind gaps."""
        return data


class _ExchangedGradient(Value):
    """The gradient of what an exchange was given; it is computed as a whole."""

    __slots__ = ("read", "way_back")

    def __init__(self, grad: Value, of: _Exchanged) -> None:
        super().__init__(of.shape, of.dtype, of.device, 0)
        self.read, self.way_back = of.read, of.way_back
        self.reads(grad)
        self.support = Rows(of.computed)

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        return cast(Rows, self.support)

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return what has to be computed first."""
        return [(self.inputs[0], Rows(self.read))]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        found: Tensor = self.way_back(self.inputs[0].at(Rows(self.read)))
        return found


class _AgreedGradient(_ExchangedGradient):
    """The gradient of what an exchange with other ranks was given; it is computed once.

    Args:
        grad, of: see `_ExchangedGradient`.
        waiting: those of the step that are not computed.
    """

    __slots__ = ("kept", "waiting")

    def __init__(self, grad: Value, of: _Exchanged, waiting: dict[Value, None]) -> None:
        super().__init__(grad, of)
        self.kept, self.waiting = self.box(), waiting
        waiting[self] = None

    @property
    def ranks(self) -> Any:
        """See `Value`."""
        return self.way_back.messages

    def gone(self, rows: Rows) -> Any:
        """See `Value`."""
        self.waiting.pop(self, None)
        return self.way_back.gone(self.inputs[0].at(Rows(self.read)))

    def come(self, rows: Rows, parts: list[Tensor]) -> Tensor:
        """See `Value`."""
        found: Tensor = self.way_back.come(self.inputs[0].at(Rows(self.read)), parts)
        return found


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: BatchTensor, exchange: Any, has_backward: bool) -> Any:
        source: Value = x.run.operand(x, 0)
        ctx.run = x.run
        if isinstance(exchange, AgreedExchange):
            ctx.value = _Agreed(source, exchange, has_backward)
        else:
            ctx.value = _Exchanged(source, exchange)
        return ctx.run.wrap(ctx.value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        grad: Value = ctx.run.operand(grads[0], 0)
        if isinstance(ctx.value, _Agreed):
            found: Value = _AgreedGradient(grad, ctx.value, ctx.run.exchanges.waiting)
        else:
            found = _ExchangedGradient(grad, ctx.value)
        return ctx.run.wrap(found), None, None


def exchanged(table: BatchTensor, exchange: RowExchange | AgreedExchange) -> BatchTensor:
    """Return a tensor with the rows of another one after an exchange."""
    made: BatchTensor = cast(Any, _Exchange.apply)(table, exchange, torch.is_grad_enabled())
    return made
