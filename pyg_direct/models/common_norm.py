"""Batch normalisation by the statistics of a batch that ranks make together."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ranks.channel import Channel
from .common_rows import sent_rows
from .needed import Rows, Value
from .needed_rows import NeededNorm


def summed(channel: Channel, numbers: Tensor) -> Tensor:
    """Return the sums over all ranks, by rank order: the same bits on each.

    Args:
        channel: of all ranks, which call this at the same place.
        numbers: float64, of the same shape on each.
    """
    return torch.stack(of_ranks(channel, numbers)).sum(0)


def of_ranks(channel: Channel, numbers: Tensor) -> list[Tensor]:
    """Return the numbers of all ranks, by rank; see `summed`."""
    parts = [numbers.cpu()[None]] * channel.size
    found = sent_rows(channel, parts, [1] * channel.size)
    return [part[0].to(numbers.device) for part in found]


class CommonNorm(NeededNorm):
    """Rows normalised by the mean and variance of the own rows of all ranks.

    Partial variances are put together by the method of Chan, Golub and LeVeque, Updating Formulae
    and a Pairwise Algorithm for Computing Sample Variances (1979).

    Args:
        func, x, rest: see `NeededNorm`.
        channel: of all ranks.
        first, last: where the own rows begin and end.

    Attributes:
        is_measured: whether the statistics are known.
    """

    __slots__ = ("_channel", "_count", "_first", "_last", "is_measured")

    def __init__(
        self, func: Any, x: Value, rest: Any, channel: Channel, first: int, last: int
    ) -> None:
        super().__init__(func, x, rest)
        self._channel, self._first, self._last, self._count = channel, first, last, 0.0
        self.is_measured = False

    @property
    def is_learning(self) -> bool:
        """Whether it changes the running statistics of a module."""
        return self.call[1][2] is not None

    def wanted(self, rows: Rows) -> Rows:
        """Return which rows are to be computed where some are asked for."""
        return Rows(self._last)

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        _, rest = self.call
        x: Tensor = self.inputs[0].at(rows)
        if not self.is_measured:
            self._measure(x[self._first :], rest)
            self.normalised, self.is_measured = rows, True
        return self.scaled(x, *rest[:2])

    def _measure(self, own: Tensor, rest: Any) -> None:
        """Exchange the statistics, and update those of the module."""
        running_mean, running_var, _, momentum, eps = rest[2:7]
        columns = own.size(1)
        mean, var = own.new_zeros(2, columns)
        if len(own) > 0:
            var, mean = torch.var_mean(own, 0, correction=0)
        count = mean.new_full((columns,), len(own))
        parts = torch.stack(of_ranks(self._channel, torch.stack([count, mean, var]).double()))
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
            means = (summed(self._channel, sums.double()) / self._count).to(x.dtype)
            scale = self.scale if weight is None else self.scale * weight
            of_x = torch.zeros_like(x)
            of_x[self._first :] = (own - means[0] - normal * means[1]) * scale
        return of_x, of_weight if mask[1] else None, of_bias if mask[2] else None
