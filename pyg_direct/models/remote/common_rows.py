"""Rows of a batch that ranks make together: which each has, and how they travel between ranks.

A rank may have no node or edge of some type while others have many. All of them must run the same
operations, so it gets padding rows after all others, which nothing reads: at least two of each
type, and a number by which types can be told apart. Batch normalisation uses the statistics of the
rows of all ranks.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ...batch.edges import SampledEdges
from ...core.cooperation import Cooperation
from ..lazy.operations import NeededNorm
from ..lazy.values import Rows, Value
from .messages import Agreement, RowTransfer, StepMessages
from .values import OfRanks


class Statistics:
    """How ranks exchange what a norm takes of all their rows, and of their gradients.

    Args:
        messages: of the step.
        title: of the norm.
        columns: of its rows.
    """

    asked = 0  # ranks agree only that it is exchanged

    def __init__(self, messages: StepMessages, title: str, columns: int) -> None:
        self.messages, self.title = messages, title
        self._columns, self._made = columns, 0

    def take(self) -> None:
        """See `Agreement`."""
        self._made = self.messages.made
        once = [1] * self.messages.size
        for title, numbers in ((self.title, 3), (f"{self.title}, back", 2)):
            self.messages.expect(title, 8 * numbers * self._columns, once, once)

    def moved(self, numbers: Tensor, way: str = "") -> RowTransfer:
        """Return the numbers of this rank, [n, columns], for all ranks."""
        size = self.messages.size
        parts = [numbers.double()[None]] * size
        return RowTransfer(f"{self.title}{way}", self._made, parts, [1] * size)

    def summed(self, numbers: Tensor) -> Tensor:
        """Return the sums over all ranks, by rank order: the same bits on each."""
        (parts,) = self.messages.move([self.moved(numbers, ", back")])
        return torch.cat(parts).sum(0)


class CommonNorm(NeededNorm, OfRanks):
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
    def ranks(self) -> StepMessages | None:
        """See `OfRanks`."""
        return None if self.is_measured else self._exchange.messages

    @property
    def agreement(self) -> Agreement | None:
        """See `OfRanks`."""
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

    def to_send(self, rows: Rows) -> RowTransfer:
        """Return the number, the means and the variances of the own rows."""
        own: Tensor = self.inputs[0].at(rows)[self._first :]
        mean, var = own.new_zeros(2, own.size(1))
        if len(own) > 0:
            var, mean = torch.var_mean(own, 0, correction=0)
        count = mean.new_full((own.size(1),), len(own))
        return self._exchange.moved(torch.stack([count, mean, var]))

    def receive(self, rows: Rows, parts: list[Tensor]) -> Tensor:
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


FEWEST = 2  # rows of a type with which all operations of a step are possible
FEW_EDGES = 16  # lists of fewer may be equal by chance, and are told apart by what is added
MANY_EDGES = 1024  # which are not all self-loops


class PaddingRows:
    """Padding rows, added after those of each type.

    Args:
        edges: of the batch, with their types.
        common: what the batch says of its ranks.

    Attributes:
        nodes: how many rows are added to each node type.
        num_edges: number of edges without those that are added, by number with them.
        edges: with those that are added.
    """

    def __init__(self, edges: list[tuple[Any, SampledEdges]], common: Cooperation) -> None:
        self._num_nodes = {
            t: n.num_seeds + sum(n.own_by_hop) + sum(n.others_by_hop)
            for t, n in common.nodes.items()
        }
        self.nodes = dict.fromkeys(self._num_nodes, 0)
        self._added: dict[Any, tuple[int, int]] = {}  # by edge type: how many, and how many more
        counts = [sampled.size(1) for _, sampled in edges]
        taken = {count for count in counts if count >= FEWEST}
        for (key, sampled), count in zip(edges, counts, strict=True):
            more = FEWEST if common.size > 1 and _has_few(sampled) else 0
            while more and count + more in taken:
                more += 1
            self._added[key] = count, more
            taken.add(count + more)
            for t in _ends(key) if more else ():
                self.nodes[t] = FEWEST
        if common.size > 1:
            self._tell_apart()
        self.num_edges = {count + more: count for count, more in self._added.values()}
        self._filled = {id(sampled): self._with_more(key, sampled) for key, sampled in edges}
        self.edges = [(key, self._filled[id(sampled)]) for key, sampled in edges]

    def _tell_apart(self) -> None:
        """Let no two types have equally many rows, and each at least two."""
        taken: set[int] = set()
        for t, count in sorted(self._num_nodes.items(), key=lambda entry: self.nodes[entry[0]]):
            more = self.nodes[t] or (FEWEST if count < FEWEST else 0)
            while count + more in taken:
                more += 1
            self.nodes[t] = more
            taken.add(count + more)

    def _with_more(self, key: Any, sampled: SampledEdges) -> SampledEdges:
        more, hops = self._added[key][1], sampled.hops
        source, destination = _ends(key)
        extra = self.nodes[source] or self.nodes[destination]
        if not extra or hops is None:
            return sampled
        edges = sampled.as_tensor()
        if more:  # from a second row to a first one, so that no list is one of sources and of ends
            ends = [self._num_nodes[source] + 1, self._num_nodes[destination]]
            added = torch.tensor(ends, device=edges.device)[:, None].expand(2, more)
            edges = torch.cat([edges, added.to(edges.dtype)], 1)
        return SampledEdges(
            edges.contiguous(),
            hops._replace(
                source=(*hops.source[:-1], hops.source[-1] + self.nodes[source]),
                destination=(
                    *hops.destination[:-1],
                    hops.destination[-1] + self.nodes[destination],
                ),
                edge=(*hops.edge[:-1], hops.edge[-1] + more),
            ),
        )

    def of(self, value: Any, key: Any = None) -> Any:
        """Return arguments of a forward with the added rows, which are zero."""
        if not any(self.nodes.values()):
            return value
        if isinstance(value, SampledEdges):
            return self._filled[id(value)]
        if type(value) is dict:
            return {name: self.of(part, name) for name, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)([self.of(part, key) for part in value])
        if type(value) not in (Tensor, torch.nn.Parameter) or value.dim() == 0:
            return value
        more = self._more(key, len(value))
        if not more or value.layout != torch.strided:
            return value
        return torch.cat([value, value.new_zeros(more, *value.shape[1:])])

    def _more(self, key: Any, count: int) -> int:
        known = {t: (n, self.nodes[t]) for t, n in self._num_nodes.items()}
        known |= {k: v for k, v in self._added.items() if isinstance(k, tuple)}
        if key in known and key is not None:
            return known[key][1] if known[key][0] == count else 0
        fitting = {more for n, more in [*known.values(), *self._added.values()] if n == count}
        return fitting.pop() if len(fitting) == 1 else 0


def _ends(key: Any) -> tuple[Any, Any]:
    return (key[0], key[2]) if isinstance(key, tuple) else (None, None)


def _has_few(sampled: SampledEdges) -> bool:
    """Whether there are too few edges that are not self-loops."""
    source, destination = sampled.as_tensor()
    if len(source) >= MANY_EDGES:
        return False
    return int((source != destination).sum()) < FEW_EDGES
