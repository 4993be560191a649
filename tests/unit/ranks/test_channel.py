"""Exchanges of bytes: what a wait for other ranks that is cut into polls tells apart."""

from __future__ import annotations

from datetime import timedelta
from math import inf
from time import monotonic
from typing import Any

import pytest
import torch

from pyg_direct.ops.buffers import new_bytes
from pyg_direct.ops.devices import HOST
from pyg_direct.ranks.board import ExchangeError
from pyg_direct.ranks.channel import Channel, Layout, is_lost, kinds_of

HERE = torch.empty(0)


class Group:
    """Stands for a process group."""


class Work:
    """A collective that is done, or has failed, behind some polls."""

    def __init__(self, polls: int, failure: str | None = None) -> None:
        self.left, self.failure = polls, failure

    def is_completed(self) -> bool:
        return self.left <= 0

    def wait(self, timeout: timedelta) -> None:
        self.left -= 1
        if self.left >= 0:  # done in the moment in which the poll gives up
            raise RuntimeError("Operation timed out!")
        if self.failure is not None:
            raise RuntimeError(self.failure)


def test_a_collective_that_is_done_as_a_poll_ends_has_not_failed() -> None:
    for polls in range(3):
        Channel(None, 60.0)._wait(Work(polls), lambda: inf)


def test_tensors_of_a_message_are_read_as_they_were_packed() -> None:
    tensors = [
        torch.arange(3, dtype=torch.uint8), torch.empty(0, 4, dtype=torch.int64),
        torch.tensor([[-1, 7], [2, 5]]).T, torch.tensor([True]), torch.ones(2, 0),
        torch.tensor([1.5 + 2j]), torch.arange(3).to(torch.uint16), torch.tensor(4.0).half(),
    ]  # fmt: skip
    layout = Layout(kinds_of(tensors))
    content = torch.cat(layout.pack(tensors))
    assert len(content) == layout.num_bytes == 16 * 7
    found = layout.unpack(content)
    assert kinds_of(found) == kinds_of(tensors)
    assert all(map(torch.equal, found, tensors))


def test_a_message_of_nothing_is_read_from_recycled_memory() -> None:
    found = Layout([(torch.float32, (0, 3)), (torch.int64, (0,))]).unpack(new_bytes(0, HOST))
    assert kinds_of(found) == [(torch.float32, (0, 3)), (torch.int64, (0,))]


def test_a_lost_connection_is_told() -> None:
    with pytest.raises(ExchangeError, match=r"is lost.*closed by peer"):
        Channel(None, 60.0)._wait(Work(1, "closed by peer"), lambda: inf)


def test_a_rank_that_does_not_answer_is_told() -> None:
    with pytest.raises(ExchangeError, match="did not answer within 2 s"):
        Channel(None, 2.0)._wait(Work(99), lambda: monotonic() - 1.0)


def test_nothing_follows_a_collective_that_was_given_up() -> None:
    one, other = Channel(None, 0.0), Channel(None, 60.0)
    one.group = other.group = Group()
    other._complete(lambda: Work(1), [HERE])
    assert not is_lost(one.group)
    with pytest.raises(ExchangeError, match="did not answer within 0 s"):
        one._complete(lambda: Work(99), [HERE])
    assert is_lost(one.group)
    begun: list[int] = []
    with pytest.raises(ExchangeError, match=r"was given up.*did not answer within 0 s"):
        other._complete(lambda: begun.append(1), [HERE])
    assert not begun


def test_a_rank_whose_loop_pauses_waits_for_others_as_long_as_it_takes() -> None:
    channel, asked = Channel(None, 0.0), iter([None, None, 0.0])
    channel.group = Group()
    with pytest.raises(ExchangeError, match="did not answer within 0 s"):
        channel._complete(lambda: Work(99), [HERE], lambda: next(asked))
    assert next(asked, "all were looked at") == "all were looked at"


class Board:
    """What other ranks have told."""

    def told_within(self, seconds: float) -> str:
        return "Rank 3 failed: OSError: planted"


@pytest.mark.parametrize("failure", [None, "closed by peer"])
def test_the_failure_that_another_rank_tells_is_the_reason(failure: str | None) -> None:
    board: Any = Board()
    channel, work = Channel(None, 60.0, board=board), Work(1 if failure else 99, failure)
    with pytest.raises(ExchangeError, match=r"^Rank 3 failed: OSError: planted$"):
        channel._wait(work, lambda: inf if failure else monotonic() + 60.0)
