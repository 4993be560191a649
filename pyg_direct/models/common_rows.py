"""Rows of a batch that ranks make together: which each has, and how they go between ranks."""

from __future__ import annotations

import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate

import numpy as np
from torch import Tensor

from ..core.cooperation import NodesInCommon, RowsBetween, SeedOutputs
from ..ops.staging import empty_for, lists_on, to_device, to_host
from ..ranks.channel import ALIGNMENT, Channel, ExchangeError, packed
from ..ranks.rows import as_bytes
from .row_exchange import AgreedExchange

HOP_BITS = 8  # of the number by which ranks agree; the others tell what they agree about


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


def sent_rows(channel: Channel, parts: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Send parts[p] to each other rank p, and return its `counts[p]` rows for this one.

    Args:
        channel: of all ranks, which call this at the same place.
        parts: [n_p, ...] for each rank, of one dtype; `parts[rank]` is returned as it is.
        counts: of the rows that come.

    Raises:
        ExchangeError: a rank has failed, or sends something else.
    """
    own = parts[channel.rank]
    if channel.size == 1:
        return [own]
    others = [part if p != channel.rank else part[:0] for p, part in enumerate(parts)]
    messages = [packed([as_bytes(part.contiguous())]) for part in to_host(others)]
    each = int(np.prod(own.shape[1:], dtype=np.int64)) * own.element_size()
    sizes = [count * each if p != channel.rank else 0 for p, count in enumerate(counts)]
    came = channel.exchange(messages, [size + -size % ALIGNMENT for size in sizes])
    found = []
    for p, (message, size) in enumerate(zip(came, sizes, strict=True)):
        if p == channel.rank:
            found.append(own)
            continue
        rows = empty_for(own.device, (counts[p], *own.shape[1:]), own.dtype)
        as_bytes(rows).reshape(-1)[:] = message.take(np.uint8, size)
        found.append(to_device(rows, own.device))
    return found


class SourceRows(AgreedExchange):
    """The rows of a value that messages read: own ones, and others' from the ranks that have them.

    Args:
        channel: of all ranks.
        blocks: of the node type.
        title: what the value is; the same on all ranks.
    """

    def __init__(self, channel: Channel, blocks: RowBlocks, title: str) -> None:
        self._channel, self._blocks, self._title = channel, blocks, title
        self._asked = self._hop = -1

    def ask(self, end: int) -> bool:
        """See `AgreedExchange`."""
        hop = self._blocks.hop(end)
        self._asked = max(self._asked, hop)
        return hop <= self._hop

    def agree(self) -> None:
        """See `AgreedExchange`."""
        tag = zlib.crc32(self._title.encode()) << HOP_BITS
        every = self._channel.compared(tag | max(0, self._asked))
        if any(number >> HOP_BITS << HOP_BITS != tag for number in every):
            raise ExchangeError(
                f"The ranks do not run the same model on a batch that they make together: this one "
                f"is at {self._title}. Each must call the same model at each step, and run the "
                f"backward of what it returns."
            )
        self._hop = max(self._hop, *(number - tag for number in every))

    def reach(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return self._blocks.others[self._hop], self._blocks.own[self._hop]

    def forward(self, computed: Tensor, read: int) -> Tensor:
        """See `RowExchange`."""
        blocks = self._blocks
        table = computed.new_empty(read, *computed.shape[1:])
        table[: len(computed)] = computed
        table[len(computed) : blocks.own[-1]] = 0  # which no message reads
        to, of = _within(self._hop, blocks.nodes.send), _within(self._hop, blocks.nodes.receive)
        for rows, part in _moved(self._channel, computed[blocks.seeds :], to, of):
            table[blocks.own[-1] :][rows] = part
        return table

    def backward(self, grad: Tensor) -> Tensor:
        """See `RowExchange`."""
        return self._returned(self._hop, grad)

    def way_back(self) -> Callable[[Tensor], Tensor]:
        """See `AgreedExchange`."""
        return partial(self._returned, self._hop)

    def _returned(self, hop: int, grad: Tensor) -> Tensor:
        """Return the gradient of the own rows within a hop."""
        blocks = self._blocks
        found = grad[: blocks.own[hop]].clone()
        to, of = _within(hop, blocks.nodes.receive), _within(hop, blocks.nodes.send)
        for rows, part in _moved(self._channel, grad[blocks.own[-1] :], to, of):
            found[blocks.seeds :].index_add_(0, rows, part)
        return found


class OutputRows:
    """The rows of the loop's seeds, from the ranks that have computed them: a `RowExchange`.

    Args:
        channel: of all ranks.
        blocks: of the seeds' node type.
        outputs: who has which.
    """

    def __init__(self, channel: Channel, blocks: RowBlocks, outputs: SeedOutputs) -> None:
        self._channel, self._blocks, self._outputs = channel, blocks, outputs

    def reach(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return self._blocks.seeds, self._blocks.own[0]

    def forward(self, computed: Tensor, read: int) -> Tensor:
        """See `RowExchange`."""
        found = computed.new_empty(read, *computed.shape[1:])
        own, outputs = computed[self._blocks.seeds :], self._outputs
        for rows, part in _moved(self._channel, own, outputs.send, outputs.receive):
            found[rows] = part
        return found

    def backward(self, grad: Tensor) -> Tensor:
        """See `RowExchange`."""
        found = grad.new_zeros(self._blocks.own[0], *grad.shape[1:])
        outputs = self._outputs
        for rows, part in _moved(self._channel, grad, outputs.receive, outputs.send):
            found[self._blocks.seeds :].index_add_(0, rows, part)
        return found


def _within(hop: int, between: RowsBetween) -> list[Tensor]:
    """Return the numbers of the rows that edges read up to a hop, by rank."""
    pairs = zip(between.rows, between.by_hop, strict=True)
    return [rows[: sum(by_hop[: hop + 1])] for rows, by_hop in pairs]


def _moved(
    channel: Channel, table: Tensor, to: Sequence[Tensor], of: Sequence[Tensor]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Send rows to[p] of a table to each rank p; yield (of[p], what came from it)."""
    lists = lists_on(table.device, [*to, *of])
    to, of = lists[: len(to)], lists[len(to) :]
    came = sent_rows(channel, [table[rows] for rows in to], [len(rows) for rows in of])
    yield from zip(of, came, strict=True)
