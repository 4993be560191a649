"""Exchanges of tensors among the ranks of a process group, which fail on all ranks or on none."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from itertools import accumulate
from math import inf, prod
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ..ops.buffers import new_bytes
from ..ops.devices import HOST, ends_in_call
from ..ops.staging import taken_from, to_device
from .board import Board, ExchangeError
from .exchange import NOT_INFERRING
from .traffic import ExchangeTraffic

POLL_SECONDS = 0.25  # how long one wait for other ranks takes, between looks at the clock
GLOO_REMARK = " This is typically caused by"  # the rest of an error of gloo follows it
ALIGNMENT = 16  # of each tensor in a message, as complex numbers need it

Kind = tuple[torch.dtype, tuple[int, ...]]  # of a tensor: its dtype and shape
Tensors = Sequence[Tensor]


_lost: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By group: why its ranks may be at different collectives, so that no more can follow."""


class Layout:
    """Where the tensors of a message are, one after another, in its bytes.

    Args:
        kinds: of the tensors.

    Attributes:
        num_bytes: of the message.
    """

    def __init__(self, kinds: Sequence[Kind]) -> None:
        self._kinds = kinds
        self._sizes = [dtype.itemsize * prod(shape) for dtype, shape in kinds]
        self._begins = [*accumulate((aligned(size) for size in self._sizes), initial=0)]
        self.num_bytes = self._begins[-1]

    def pack(self, tensors: Tensors) -> list[Tensor]:
        """Return the pieces of the message, of one device."""
        pieces = []
        for tensor, size in zip(tensors, self._sizes, strict=True):
            if size:
                pieces.append(tensor.contiguous().view(-1).view(torch.uint8))
            if left := aligned(size) - size:
                pieces.append(tensor.new_zeros(left, dtype=torch.uint8))
        return pieces

    def unpack(self, content: Tensor) -> list[Tensor]:
        """Return the tensors of a message, in its memory."""
        found = zip(self._kinds, self._sizes, self._begins, strict=False)
        return [
            content[begin : begin + size].view(dtype).view(shape)
            if size  # torch views no memory of NumPy's without any
            else content.new_empty(shape, dtype=dtype)
            for (dtype, shape), size, begin in found
        ]


def kinds_of(tensors: Tensors) -> list[Kind]:
    """Return the kinds of some tensors."""
    return [(tensor.dtype, tuple(tensor.shape)) for tensor in tensors]


def aligned(size: int) -> int:
    """Return how many bytes a tensor of some takes in a message."""
    return size + -size % ALIGNMENT


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


