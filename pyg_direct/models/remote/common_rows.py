"""Rows of a batch that ranks make together: which each has, and how they travel between ranks.

A rank may have no node or edge of some type while others have many. All of them must run the same
operations, so it gets padding rows after all others, which nothing reads: at least two of each
type, and a number by which types can be told apart. Batch normalisation uses the statistics of the
rows of all ranks.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from ...batch.edges import SampledEdges
from ...core.cooperation import Cooperation, NodesInCommon, RowsBetween, SeedOutputs
from ...ops.staging import lists_on
from ..lazy.operations import NeededNorm
from ..lazy.values import Rows, Value
from .messages import RowTransfer, StepMessages
from .values import AgreedExchange, GradientExchange, OfRanks

Lists = Sequence[Tensor]  # of rows, by rank


class RowBlocks:
    """Where the rows of a node type lie: the loop's seeds, own rows by hop, others' rows by hop.

    Attributes:
        nodes: what is known of them.
        seeds: where the own rows begin.
        own: [hops + 1], where the own rows of each hop end.
        others: [hops + 1], where those of the others end.
        num_rows: of the batch, with `padding` rows behind all of these.

    Example:
        Of 2 seeds, own rows by hop (1, 3) and others' (0, 2): seeds is 2, own (3, 6), others
        (6, 8). Messages that read rows up to 5 are of hop 1, as are those up to 7.
    """

    def __init__(self, nodes: NodesInCommon, padding: int) -> None:
        self.nodes = nodes
        self.seeds = nodes.num_seeds
        self.own = [self.seeds + count for count in accumulate(nodes.own_by_hop)]
        self.others = [self.own[-1] + count for count in accumulate(nodes.others_by_hop)]
        self.num_rows = self.others[-1] + padding

    def hop(self, end: int) -> int:
        """Return the hop within which all rows up to `end` are, of messages up to some hop.

        Where the others' rows of several hops end there, it is the last of these.
        """
        if end <= self.own[-1]:
            return bisect_left(self.own, end)
        if end > self.others[-1]:
            return len(self.own) - 1
        first = bisect_left(self.others, end)
        return bisect_right(self.others, self.others[first]) - 1


class _Between(AgreedExchange):
    """Rows that go between ranks, once all agree on how many hops are read.

    Args:
        messages: of the step.
        blocks: of the node type.
        title: what the value is; the same on all ranks.
        row_bytes: of one row.
    """

    def __init__(
        self, messages: StepMessages, blocks: RowBlocks, title: str, row_bytes: int
    ) -> None:
        self.messages, self.title, self.asked = messages, title, 0
        self._blocks, self._row_bytes = blocks, row_bytes
        self._made = 0

    def _lists(self) -> tuple[Lists, Lists]:
        """Return which own rows go to each rank, and which rows come from each."""
        raise NotImplementedError

    def take(self) -> None:
        """See `Agreement`."""
        self._made = self.messages.made
        sent, coming = ([len(rows) for rows in lists] for lists in self._lists())
        self.messages.expect(self.title, self._row_bytes, sent, coming)
        self.messages.expect(_back(self.title), self._row_bytes, coming, sent)

    def to_send(self, computed: Tensor) -> RowTransfer:
        """See `AgreedExchange`."""
        to, of = self._lists()
        return _moved(self.title, self._made, computed[self._blocks.seeds :], to, of)


class SourceRows(_Between):
    """The rows of a value that messages read: own ones, and others' from the ranks that have them.

    Args:
        messages, blocks, title, row_bytes: see `_Between`.
    """

    _hop = -1  # up to which the ranks have agreed to read

    def ask(self, end: int) -> bool:
        """See `AgreedExchange`."""
        hop = self._blocks.hop(end)
        self.asked = max(self.asked, hop)
        return hop <= self._hop

    def take(self) -> None:
        """See `Agreement`."""
        self._hop = self.asked
        super().take()

    def _lists(self) -> tuple[Lists, Lists]:
        nodes = self._blocks.nodes
        return _within(self._hop, nodes.send), _within(self._hop, nodes.receive)

    def extent(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return self._blocks.others[self.asked], self._blocks.own[self.asked]

    def receive(self, computed: Tensor, read: int, parts: Lists) -> Tensor:
        """See `AgreedExchange`."""
        own = self._blocks.own[-1]
        table = computed.new_empty(read, *computed.shape[1:])
        table[: len(computed)] = computed
        table[len(computed) : own] = 0  # which no message reads
        for rows, part in zip(lists_on(table.device, self._lists()[1]), parts, strict=True):
            table[own:][rows] = part
        return table

    def gradient_exchange(self) -> GradientExchange:
        """See `AgreedExchange`."""
        to, of = self._lists()
        blocks = self._blocks
        return _GradientExchange(
            self, of, to, (blocks.own[-1], blocks.seeds, blocks.own[self._hop]), True
        )


class OutputRows(_Between):
    """The rows of the loop's seeds, from the ranks that have computed them.

    Args:
        messages, blocks, title, row_bytes: see `_Between`.
        outputs: who has which.
    """

    def __init__(
        self,
        messages: StepMessages,
        blocks: RowBlocks,
        title: str,
        row_bytes: int,
        outputs: SeedOutputs,
    ) -> None:
        super().__init__(messages, blocks, title, row_bytes)
        self._outputs = outputs

    def ask(self, end: int) -> bool:
        """See `AgreedExchange`."""
        return self._made > 0

    def _lists(self) -> tuple[Lists, Lists]:
        return self._outputs.send, self._outputs.receive

    def extent(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return self._blocks.seeds, self._blocks.own[0]

    def receive(self, computed: Tensor, read: int, parts: Lists) -> Tensor:
        """See `AgreedExchange`."""
        found = computed.new_empty(read, *computed.shape[1:])
        for rows, part in zip(lists_on(found.device, self._outputs.receive), parts, strict=True):
            found[rows] = part
        return found

    def gradient_exchange(self) -> GradientExchange:
        """See `AgreedExchange`."""
        to, of = self._lists()
        return _GradientExchange(self, of, to, (0, self._blocks.seeds, self._blocks.own[0]), False)


class _GradientExchange(GradientExchange):
    """The way of the gradients of rows to the ranks that have computed them.

    Args:
        between: how the rows came, as it is agreed now.
        to: which rows of the others go back to each rank.
        of: to which own rows what comes from each rank is added.
        places: where the rows of the others begin, where the own rows do, and where these end.
        has_own: whether own rows were read in place, so that they have gradients already.
    """

    def __init__(
        self,
        between: _Between,
        to: Lists,
        of: Lists,
        places: tuple[int, int, int],
        has_own: bool,
    ) -> None:
        self.messages, self._title, self._made = between.messages, between.title, between._made
        self._to, self._of, self._has_own = to, of, has_own
        self._others, self._first, self._end = places

    def to_send(self, grad: Tensor) -> RowTransfer:
        """See `GradientExchange`."""
        table = grad[self._others :]
        return _moved(_back(self._title), self._made, table, self._to, self._of)

    def receive(self, grad: Tensor, parts: Lists) -> Tensor:
        """See `GradientExchange`."""
        if self._has_own:
            found = grad[: self._end].clone()
        else:
            found = grad.new_zeros(self._end, *grad.shape[1:])
        for rows, part in zip(lists_on(found.device, self._of), parts, strict=True):
            found[self._first :].index_add_(0, rows, part)
        return found


def _back(title: str) -> str:
    return f"{title}, back"


def _within(hop: int, between: RowsBetween) -> list[Tensor]:
    """Return the numbers of the rows that edges read up to a hop, by rank."""
    pairs = zip(between.rows, between.by_hop, strict=True)
    return [rows[: sum(by_hop[: hop + 1])] for rows, by_hop in pairs]


def _moved(title: str, made: int, table: Tensor, to: Lists, of: Lists) -> RowTransfer:
    parts = [table[rows] for rows in lists_on(table.device, to)]
    return RowTransfer(title, made, parts, [len(rows) for rows in of])


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
    def ranks(self) -> Any:
        """See `OfRanks`."""
        return None if self.is_measured else self._exchange.messages

    @property
    def agreement(self) -> Any:
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

    def receive(self, rows: Rows, parts: Any) -> Tensor:
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
    """How many rows are added behind those of each type.

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
    """Whether there are too few edges that are no self-loops."""
    source, destination = sampled.as_tensor()
    if len(source) >= MANY_EDGES:
        return False
    return int((source != destination).sum()) < FEW_EDGES
