"""Exchanges of bytes among the ranks of a process group, which fail on all ranks or on none."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from math import inf
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.buffers import new_array
from .board import Board, ExchangeError
from .exchange import NOT_INFERRING
from .traffic import ExchangeTraffic

POLL_SECONDS = 0.25  # how long one wait for other ranks takes, between looks at the clock
GLOO_REMARK = " This is typically caused by"  # and what gloo says behind it, in its errors
ALIGNMENT = 8  # of each array in a message

Bytes = npt.NDArray[np.uint8]
Arrays = Sequence[npt.NDArray[Any]]


_lost: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By group: why its ranks may be at different collectives, so that no more can follow."""


def packed(arrays: Arrays) -> list[Bytes]:
    """Return arrays as the pieces of a message, each a multiple of `ALIGNMENT` long."""
    pieces = []
    for array in arrays:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        pieces.append(content)
        if left := -len(content) % ALIGNMENT:
            pieces.append(np.zeros(left, np.uint8))
    return pieces


def is_lost(group: Any) -> bool:
    """Whether a collective of a group was given up on this rank; not of None."""
    return group is not None and group in _lost


def give_up(group: Any, reason: str) -> None:
    """Note that no more collectives of a group can follow, and let the process end without it.

    The destructor of a group of gloo joins a thread that waits for the ranks that do not answer, as
    long as the group's own timeout. So the group is never destroyed: it keeps one reference.
    """
    if group not in _lost:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))
    _lost[group] = reason


class Message:
    """Reads the arrays of a message, one after another.

    Raises:
        ValueError: it is shorter than what is read of it.
    """

    def __init__(self, content: Bytes) -> None:
        self._content, self._at = content, 0

    def take(self, dtype: Any, count: int) -> npt.NDArray[Any]:
        """Return the next array, of `count` elements."""
        size = np.dtype(dtype).itemsize * count
        first, last = self._at, self._at + size
        if count < 0 or last > len(self._content):
            raise ValueError(f"A message of {len(self._content)} bytes lacks some of {size}.")
        self._at = last + -size % ALIGNMENT
        return self._content[first:last].view(dtype)


