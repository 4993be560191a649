"""The collectives of ranks that compute a step together, and which of them comes next.

All ranks know the size of each message. But a rank that is elsewhere in its program does not know
which message the others are at. So ranks say what they are at in numbers of a fixed size, before
the message itself. That is left out where the same message followed the one before it the last
time: a rank that is not at it sends as many bytes, whose head says so.
"""

from __future__ import annotations

import weakref
import zlib
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...ops.staging import empty_for, to_device, to_host
from ...ranks.board import ExchangeError
from ...ranks.channel import ALIGNMENT, Bytes, Channel, Message, as_bytes, packed

HEAD = 1  # number: what a rank is at
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


class Moved(NamedTuple):
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

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        part = self.parts[0]
        return int(np.prod(part.shape[1:], dtype=np.int64)) * part.element_size()


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
        every = np.concatenate([self._say(titles, asked[i : i + NUMBERS]) for i in chunks], 1)
        for each, number in zip(agreements, every.max(0).tolist(), strict=True):
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
            [_aligned(count * row_bytes) if p != self.rank else 0 for p, count in enumerate(counts)]
            for counts in (sent, coming)
        )
        self._known.sizes[title] = _Sizes(self.made, there, back)

    def move(self, moved: Sequence[Moved]) -> list[list[Tensor]]:
        """Send rows to the other ranks, in one message to each; return those that come, by rank.

        A rank's part for itself is returned as it is.

        Raises:
            ExchangeError: a rank has failed, or is at something else.
        """
        found = [[*each.parts] for each in moved]
        if self.size == 1:
            return found
        titles = tuple(each.title for each in moved)
        messages: list[list[Bytes]] = [[] for _ in range(self.size)]
        coming = [0] * self.size
        there = [p for p in range(self.size) if p != self.rank]
        rows = iter(to_host([each.parts[p] for p in there for each in moved]))
        for p in there:
            messages[p] = packed([as_bytes(next(rows).contiguous()) for _ in moved])
            coming[p] = sum(_aligned(each.counts[p] * each.row_bytes) for each in moved)
        known, came = self._known, None
        sizes = [known.sizes.get(title) for title in titles]
        mades = [None if size is None else size.made for size in sizes]
        if self._expected() == titles and mades == [each.made for each in moved]:
            came = self._sent(titles, messages, coming)
        if came is None:
            self._say(titles, [])
            came = self._sent(titles, messages, coming)
        assert came is not None  # all have said that they are at it
        known.following[known.last] = known.last = titles
        for parts, each in zip(found, moved, strict=True):
            own = parts[self.rank]
            for p in there:
                part = empty_for(own.device, (each.counts[p], *own.shape[1:]), own.dtype)
                content = came[p].take(np.uint8, each.counts[p] * each.row_bytes)
                as_bytes(part).reshape(-1)[:] = content
                parts[p] = to_device(part, own.device)
        return found

    def fail(self, text: str) -> None:
        """Tell the others why this rank has failed, which takes part in nothing any more."""
        self.channel.fail(text)

    def _expected(self) -> tuple[str, ...]:
        """Return the titles of the message that ranks which go on as the last time are at."""
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
        self._sent(SPOKEN, [[np.zeros(size, np.uint8)] for size in sent], coming)

    def _sent(
        self, titles: tuple[str, ...], messages: Any, coming: list[int]
    ) -> list[Message] | None:
        """Send messages behind their heads; None if a rank is not at them."""
        head = np.array([_tag(titles)], np.int64).view(np.uint8)
        headed = [[head, *pieces] if p != self.rank else [] for p, pieces in enumerate(messages)]
        sizes = [size + len(head) if p != self.rank else 0 for p, size in enumerate(coming)]
        came = self.channel.send(headed, sizes, len(head))
        heads = [
            message.take(np.int64, HEAD)[0] if p != self.rank else _tag(titles)
            for p, message in enumerate(came)
        ]
        if all(tag == _tag(titles) for tag in heads) and titles != SPOKEN:
            return came
        self._forget()
        return None

    def _forget(self) -> None:
        self._known.following.pop(self._known.last, None)

    def _say(self, titles: tuple[str, ...], numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        """Return the numbers of all ranks, [ranks, n]; all of them must be at the same."""
        self._leave_out()
        self._forget()
        every = self._spoken(titles, numbers)
        if (every[:, 0] != _tag(titles)).any():
            raise ExchangeError(
                f"The ranks do not run the same model on a batch that they make together: this one "
                f"is at {', '.join(titles)}. Each must call the same model at each step, and run "
                f"the backward of what it returns."
            )
        return every[:, HEAD : HEAD + len(numbers)]

    def _spoken(self, titles: tuple[str, ...], numbers: Sequence[int]) -> npt.NDArray[np.int64]:
        words = np.zeros(HEAD + NUMBERS, np.int64)
        words[: HEAD + len(numbers)] = [_tag(titles), *numbers]
        return self.channel.numbers(np.tile(words, (self.size, 1)))


def _tag(titles: tuple[str, ...]) -> int:
    return zlib.crc32("\n".join(titles).encode())


def _aligned(size: int) -> int:
    return size + -size % ALIGNMENT
