"""Batch normalisation by the statistics of a batch that ranks make together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .common_messages import Moved, StepMessages
from .needed import Rows, Value
from .needed_rows import NeededNorm


class Statistics:
    """How ranks exchange what a norm takes of all their rows, and of their gradients.

    Args:
        messages: of the step.
        title: of the norm.
        columns: of its rows.
    """

    asked = 0  # there is nothing to agree on but that it comes

    def __init__(self, messages: StepMessages, title: str, columns: int) -> None:
        self.messages, self.title = messages, title
        self._columns, self._made = columns, 0

    def take(self) -> None:
        """See `Agreement`."""
        self._made = self.messages.made
        once = [1] * self.messages.size
        for title, numbers in ((self.title, 3), (f"{self.title}, back", 2)):
            self.messages.expect(title, 8 * numbers * self._columns, once, once)

    def moved(self, numbers: Tensor, way: str = "") -> Moved:
        """Return the numbers of this rank, [n, columns], for all ranks."""
        size = self.messages.size
        parts = [numbers.double()[None]] * size
        return Moved(f"{self.title}{way}", self._made, parts, [1] * size)

    def summed(self, numbers: Tensor) -> Tensor:
        """Return the sums over all ranks, by rank order: the same bits on each."""
        (parts,) = self.messages.move([self.moved(numbers, ", back")])
        return torch.cat(parts).sum(0)


class CommonNorm(NeededNorm):
    """Rows normalised by the mean and variance of the own rows of all ranks.

    Partial variances are put together by the method of Chan, Golub and LeVeque, Updating Formulae
    and a Pairwise Algorithm for Computing Sample Variances (1979).

    Args:
        func, x, rest: see `NeededNorm`.
        exchange: of the statistics.
        first, last: where the own rows begin and end.

    Attributes:
        is_measured: whether the statistics are known.
    """

    __slots__ = ("_count", "_exchange", "_first", "_last", "is_measured")

    def __init__(
        self, func: Any, x: Value, rest: Any, exchange: Statistics, first: int, last: int
    ) -> None:
        super().__init__(func, x, rest)
        self._exchange, self._first, self._last, self._count = exchange, first, last, 0.0
        self.is_measured = False

    @property
    def ranks(self) -> Any:
        """See `Value`."""
        return None if self.is_measured else self._exchange.messages

    @property
    def agreement(self) -> Any:
        """See `Value`."""
        return None if self.is_measured else self._exchange

    @property
    def is_learning(self) -> bool:
        """Whether it changes the running statistics of a module."""
        return self.call[1][2] is not None

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        return Rows(self._last)

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        return self.scaled(self.inputs[0].at(rows), *self.call[1][:2])

    def gone(self, rows: Rows) -> Moved:
        """Return the number, the means and the variances of the own rows."""
        own: Tensor = self.inputs[0].at(rows)[self._first :]
        mean, var = own.new_zeros(2, own.size(1))
        if len(own) > 0:
            var, mean = torch.var_mean(own, 0, correction=0)
        count = mean.new_full((own.size(1),), len(own))
        return self._exchange.moved(torch.stack([count, mean, var]))

    def come(self, rows: Rows, parts: Any) -> Tensor:
        """Return some rows, normalised by the statistics of all ranks."""
        self._measure(torch.cat(parts), self.call[1])
        self.normalised, self.is_measured = rows, True
        return self.compute(rows)

    def _measure(self, parts: Tensor, rest: Any) -> None:
        """Put the statistics of the ranks together, and update those of the module."""
        running_mean, running_var, _, momentum, eps = rest[2:7]
        counts, means, variances = parts.unbind(1)
        total = counts.sum(0)
        mean = (counts * means).sum(0) / total
        squares = (counts * (variances + (means - mean) ** 2)).sum(0)
        self._count = float(total[0])
        self.mean.data.copy_(mean)
        self.scale.data.copy_((squares / total + eps).rsqrt())
        if running_mean is not None:
            # Past autograd, which has kept them for the backward, where they are not read.
            running_mean.data.lerp_(mean.to(running_mean), momentum)
            running_var.data.lerp_((squares / (total - 1)).to(running_var), momentum)

    def gradients(self, func: Any, grad: Tensor, x: Tensor, rest: Any) -> Any:
        """See `NeededNorm`."""
        weight, mask = rest[0], rest[-1]
        own = grad[self._first :]
        normal = (x[self._first :] - self.mean) * self.scale
        sums = torch.stack([own.sum(0), (own * normal).sum(0)])
        of_bias, of_weight = sums
        of_x = None
        if mask[0]:
            means = (self._exchange.summed(sums) / self._count).to(x.dtype)
            scale = self.scale if weight is None else self.scale * weight
            of_x = torch.zeros_like(x)
            of_x[self._first :] = (own - means[0] - normal * means[1]) * scale
        return of_x, of_weight if mask[1] else None, of_bias if mask[2] else None
