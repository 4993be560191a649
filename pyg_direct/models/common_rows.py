"""Rows of a batch that ranks make together: which each has, and how they go between ranks."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from torch import Tensor

from ..core.cooperation import NodesInCommon, RowsBetween, SeedOutputs
from ..ops.staging import lists_on
from .common_messages import Moved, StepMessages
from .exchanged_values import AgreedExchange, WayBack

Lists = Sequence[Tensor]  # of rows, by rank


class RowBlocks:
    """Where the rows of a node type lie: the loop's seeds, own rows by hop, others' rows by hop.

    Attributes:
        nodes: what is known of them.
        seeds: where the own rows begin.
        own: [hops + 1], where the own rows of each hop end.
        others: [hops + 1], where those of the others end.
        num_rows: of the batch, with `filler` rows behind all of these.

    Example:
        Of 2 seeds, own rows by hop (1, 3) and others' (0, 2): seeds is 2, own (3, 6), others
        (6, 8). Messages that read rows up to 5 are of hop 1, as are those up to 7.
    """

    def __init__(self, nodes: NodesInCommon, filler: int) -> None:
        self.nodes = nodes
        self.seeds = nodes.num_seeds
        self.own = [self.seeds + count for count in accumulate(nodes.own_by_hop)]
        self.others = [self.own[-1] + count for count in accumulate(nodes.others_by_hop)]
        self.num_rows = self.others[-1] + filler

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

    def gone(self, computed: Tensor) -> Moved:
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

    def reach(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return self._blocks.others[self.asked], self._blocks.own[self.asked]

    def come(self, computed: Tensor, read: int, parts: Lists) -> Tensor:
        """See `AgreedExchange`."""
        own = self._blocks.own[-1]
        table = computed.new_empty(read, *computed.shape[1:])
        table[: len(computed)] = computed
        table[len(computed) : own] = 0  # which no message reads
        for rows, part in zip(lists_on(table.device, self._lists()[1]), parts, strict=True):
            table[own:][rows] = part
        return table

    def way_back(self) -> WayBack:
        """See `AgreedExchange`."""
        to, of = self._lists()
        blocks = self._blocks
        return _WayBack(self, of, to, (blocks.own[-1], blocks.seeds, blocks.own[self._hop]), True)


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

    def reach(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return self._blocks.seeds, self._blocks.own[0]

    def come(self, computed: Tensor, read: int, parts: Lists) -> Tensor:
        """See `AgreedExchange`."""
        found = computed.new_empty(read, *computed.shape[1:])
        for rows, part in zip(lists_on(found.device, self._outputs.receive), parts, strict=True):
            found[rows] = part
        return found

    def way_back(self) -> WayBack:
        """See `AgreedExchange`."""
        to, of = self._lists()
        return _WayBack(self, of, to, (0, self._blocks.seeds, self._blocks.own[0]), False)


class _WayBack(WayBack):
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

    def gone(self, grad: Tensor) -> Moved:
        """See `WayBack`."""
        table = grad[self._others :]
        return _moved(_back(self._title), self._made, table, self._to, self._of)

    def come(self, grad: Tensor, parts: Lists) -> Tensor:
        """See `WayBack`."""
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


def _moved(title: str, made: int, table: Tensor, to: Lists, of: Lists) -> Moved:
    parts = [table[rows] for rows in lists_on(table.device, to)]
    return Moved(title, made, parts, [len(rows) for rows in of])
