"""The collectives of ranks that compute a step together, and which of them comes next.

All ranks know the size of each message. But a rank at another point of its program does not know
which message the others are at. So ranks say what they are at in numbers of a fixed size, before
the message itself. On the host that is left out where the same message followed the one before it
the last time: a rank that is not at it sends as many bytes, whose head says so.
"""

from __future__ import annotations

import weakref
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...core.cooperation import NodesInCommon, RowsBetween, SeedOutputs
from ...ops.devices import ends_in_call
from ...ops.staging import lists_on
from ...ranks.board import ExchangeError
from ...ranks.channel import ALIGNMENT, Channel, Kind, aligned

HEAD = 1  # number: what a rank is at
HEAD_KIND: Kind = (torch.int64, (HEAD,))
NUMBERS = 30  # that a rank says beside these, at a time
SPOKEN: tuple[str, ...] = ()  # stands for numbers that are said, of any titles


class Agreement(Protocol):
    """What all ranks must have the same number of before rows are exchanged.

    Attributes:
        title: what it is about; the same on all ranks.
        asked: the number that this rank needs at least; then that of all ranks.
    """

    title: str
    asked: int

    def take(self) -> None:
        """Go on with `asked`, which all ranks have; say which messages may follow."""


class RowTransfer(NamedTuple):
    """Rows of one kind in a message.

    Attributes:
        title: as it was expected.
        made: `StepMessages.made` at that time.
        parts: [n_p, ...] for each rank, of one dtype, on any device.
        counts: of the rows that come from each rank.
    """

    title: str
    made: int
    parts: Sequence[Tensor]
    counts: Sequence[int]

    def coming(self, p: int) -> Kind:
        """Return of which kind the rows are that come from rank p."""
        return self.parts[p].dtype, (self.counts[p], *self.parts[p].shape[1:])


class _Sizes(NamedTuple):
    """Bytes of rows in a message, by rank; `made` tells those of the same title apart."""

    made: int
    sent: list[int]
    coming: list[int]


class _CommonState:
    """What all ranks know alike, as they have taken part in the same collectives.

    Attributes:
        last: titles of the last message.
        following: those of the message that followed it the last time.
        sizes: of rows that may come, by title.
        agreements: how many there were.
    """

    def __init__(self) -> None:
        self.last, self.agreements = SPOKEN, 0
        self.following: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.sizes: dict[str, _Sizes] = {}


_known: weakref.WeakKeyDictionary[Any, _CommonState] = weakref.WeakKeyDictionary()
"""By group: several channels take part in its sequence of collectives."""


class StepMessages:
    """The collectives of a step.

    Args:
        channel: of the ranks.
    """

    def __init__(self, channel: Channel) -> None:
        self.channel, self.rank, self.size = channel, channel.rank, channel.size
        group: Any = channel.group
        self._known = _CommonState() if group is None else _known.setdefault(group, _CommonState())

    @property
    def made(self) -> int:
        """Tells what is agreed now from what was agreed before."""
        return self._known.agreements

    def agree(self, agreements: Sequence[Agreement]) -> bool:
        """Exchange what ranks ask for; return whether all ask for the same, which is taken then.

        One collective for each `NUMBERS` agreements.

        Raises:
            ExchangeError: a rank has failed, or is at something else.
        """
        asked = [each.asked for each in agreements]
        titles = tuple(each.title for each in agreements)
        chunks = range(0, len(asked), NUMBERS)
        every = torch.cat([self._say(titles, asked[i : i + NUMBERS]) for i in chunks], 1)
        for each, number in zip(agreements, every.amax(0).tolist(), strict=True):
            each.asked = number
        if not bool((every == every[0]).all()):
            return False
        self._known.agreements += 1
        self._known.last = "agreed", *titles
        for each in agreements:
            each.take()
        return True

    def expect(
        self, title: str, row_bytes: int, sent: Sequence[int], coming: Sequence[int]
    ) -> None:
        """Say that rows may go between ranks: so many to each and from each."""
        there, back = (
            [aligned(count * row_bytes) if p != self.rank else 0 for p, count in enumerate(counts)]
            for counts in (sent, coming)
        )
        self._known.sizes[title] = _Sizes(self.made, there, back)

    def move(self, moved: Sequence[RowTransfer]) -> list[list[Tensor]]:
        """Send rows to the other ranks, in one message to each; return those that come, by rank.

        A rank's part for itself is returned unchanged.

        Raises:
            ExchangeError: a rank has failed, or is at something else.
        """
        if self.size == 1:
            return [[*each.parts] for each in moved]
        titles = tuple(each.title for each in moved)
        messages = [[each.parts[p] for each in moved] for p in range(self.size)]
        coming = [[each.coming(p) for each in moved] for p in range(self.size)]
        known, came = self._known, None
        sizes = [known.sizes.get(title) for title in titles]
        mades = [None if size is None else size.made for size in sizes]
        if self._expected() == titles and mades == [each.made for each in moved]:
            came = self._sent(titles, messages, coming)
        if came is None:
            self._say(titles, [])
            came = self.channel.send(messages, coming)
        if ends_in_call(messages[0][0].device):
            known.following[known.last] = titles
        known.last = titles
        return [[*parts] for parts in zip(*came, strict=True)]

    def fail(self, text: str) -> None:
        """Tell the others why this rank has failed, which takes part in nothing any more."""
        self.channel.fail(text)

    def _expected(self) -> tuple[str, ...]:
        """Return the titles of the message that followed the last time."""
        known = self._known
        found = known.following.get(known.last, SPOKEN)
        return found if all(title in known.sizes for title in found) else SPOKEN

    def _leave_out(self) -> None:
        """Take part in the message that is expected, without its rows."""
        expected, known = self._expected(), self._known
        if expected == SPOKEN:
            return
        sizes = [known.sizes[title] for title in expected]
        sent, coming = (
            [sum(numbers) for numbers in zip(*lists, strict=True)]
            for lists in ([s.sent for s in sizes], [s.coming for s in sizes])
        )
        nothing = [[torch.zeros(size, dtype=torch.uint8)] for size in sent]
        self._sent(SPOKEN, nothing, [[(torch.uint8, (size,))] for size in coming])

    def _sent(
        self, titles: tuple[str, ...], messages: Any, coming: list[list[Kind]]
    ) -> list[list[Tensor]] | None:
        """Send messages after their heads; None if a rank is at another message."""
        head = torch.tensor([_tag(titles)])
        came = self.channel.send(
            [[head, *tensors] for tensors in messages],
            [[HEAD_KIND, *kinds] for kinds in coming],
            ALIGNMENT,
        )
        if titles != SPOKEN and all(torch.equal(of_rank[0], head) for of_rank in came):
            return [of_rank[1:] for of_rank in came]
        self._forget()
        return None

    def _forget(self) -> None:
        self._known.following.pop(self._known.last, None)

    def _say(self, titles: tuple[str, ...], numbers: Sequence[int]) -> Tensor:
        """Return the numbers of all ranks, [ranks, n]; all of them must be at the same."""
        self._leave_out()
        self._forget()
        words = torch.zeros(HEAD + NUMBERS, dtype=torch.int64)
        words[: HEAD + len(numbers)] = torch.tensor([_tag(titles), *numbers])
        every = self.channel.numbers(words.expand(self.size, -1))
        if bool((every[:, 0] != _tag(titles)).any()):
            raise ExchangeError(
                f"The ranks do not run the same model on a batch that they make together: this one "
                f"is at {', '.join(titles)}. Each must call the same model at each step, and run "
                f"the backward of what it returns."
            )
        return every[:, HEAD : HEAD + len(numbers)]


