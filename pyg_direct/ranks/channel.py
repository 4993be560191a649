"""Exchanges of bytes among the ranks of a process group, which fail on all ranks or on none."""

from __future__ import annotations

import ctypes
import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import pairwise
from time import monotonic, perf_counter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.buffers import new_array
from .exchange import NOT_INFERRING, gathered
from .traffic import ExchangeTraffic

# What a rank says of itself in each exchange of sizes.
IDLE, WORKING, CLOSED, LEAVING, FAILED = range(5)

POLL_SECONDS = 0.25  # how long one wait for other ranks takes, between looks at the clock
ALIGNMENT = 8  # of each array in a message

Bytes = npt.NDArray[np.uint8]
Arrays = Sequence[npt.NDArray[Any]]


_lost: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By group: why its ranks may be at different collectives, so that no more can follow."""


class ExchangeError(RuntimeError):
    """The ranks cannot go on together, and all of them know; the message says why."""


class OtherRankError(Exception):
    """Another rank has failed, which tells why in the next exchange of sizes."""


def packed(arrays: Arrays) -> list[Bytes]:
    """Return arrays as the pieces of a message, each a multiple of `ALIGNMENT` long."""
    pieces = []
    for array in arrays:
        content = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        pieces.append(content)
        if left := -len(content) % ALIGNMENT:
            pieces.append(np.zeros(left, np.uint8))
    return pieces


class RankWord(NamedTuple):
    """What a rank says at the begin of a round."""

    status: int
    batches: int  # that it is to make
    offers: bool  # whether it waits to `gather`
    step: int  # that these are of, where ranks make the same step together; 0 where they do not


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


def meet(group: Any, way: str, value: Any, seconds: float, device: torch.device) -> list[Any]:
    """Return the values of all ranks, by rank, once all are here: the first exchange of a loader.

    Args:
        group: a process group, of any backend.
        way: how this rank's loader works with the others, for messages.
        value: of this rank; can be pickled.
        seconds: to wait for the others, where gloo serves the group's tensors on the CPU; other
            backends wait as long as the group's own timeout says.
        device: of this rank; see `exchange.gathered`.

    Raises:
        ExchangeError: not all ranks came in time.
        ValueError: the ranks' loaders work in different ways; on all ranks.
    """
    if "gloo" in dist.get_backend_config(group):
        said = Channel(group, seconds).values((way, value))
    else:
        said = gathered((way, value), group, device)
    if len({way for way, _ in said}) > 1:
        ways = "; ".join(f"rank {rank}: {way}" for rank, (way, _) in enumerate(said))
        raise ValueError(
            f"The ranks iterate loaders that work together in different ways: {ways}. Build the "
            f"loaders with the same arguments on all ranks, and iterate them in the same order."
        )
    return [value for _, value in said]


def ranks_agree(every: Sequence[RankWord]) -> bool:
    """Whether the ranks make batches in a round: some do, and all ask for the same step."""
    return any(word.batches for word in every) and len({word.step for word in every}) == 1


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

    def rest(self) -> bytes:
        """Return what was not taken."""
        return self._content[self._at :].tobytes()


class Channel:
    """The collectives of one thread; every rank makes the same ones in the same order.

    Args:
        group: a group of our own of gloo, or None for this process alone.
        timeout_seconds: how long to wait for the other ranks in one exchange.
        place: rank and number of ranks, where there is no group.
    """

    def __init__(self, group: Any, timeout_seconds: float, place: tuple[int, int] = (0, 1)) -> None:
        self.group, self.timeout_seconds = group, timeout_seconds
        self.ended = False  # on all ranks at the same collective, so that the group is free
        self.rank, self.size = place
        if group is not None:
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.abandoned = threading.Event()  # set where the process ends, whatever the others do
        # Raises what made others give up elsewhere; asked while this thread waits for them.
        self.watch: Callable[[], None] | None = None
        self._last: Any = None  # the last collective
        self._collectives = self._idle_rounds = 0
        self.waited_seconds = 0.0  # of this rank, blocked in collectives, but for idle rounds
        # By rank; of what they waited each tells in `open`.
        self._waits_us, self._sent, self._received, self._messages = np.zeros(
            (4, self.size), np.int64
        )

    def traffic(self) -> ExchangeTraffic:
        """Return what was exchanged so far; in any thread."""
        return ExchangeTraffic(
            collectives=self._collectives,
            idle_rounds=self._idle_rounds,
            sent_bytes=tuple(self._sent.tolist()),
            received_bytes=tuple(self._received.tolist()),
            messages=tuple(self._messages.tolist()),
            waiting_seconds=tuple((self._waits_us / 1e6).tolist()),
        )

    def open(self, word: RankWord, failure: str | None) -> list[RankWord]:
        """Return what each rank does in a round, at its begin.

        Args:
            word: of this rank.
            failure: the text of its failure, if it has failed.

        Raises:
            ExchangeError: a rank has failed, with its text.
        """
        waited_us, before = int(1e6 * self.waited_seconds), self.waited_seconds
        status = FAILED if failure else word.status
        words = np.array([status, word.batches, word.offers, word.step, waited_us], np.int64)
        every = self.numbers(np.tile(words, (self.size, 1)))
        self._check(every[:, 0], failure)
        self._waits_us[:] = every[:, 4]
        said = [
            RankWord(s, count, offers == 1, step) for s, count, offers, step, _ in every.tolist()
        ]
        if not ranks_agree(said):
            self._idle_rounds, self.waited_seconds = self._idle_rounds + 1, before
            self._collectives -= self.group is not None
        return said

    def exchange(self, messages: Sequence[Sequence[Bytes]]) -> list[Message]:
        """Send messages[p] to rank p, and return what came from each; two collectives.

        The message of a rank to itself must be empty.

        Args:
            messages: for each rank, in pieces.

        Raises:
            ExchangeError: a rank has failed in place of it.
        """
        every = self._sizes(messages)
        self._check(every[:, 0], None)
        return self.send(messages, every[:, 1].tolist())

    def gather(self, value: bytes) -> list[bytes]:
        """Return the values of all ranks, by rank; two collectives."""
        content = np.frombuffer(value, np.uint8)
        messages = [[content] if p != self.rank else [] for p in range(self.size)]
        came = self.send(messages, self._sizes(messages)[:, 1].tolist())
        return [value if p == self.rank else came[p].rest() for p in range(self.size)]

    def values(self, value: Any) -> list[Any]:
        """Return what `gather` does of values that can be pickled."""
        return [pickle.loads(came) for came in self.gather(pickle.dumps(value))]

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

    def _sizes(self, messages: Sequence[Sequence[Bytes]]) -> npt.NDArray[np.int64]:
        """Return the status of each rank, and the bytes that come from it: int64 [ranks, 2]."""
        sizes = np.array([sum(map(len, pieces)) for pieces in messages], np.int64)
        return self.numbers(np.stack([np.full(self.size, WORKING), sizes], 1))

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
        """Tell the others, who are at their next exchange of sizes, why this rank has failed.

        Raises:
            ExchangeError: always, with the texts of all that failed.
        """
        self.numbers(np.tile(np.array([FAILED, 0], np.int64), (self.size, 1)))
        self.tell(text)

    def _check(self, statuses: npt.NDArray[np.int64], failure: str | None) -> None:
        if (statuses == FAILED).any():
            self.tell(failure or "")

    def tell(self, text: str) -> None:
        """Exchange the texts of all ranks, and raise them; two collectives."""
        texts = [value.decode() for value in self.gather(text.encode())]
        failed = [f"Rank {p} failed: {text}" for p, text in enumerate(texts) if text]
        raise ExchangeError("\n".join(failed) or "A rank failed.")

    def numbers(self, words: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Send words[p] to rank p, and return those from each rank: int64 [ranks, n] both."""
        came = np.empty_like(words)
        each = [1] * self.size
        self._all_to_all(came, np.ascontiguousarray(words), each, each)
        return came

    @NOT_INFERRING
    def _all_to_all(
        self, came: npt.NDArray[Any], given: npt.NDArray[Any], coming: Any, sizes: Any
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
        )

    def _complete(self, begin: Callable[[], Any], tensors: Sequence[Any]) -> None:
        """Begin a collective, and wait for it.

        Raises:
            ExchangeError: it was given up, or one before it.
        """
        if self.group in _lost:
            raise ExchangeError(f"An exchange before this one was given up. {_lost[self.group]}")
        start = perf_counter()
        work = begin()
        try:
            self._wait(work, monotonic() + self.timeout_seconds)
        except BaseException as error:  # also where a user interrupts it
            give_up(self.group, str(error) or type(error).__name__)
            raise
        # Gloo's own thread may hold both a moment longer. If that made it free the arrays while the
        # interpreter ends, it would wait for the interpreter, which aborts the process.
        self._last = work, tensors
        self._collectives += 1
        self.waited_seconds += perf_counter() - start

    def _wait(self, work: Any, deadline: float) -> None:
        """Wait for a collective, by polls, so that the thread can end.

        Raises:
            ExchangeError: a rank did not answer, or is gone.
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
                        f"The connection to another rank is lost, whose process may have ended: "
                        f"{error}"
                    ) from error
            if self.watch is not None:
                self.watch()
            if self.abandoned.is_set():
                raise ExchangeError("This process ends.")
            if monotonic() > deadline:
                raise ExchangeError(
                    f"Another rank did not answer within {self.timeout_seconds:g} s: it was "
                    f"stopped, or its machine cannot be reached. A rank that only pauses answers "
                    f"from a thread of its own. timeout= sets another limit."
                )


def as_bytes(table: Tensor) -> Bytes:
    """Return a dense table [N, ...] as the bytes of its rows, uint8 [N, bytes], in its memory."""
    row = int(np.prod(table.shape[1:], dtype=np.int64))
    if table.numel() == 0:  # torch views no such table
        return np.empty((len(table), row * table.itemsize), np.uint8)
    rows: Bytes = table.view(len(table), row).view(torch.uint8).numpy()
    return rows
