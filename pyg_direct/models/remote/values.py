"""Values of a step with rows from a table of earlier steps, or from other ranks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...core.private_torch import WithoutFunctionModes
from ..lazy.modes import AsCalled
from ..lazy.tensor import TableTensor
from ..lazy.values import Rows, Scheduler, Value, needed_by
from .messages import AgreedExchange, Agreement, GradientExchange, RowTransfer, StepMessages


class RowExchange(Protocol):
    """How the rows of one gathered value come, and how their gradient goes back."""

    def extent(self, count: int) -> tuple[int, int]:
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
            read: as `extent` said.
        """

    def backward(self, grad: Tensor) -> Tensor:
        """Return the gradient of the rows that `forward` was given, [computed, ...].

        Called once for a `forward` whose value needs a gradient, even where that is zero.

        Args:
            grad: of what `forward` returned, [read, ...]; not to be written to.
        """


class _Exchanged(Value):
    """The rows of a value after an exchange."""

    __slots__ = ("computed", "exchange", "read")

    def __init__(self, source: Value, exchange: RowExchange | AgreedExchange) -> None:
        super().__init__(source.shape, source.dtype, source.device, 0)
        self.exchange: Any = exchange
        self.read = self.computed = 0
        self.reads(source)

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        count = rows.count if rows.order is None else self.num_rows
        return Rows(self.exchange.extent(count)[0])

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        return [(self.inputs[0], Rows(self.exchange.extent(rows.count)[1]))]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        ((source, part),) = self.sources(rows)
        self.read, self.computed = rows.count, part.count
        found: Tensor = self.exchange.forward(source.at(part), rows.count)
        return found


class OfRanks(Value):
    """A value that ranks compute together: rows of it go to others, and come from them."""

    __slots__ = ()

    @property
    def scheduler(self) -> Scheduler | None:  # type: ignore[override]
        """See `Value`."""
        return None if self.ranks is None else compute_with_ranks

    @property
    def ranks(self) -> StepMessages | None:
        """The collectives that exchange its rows, or None."""
        raise NotImplementedError

    @property
    def agreement(self) -> Agreement | None:
        """What the ranks have to agree on before, or None."""
        return None

    def to_send(self, rows: Rows) -> RowTransfer:
        """Return the rows to send before some rows can be computed."""
        raise NotImplementedError

    def receive(self, rows: Rows, parts: list[Tensor]) -> Tensor:
        """Assemble rows from what each rank sent."""
        raise NotImplementedError

    def agreed_rows(self, rows: Rows) -> Rows:
        """Return which rows are to be computed, once all who read them have asked."""
        return rows


def compute_with_ranks(asked: dict[Value, Rows], needs: dict[Value, Rows], again: bool) -> None:
    """Compute rows of values, some of which ranks exchange: see `compute_needed`.

    Args:
        asked: rows that are asked for.
        needs: what `needed_by` says of them.
        again: as of `compute_rows`.
    """
    while True:
        exchanging = [v for v in needs if isinstance(v, OfRanks) and v.scheduler is not None]
        # Gradients that can be sent with these, and were not asked for.
        of_all = [one for value in exchanging for one in getattr(value, "waiting", ())]
        waiting = {one: Rows(0) for one in of_all if one not in needs}
        if not waiting:
            agreements = [one.agreement for one in exchanging if one.agreement is not None]
            if not agreements or _messages(exchanging).agree(agreements):
                break
        asked |= waiting
        needs = needed_by(asked, again)
    needs |= {one: one.agreed_rows(needs[one]) for one in exchanging}
    with AsCalled() as called, WithoutFunctionModes():  # what is called is not the forward's
        for alone, together in _stages([*reversed(needs)]):
            for one in alone:
                called.take(one.modes)
                one.take_rows(one.compute(needs[one]), needs[one])
            if together:
                called.take(together[0].modes)
                sent = [one.to_send(needs[one]) for one in together]
                for each, parts in zip(together, _messages(together).move(sent), strict=True):
                    each.take_rows(each.receive(needs[each], parts), needs[each])


def _messages(exchanging: list[OfRanks]) -> StepMessages:
    """Return the collectives of some values, which are of one step."""
    return next(one.ranks for one in exchanging if one.ranks is not None)


def _stages(values: list[Value]) -> Iterator[tuple[list[Value], list[OfRanks]]]:
    """Yield values in an order in which they can be computed: some, and those that exchange rows
    together afterwards.
    """
    stages: dict[Value, int] = {}  # how many exchanges come before
    for one in values:
        before = [stages[v] + (v.scheduler is not None) for v in one.inputs if v in stages]
        stages[one] = max(before, default=0)
    for stage in range(max(stages.values()) + 1):
        here = [one for one in values if stages[one] == stage]
        alone = [one for one in here if one.scheduler is None]
        yield alone, [v for v in here if isinstance(v, OfRanks) and v.scheduler is not None]