class Channel:
    """The collectives of one thread; every rank makes the same ones in the same order.

    Args:
        group: a group of our own of gloo, or None for this process alone.
        timeout_seconds: how long to wait for the other ranks in one exchange.
        place: rank and number of ranks, where there is no group.
        board: where ranks tell of failures, which is read while this one waits for long.
    """

    def __init__(
        self,
        group: Any,
        timeout_seconds: float,
        place: tuple[int, int] = (0, 1),
        board: Board | None = None,
    ) -> None:
        self.group, self.timeout_seconds, self.board = group, timeout_seconds, board
        self.ended = False  # on all ranks at the same collective, so that the group is free
        self.rank, self.size = place
        if group is not None:
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.given_up = ""  # why this rank does not wait for the others any longer; in any thread
        self._last: Any = None  # the last collective
        self._collectives = 0
        self.waited_seconds = 0.0  # of this rank, blocked in collectives
        # By rank; of what they waited each tells in `open`.
        self._waits_us, self._sent, self._received, self._messages = np.zeros(
            (4, self.size), np.int64
        )

    def traffic(self) -> ExchangeTraffic:
        """Return what was exchanged so far; in any thread."""
        return ExchangeTraffic(
            collectives=self._collectives,
            sent_bytes=tuple(self._sent.tolist()),
            received_bytes=tuple(self._received.tolist()),
            messages=tuple(self._messages.tolist()),
            waiting_seconds=tuple((self._waits_us / 1e6).tolist()),
        )

    def open(
        self, words: Sequence[int], asked_since: Callable[[], float | None]
    ) -> list[list[int]]:
        """Return the words of all ranks, by rank: the first exchange of what they do together.

        Args:
            words: of this rank; as many on all.
            asked_since: see `_complete`.
        """
        said = np.array([*words, int(1e6 * self.waited_seconds)], np.int64)
        every = self.numbers(np.tile(said, (self.size, 1)), asked_since)
        self._waits_us[:] = every[:, -1]
        return every[:, :-1].tolist()  # type: ignore[no-any-return]

    def exchange(self, messages: Sequence[Sequence[Bytes]]) -> list[Message]:
        """Send messages[p] to rank p, and return what came from each; two collectives.

        The message of a rank to itself must be empty.

        Args:
            messages: for each rank, in pieces.
        """
        sizes = np.array([[sum(map(len, pieces))] for pieces in messages], np.int64)
        return self.send(messages, self.numbers(sizes)[:, 0].tolist())

    @NOT_INFERRING
    def union(self, bits: Bytes) -> Bytes:
        """Return fields of bits of all ranks as one; no two ranks may set the same bit.

        One collective. What is sent is counted as in a ring.
        """
        if self.group is None or len(bits) == 0:
            return bits
        found = torch.from_numpy(bits)
        # A sum is the union then; it is what all backends have.
        self._complete(lambda: dist.all_reduce(found, group=self.group, async_op=True), [found])
        self._count_ring(len(bits))
        return bits

    def _count_ring(self, num_bytes: int) -> None:
        share = 2 * (self.size - 1) * num_bytes // self.size
        self._sent[(self.rank + 1) % self.size] += share
        self._received[self.rank - 1] += share
        self._messages[(self.rank + 1) % self.size] += 1

    def send(
        self, messages: Sequence[Sequence[Bytes]], coming: Sequence[int], uncounted: int = 0
    ) -> list[Message]:
        """Send messages of which all ranks know the sizes; `coming` bytes from each rank.

        So many bytes of each message that is not empty are not counted as traffic.
        """
        sizes = [sum(map(len, pieces)) for pieces in messages]
        given, came = (new_array((sum(total),), torch.uint8) for total in (sizes, coming))
        at = 0
        for piece in (piece for pieces in messages for piece in pieces):
            given[at : at + len(piece)] = piece
            at += len(piece)
        self._all_to_all(came, given, coming, sizes)
        self._sent += [max(0, size - uncounted) for size in sizes]
        self._received += [max(0, size - uncounted) for size in coming]
        self._messages += np.array(sizes) > uncounted
        ends = np.cumsum([0, *coming]).tolist()
        return [Message(came[a:b]) for a, b in pairwise(ends)]

    def fail(self, text: str) -> None:
        """Tell the others why this rank has failed, and take part in no more collectives."""
        if self.board is not None:
            self.board.tell(text)
        if self.group is not None:
            give_up(self.group, text)

    def numbers(
        self,
        words: npt.NDArray[np.int64],
        asked_since: Callable[[], float | None] | None = None,
    ) -> npt.NDArray[np.int64]:
        """Send words[p] to rank p, and return those from each rank: int64 [ranks, n] both."""
        came = np.empty_like(words)
        each = [1] * self.size
        self._all_to_all(came, np.ascontiguousarray(words), each, each, asked_since)
        return came

    @NOT_INFERRING
    def _all_to_all(
        self,
        came: npt.NDArray[Any],
        given: npt.NDArray[Any],
        coming: Any,
        sizes: Any,
        asked_since: Callable[[], float | None] | None = None,
    ) -> None:
        if self.group is None:
            came[...] = given
            return
        into, of = torch.from_numpy(came), torch.from_numpy(given)
        self._complete(
            lambda: dist.all_to_all_single(
                into, of, list(coming), list(sizes), group=self.group, async_op=True
            ),
            [into, of],
            asked_since,
        )

    def _complete(
        self,
        begin: Callable[[], Any],
        tensors: Sequence[Any],
        asked_since: Callable[[], float | None] | None = None,
    ) -> None:
        """Begin a collective, and wait for it.

        Args:
            begin: begins it.
            tensors: that it reads and writes.
            asked_since: returns when a loop began to wait for what this leads to, None while none
                does: other ranks have as long as they want then. By default one waits from now on.

        Raises:
            ExchangeError: it was given up, or one before it.
        """
        if self.group in _lost:
            raise ExchangeError(
                f"An exchange before this one was given up, and no other can follow with these "
                f"loaders. Build them anew on all ranks. {_lost[self.group]}"
            )
        start, begun = perf_counter(), monotonic()

        def deadline() -> float:
            since = begun if asked_since is None else asked_since()
            return inf if since is None else max(since, begun) + self.timeout_seconds

        work = begin()
        try:
            self._wait(work, deadline)
        except BaseException as error:  # also where a user interrupts it
            give_up(self.group, str(error) or type(error).__name__)
            raise
        # Gloo's own thread may hold both a moment longer. If that made it free the arrays while the
        # interpreter ends, it would wait for the interpreter, which aborts the process.
        self._last = work, tensors
        self._collectives += 1
        self.waited_seconds += perf_counter() - start

    def _wait(self, work: Any, deadline: Callable[[], float]) -> None:
        """Wait for a collective, by polls, so that the thread can end.

        Args:
            work: the collective.
            deadline: returns until when.

        Raises:
            ExchangeError: a rank did not answer, is gone, or has failed.
        """
        while True:
            # One that is done while a poll ends raises the poll's error, and no other.
            done = work.is_completed()
            try:
                work.wait(timedelta(seconds=POLL_SECONDS))
                return
            except RuntimeError as error:
                if done:
                    raise ExchangeError(
                        self._told()
                        or f"The connection to another rank is lost, whose process may have ended: "
                        f"{str(error).partition(GLOO_REMARK)[0]}"
                    ) from error
            if self.given_up:
                raise ExchangeError(self.given_up)
            until = deadline()
            told = "" if until == inf else self._told()
            if told or monotonic() > until:
                raise ExchangeError(
                    told
                    or f"Another rank did not answer within {self.timeout_seconds:g} s: it was "
                    f"stopped, it pauses or takes other steps, or its machine cannot be reached. "
                    f"Each rank must take the same steps; timeout= sets how long they wait."
                )

    def _told(self) -> str:
        """Return what other ranks have told of failures, ""."""
        return "" if self.board is None else self.board.told_within(POLL_SECONDS)


def as_bytes(table: Tensor) -> Bytes:
    """Return a dense table [N, ...] as the bytes of its rows, uint8 [N, bytes], in its memory."""
    row = int(np.prod(table.shape[1:], dtype=np.int64))
    if table.numel() == 0:  # torch views no such table
        return np.empty((len(table), row * table.itemsize), np.uint8)
    rows: Bytes = table.view(len(table), row).view(torch.uint8).numpy()
    return rows