def _tag(titles: tuple[str, ...]) -> int:
    return zlib.crc32("\n".join(titles).encode())


Lists = Sequence[Tensor]  # of rows, by rank


class RowBlocks:
    """The layout of the rows of a node type: the loop's seeds, own rows by hop, others' by hop.

    Attributes:
        nodes: what is known of them.
        seeds: where the own rows begin.
        own: [hops + 1], where the own rows of each hop end.
        others: [hops + 1], where those of the others end.
        num_rows: of the batch, with `padding` rows after all of these.

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


class AgreedExchange:
    """An exchange of rows between ranks, once they agree on the number of hops that are read.

    Args:
        messages: of the step.
        blocks: of the node type.
        title: the name of the value; the same on all ranks.
        row_bytes: of one row.

    Attributes:
        asked: number of the last hop that is read.
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

    def ask(self, end: int) -> bool:
        """Tell that messages read rows up to `end`; return whether the agreement covers them."""
        raise NotImplementedError

    def extent(self, count: int) -> tuple[int, int]:
        """See `RowExchange`; the same for any count, once the hops are agreed."""
        raise NotImplementedError

    def receive(self, computed: Tensor, read: int, parts: Lists) -> Tensor:
        """Return the first `read` rows, with the parts of all ranks; see `RowExchange.forward`."""
        raise NotImplementedError

    def gradient_exchange(self) -> GradientExchange:
        """Return the exchange of the gradients of what is agreed now."""
        raise NotImplementedError

    def take(self) -> None:
        """See `Agreement`."""
        self._made = self.messages.made
        sent, coming = ([len(rows) for rows in lists] for lists in self._lists())
        self.messages.expect(self.title, self._row_bytes, sent, coming)
        self.messages.expect(_back(self.title), self._row_bytes, coming, sent)

    def to_send(self, computed: Tensor) -> RowTransfer:
        """Return the rows to send to other ranks."""
        to, of = self._lists()
        return _moved(self.title, self._made, computed[self._blocks.seeds :], to, of)


class SourceRows(AgreedExchange):
    """The rows of a value that messages read: own ones, and others' from the ranks that have them.

    Args:
        messages, blocks, title, row_bytes: see `AgreedExchange`.
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
        return GradientExchange(
            self, of, to, (blocks.own[-1], blocks.seeds, blocks.own[self._hop]), True
        )


class OutputRows(AgreedExchange):
    """The rows of the loop's seeds, from the ranks that have computed them.

    Args:
        messages, blocks, title, row_bytes: see `AgreedExchange`.
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
        return GradientExchange(self, of, to, (0, self._blocks.seeds, self._blocks.own[0]), False)


class GradientExchange:
    """How gradients of received rows are sent back to the ranks that computed the rows.

    Args:
        between: how the rows came, as it is agreed now.
        to: which rows of the others go back to each rank.
        of: to which own rows what comes from each rank is added.
        places: where the rows of the others begin, where the own rows do, and where these end.
        has_own: whether own rows were read in place, so that they have gradients already.
    """

    def __init__(
        self,
        between: AgreedExchange,
        to: Lists,
        of: Lists,
        places: tuple[int, int, int],
        has_own: bool,
    ) -> None:
        self.messages, self._title, self._made = between.messages, between.title, between._made
        self._to, self._of, self._has_own = to, of, has_own
        self._others, self._first, self._end = places

    def to_send(self, grad: Tensor) -> RowTransfer:
        """Return the rows to send to other ranks."""
        table = grad[self._others :]
        return _moved(_back(self._title), self._made, table, self._to, self._of)

    def receive(self, grad: Tensor, parts: Lists) -> Tensor:
        """Return the gradient of the rows that were given, with the parts of all ranks."""
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