class _Agreed(_Exchanged, OfRanks):
    """The rows of a value after an exchange in which all ranks read rows of the same hops.

    Args:
        source: the value before.
        exchange: of its rows.
        is_kept: whether the rows live as long as the value. A backward may ask for them again on
            one rank, whose lists reach further, and not on the others.
    """

    __slots__ = ("gradient_exchange", "is_covered", "kept")
    exchange: AgreedExchange
    gradient_exchange: GradientExchange
    by_order = False

    def __init__(self, source: Value, exchange: AgreedExchange, is_kept: bool) -> None:
        super().__init__(source, exchange)
        self.kept = self.box() if is_kept else None
        self.is_covered = True  # unless messages ask for more

    @property
    def ranks(self) -> StepMessages | None:
        """See `OfRanks`."""
        return self.exchange.messages

    @property
    def agreement(self) -> Agreement | None:
        """See `OfRanks`."""
        return self.exchange

    def rows_read(self, end: int) -> Rows:
        """See `Value`."""
        self.is_covered = self.exchange.ask(end)
        return Rows(end)

    wanted = Value.wanted

    def lacking(self, rows: Rows) -> Rows | None:
        """Return which rows are to be computed; None if they are there, as the other ranks say."""
        return None if self.have is not None and self.is_covered else self.wanted(rows)

    def agreed_rows(self, rows: Rows) -> Rows:
        """See `OfRanks`."""
        return Rows(self.exchange.extent(rows.count)[0])

    def to_send(self, rows: Rows) -> RowTransfer:
        """See `OfRanks`."""
        ((source, part),) = self.sources(rows)
        self.read, self.computed = rows.count, part.count
        self.gradient_exchange = self.exchange.gradient_exchange()
        return self.exchange.to_send(source.at(part))

    def receive(self, rows: Rows, parts: list[Tensor]) -> Tensor:
        """See `OfRanks`."""
        computed = self.inputs[0].at(Rows(self.computed))
        return self.exchange.receive(computed, rows.count, parts)

    def with_known(self, data: Tensor, rows: Rows) -> Tensor:
        """Return the rows unchanged: those that are known are not a prefix of them."""
        return data


class _ExchangedGradient(Value):
    """Gradient of an exchange's input, always for all rows."""

    __slots__ = ("exchange", "read")

    def __init__(self, grad: Value, of: _Exchanged) -> None:
        super().__init__(of.shape, of.dtype, of.device, 0)
        self.read, self.exchange = of.read, of.exchange
        self.reads(grad)
        self.support = Rows(of.computed)

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        return cast(Rows, self.support)

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        return [(self.inputs[0], Rows(self.read))]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        found: Tensor = self.exchange.backward(self.inputs[0].at(Rows(self.read)))
        return found


class _AgreedGradient(_ExchangedGradient, OfRanks):
    """The gradient of what an exchange with other ranks was given; it is computed once.

    Args:
        grad, of: see `_ExchangedGradient`.
        waiting: those of the step that are not computed.
    """

    __slots__ = ("gradient_exchange", "kept", "waiting")

    def __init__(self, grad: Value, of: _Agreed, waiting: dict[Value, None]) -> None:
        super().__init__(grad, of)
        self.gradient_exchange = of.gradient_exchange
        self.kept, self.waiting = self.box(), waiting
        waiting[self] = None

    @property
    def ranks(self) -> StepMessages | None:
        """See `OfRanks`."""
        return self.gradient_exchange.messages

    def to_send(self, rows: Rows) -> RowTransfer:
        """See `OfRanks`."""
        self.waiting.pop(self, None)
        return self.gradient_exchange.to_send(self.inputs[0].at(Rows(self.read)))

    def receive(self, rows: Rows, parts: list[Tensor]) -> Tensor:
        """See `OfRanks`."""
        return self.gradient_exchange.receive(self.inputs[0].at(Rows(self.read)), parts)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: TableTensor, exchange: RowExchange | AgreedExchange, has_backward: bool
    ) -> TableTensor:
        source: Value = x.run.operand(x, 0)
        ctx.run = run = x.run
        if isinstance(exchange, AgreedExchange):
            ctx.value = _Agreed(source, exchange, has_backward)
        else:
            ctx.value = _Exchanged(source, exchange)
        return run.wrap(ctx.value)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> Any:
        grad: Value = ctx.run.operand(grads[0], 0)
        if isinstance(ctx.value, _Agreed):
            found: Value = _AgreedGradient(grad, ctx.value, ctx.run.exchanges.waiting)
        else:
            found = _ExchangedGradient(grad, ctx.value)
        return ctx.run.wrap(found), None, None


def exchanged(table: TableTensor, exchange: RowExchange | AgreedExchange) -> TableTensor:
    """Return a tensor with the rows of another one after an exchange."""
    made: TableTensor = cast(Any, _Exchange.apply)(table, exchange, torch.is_grad_enabled())
    return made
