"""Ranks that are threads of this process: to count what ranks would exchange."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch
from torch import Tensor

from .channel import Channel

R = TypeVar("R")


class _Meeting:
    """Where the threads leave what they give."""

    def __init__(self, size: int) -> None:
        self.size, self.given = size, [torch.empty(0)] * size
        self._barrier = threading.Barrier(size)

    def all_given(self, rank: int, value: Tensor) -> list[Tensor]:
        """Return what all have given, which none may write to, and which lasts until `leave`."""
        self.given[rank] = value
        self._barrier.wait()
        return self.given

    def leave(self) -> None:
        """Wait until all have read."""
        self._barrier.wait()

    def fail(self) -> None:
        """Make the waits of all raise an error."""
        self._barrier.abort()


class ThreadChannel(Channel):
    """A channel among threads of this process, which counts as one among processes does.

    Args:
        rank: of this thread.
        meeting: of all.
    """

    def __init__(self, rank: int, meeting: _Meeting) -> None:
        super().__init__(None, 0.0, (rank, meeting.size))
        self._meeting = meeting

    def _all_to_all(
        self,
        came: Tensor,
        given: Tensor,
        coming: list[int],
        sizes: list[int],
        asked_since: Any = None,
    ) -> None:
        first = torch.tensor([0, *sizes]).cumsum(0)
        begins = [int(a[self.rank]) for a in self._meeting.all_given(self.rank, first)]
        self._meeting.leave()
        pieces = [
            there[begin : begin + count]
            for there, begin, count in zip(
                self._meeting.all_given(self.rank, given), begins, coming, strict=True
            )
        ]
        torch.cat(pieces, out=came)
        self._meeting.leave()
        self._collectives += 1

    def union(self, bits: Tensor) -> Tensor:
        """Return fields of bits of all ranks as one; see `Channel`."""
        if len(bits) == 0:
            return bits
        found = torch.stack(self._meeting.all_given(self.rank, bits)).sum(0, dtype=torch.uint8)
        self._meeting.leave()
        self._collectives += 1
        self._count_ring(len(bits))
        return found


def on_threads(size: int, function: Callable[[Channel], R]) -> Sequence[R]:
    """Return ``function(channel)`` of each of some ranks, by rank.

    Raises:
        Exception: that of the first rank that failed.
    """
    meeting = _Meeting(size)

    def on_rank(rank: int) -> R:
        try:
            return function(ThreadChannel(rank, meeting))
        except BaseException:
            meeting.fail()
            raise

    with ThreadPoolExecutor(size) as threads:
        ranks = [threads.submit(on_rank, rank) for rank in range(size)]
    errors = [error for rank in ranks if (error := rank.exception()) is not None]
    own = [e for e in errors if not isinstance(e, threading.BrokenBarrierError)]
    if errors:
        raise [*own, *errors][0]
    return [rank.result() for rank in ranks]