class Channel:
    """The collectives of one thread; every rank makes the same ones in the same order.

    Args:
        group: a group of our own, of gloo for tensors on the host; None for this process alone.
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
        self._devices = {HOST.type}  # types of those whose tensors the group takes as they are
        if group is not None:
            self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
            self._devices |= {*device_backends(group)}
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
        said = torch.tensor([*words, int(1e6 * self.waited_seconds)])
        every = self.numbers(said.expand(self.size, -1), asked_since)
        self._waits_us[:] = every[:, -1]
        return every[:, :-1].tolist()

    def exchange(self, messages: Sequence[Tensors]) -> list[list[Tensor]]:
        """Send the tensors messages[p] to rank p, and return those of each; two collectives.

        Args:
            messages: to each rank, as this one itself, as many, which differ in their lengths only.
        """
        if self.size == 1:
            return [[*messages[0]]]
        lengths = self.numbers(torch.tensor([[*map(len, tensors)] for tensors in messages]))
        like = kinds_of(messages[self.rank])
        coming = [
            [(dtype, (n, *shape[1:])) for (dtype, shape), n in zip(like, of_rank, strict=True)]
            for of_rank in lengths.tolist()
        ]
        return self.send(messages, coming)

    @NOT_INFERRING
    def union(self, bits: Tensor) -> Tensor:
        """Return fields of bits of all ranks as one; no two ranks may set the same bit.

        One collective. What is sent is counted as in a ring.
        """
        if self.group is None or len(bits) == 0:
            return bits
        # A sum is the union then; it is what all backends have.
        self._complete(lambda: dist.all_reduce(bits, group=self.group, async_op=True), [bits])
        self._count_ring(len(bits))
        return bits

    def _count_ring(self, num_bytes: int) -> None:
        share = 2 * (self.size - 1) * num_bytes // self.size
        self._sent[(self.rank + 1) % self.size] += share
        self._received[self.rank - 1] += share
        self._messages[(self.rank + 1) % self.size] += 1

    @NOT_INFERRING
    def send(
        self, messages: Sequence[Tensors], coming: Sequence[Sequence[Kind]], uncounted: int = 0
    ) -> list[list[Tensor]]:
        """Send tensors of which all ranks know the kinds, and return those of each rank.

        Those for this rank itself are returned as they are. Where the group takes tensors of their
        device, they stay there; else they go by way of the host.

        Args:
            messages: to each rank, all on one device.
            coming: what comes from each.
            uncounted: so many bytes of each message are not counted as traffic.
        """
        if self.size == 1:
            return [[*messages[0]]]
        there = [p for p in range(self.size) if p != self.rank]
        layouts = [Layout(kinds_of(m) if p in there else []) for p, m in enumerate(messages)]
        expected = [Layout(kinds if p in there else []) for p, kinds in enumerate(coming)]
        flat = [tensor for p in there for tensor in messages[p]]
        if not flat:  # on no rank
            return [[] for _ in messages]
        sent = taken_from(flat, self._devices)
        pieces = iter(sent)
        packed = [p for to in there for p in layouts[to].pack([next(pieces) for _ in messages[to]])]
        sizes, coming_sizes = ([layout.num_bytes for layout in of] for of in (layouts, expected))
        given, came = (new_bytes(sum(total), sent[0].device) for total in (sizes, coming_sizes))
        torch.cat([given[:0], *packed], out=given)
        self._all_to_all(came, given, coming_sizes, sizes)
        self._sent += [max(0, size - uncounted) for size in sizes]
        self._received += [max(0, size - uncounted) for size in coming_sizes]
        self._messages += np.array(sizes) > uncounted
        contents = torch.split(to_device(came, flat[0].device), coming_sizes)
        return [
            expected[p].unpack(content) if p in there else [*messages[p]]
            for p, content in enumerate(contents)
        ]

    def fail(self, text: str) -> None:
        """Tell the others why this rank has failed, and take part in no more collectives."""
        if self.board is not None:
            self.board.tell(text)
        if self.group is not None:
            give_up(self.group, text)

    def numbers(
        self, words: Tensor, asked_since: Callable[[], float | None] | None = None
    ) -> Tensor:
        """Send words[p] to rank p, and return those from each rank: int64 [ranks, n] both."""
        came, each = torch.empty(words.shape, dtype=torch.int64), [1] * self.size
        self._all_to_all(came, words.contiguous(), each, each, asked_since)
        return came

    @NOT_INFERRING
    def _all_to_all(
        self,
        came: Tensor,
        given: Tensor,
        coming: list[int],
        sizes: list[int],
        asked_since: Callable[[], float | None] | None = None,
    ) -> None:
        if self.group is None:
            came.copy_(given)
            return
        begin = partial(
            dist.all_to_all_single, came, given, coming, sizes, group=self.group, async_op=True
        )
        self._complete(begin, [came, given], asked_since)

    def _complete(
        self,
        begin: Callable[[], Any],
        tensors: Sequence[Any],
        asked_since: Callable[[], float | None] | None = None,
    ) -> None:
        """Begin a collective, and wait for it.

        Args:
            begin: begins it.
            tensors: that it reads and writes. On a device, its current stream waits for them, and
                this thread does not: all ranks have exchanged numbers before, and so are there.
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
            if ends_in_call(tensors[0].device):
                self._wait(work, deadline)
            else:
                work.wait()
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


def device_backends(group: Any) -> dict[str, str]:
    """Return by what a group moves the tensors of each type of device other than the host.

    Gloo moves them by way of the host, or not at all.
    """
    pairs = (pair.split(":") for pair in dist.get_backend_config(group).split(","))
    found = {device: name for device, name in pairs if name != "gloo"}
    found.pop(HOST.type, None)
    return found
