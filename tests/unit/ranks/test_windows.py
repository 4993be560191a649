"""Windows that ranks make together: which batches each has, and what a rank that differs gets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from pyg_direct.ranks.board import ExchangeError
from pyg_direct.ranks.channel import Channel
from pyg_direct.ranks.threads import ThreadChannel, _Meeting
from pyg_direct.ranks.windows import Iteration, Place, Windows

SIZE = 3


class Rank:
    """One of two ranks, which notes the windows that it makes."""

    def __init__(self, channel: Channel) -> None:
        self.channel, self.made = channel, list[list[Any]]()
        self.windows = Windows(channel, self.make, SIZE)
        self.windows.start()

    def make(self, asked: list[Any]) -> list[Any]:
        """Return what was asked for, with the number of batches that all ranks make."""
        self.made.append(asked)
        counts = self.channel.numbers(torch.full((self.channel.size, 1), len(asked)))
        return [(each, int(counts.sum())) for each in asked]

    def begin(self, steps: int, of_all: int = 0, epoch: int = 0) -> tuple[Iteration, Iterator[int]]:
        """Begin an iteration; return it, and its steps."""
        iteration = self.windows.iterate(epoch, 0)
        return iteration, iteration.in_windows(iter(range(steps)), lambda: of_all or steps)

    def ask(self, place: Place) -> Any:
        """Return the batch of a step, which is its number."""
        with self.windows.at(place):
            return self.windows.made(place.step)

    def loop(self, steps: int, of_all: int = 0, epoch: int = 0) -> list[Any]:
        """Return the batches of an epoch, whose windows are asked for by threads, last first."""
        iteration, expected = self.begin(steps, of_all, epoch)
        with ThreadPoolExecutor(8) as producers:  # as many as the longest loop here has steps
            asked = [
                producers.submit(self.ask, iteration.place(step)) for step in [*expected][::-1]
            ]
        return [each.result() for each in asked][::-1]

    def waits_for(self, windows: int) -> None:
        """Wait until so many windows were made, which no batch of this rank may tell."""
        end = time.monotonic() + 20.0
        while len(self.made) < windows:
            assert time.monotonic() < end
            time.sleep(0.001)


def on_two(function: Callable[[Rank], Any]) -> list[Any]:
    """Return what a function gives on each of two ranks."""
    meeting = _Meeting(2)
    ranks = [Rank(ThreadChannel(rank, meeting)) for rank in range(2)]
    try:
        with ThreadPoolExecutor(2) as loops:
            return [found.result(20) for found in [loops.submit(function, r) for r in ranks]]
    finally:
        meeting.fail()
        for rank in ranks:
            rank.windows.close()


def problem_of(function: Callable[[], Any]) -> str:
    with pytest.raises((ExchangeError, RuntimeError)) as caught:
        function()
    return str(caught.value)


def test_ranks_make_the_same_windows_in_whatever_order_batches_are_asked_for() -> None:
    def loop(rank: Rank) -> Any:
        return [rank.loop(7, epoch=epoch) for epoch in range(2)], rank.made

    for epochs, windows in on_two(loop):
        assert epochs == [[(step, 2 if step == 6 else 6) for step in range(7)]] * 2
        assert windows == [[0, 1, 2], [3, 4, 5], [6]] * 2


def test_a_rank_with_less_steps_takes_part_in_all_windows() -> None:
    def loop(rank: Rank) -> Any:
        steps = [4, 3][rank.channel.rank]
        made = [rank.loop(steps, 4) for _ in range(2)]
        rank.waits_for(4)
        return made, rank.made

    (first, windows), (second, of_other) = on_two(loop)
    assert first == [[(0, 6), (1, 6), (2, 6), (3, 1)]] * 2
    assert second == [[(0, 6), (1, 6), (2, 6)]] * 2
    assert windows == [[0, 1, 2], [3]] * 2
    assert of_other == [[0, 1, 2], []] * 2


def test_a_rank_that_has_left_its_loop_is_told_where_its_batches_are_needed() -> None:
    def loop(rank: Rank) -> Any:
        iteration, _ = first = rank.begin(9)
        steps = first[1]
        for _ in zip(range(SIZE), steps, strict=False):
            pass
        with ThreadPoolExecutor(SIZE) as producers:
            made = list(producers.map(rank.ask, map(iteration.place, range(SIZE))))
        text = ""
        if rank.channel.rank == 0:
            next(steps)
            with ThreadPoolExecutor(SIZE) as producers:
                asked = [producers.submit(rank.ask, iteration.place(3 + i)) for i in range(SIZE)]
            text = problem_of(asked[0].result)
        return made, text, rank.loop(4, epoch=1)

    (made, text, after), (of_other, _, after_other) = on_two(loop)
    assert made == of_other == [(0, 6), (1, 6), (2, 6)]
    assert "Rank 1 has left its loop and is at step 0 of epoch 1, so no rank can make" in text
    assert "step 3 of epoch 0" in text
    assert after == after_other == [(0, 6), (1, 6), (2, 6), (3, 2)]


def test_batches_of_a_loop_that_was_left_are_not_waited_for() -> None:
    def loop(rank: Rank) -> Any:
        texts = []
        for _ in range(2):
            iteration, steps = rank.begin(9)
            next(steps)
            with ThreadPoolExecutor(1) as producers:
                asked = producers.submit(rank.ask, iteration.place(0))  # one of three
                time.sleep(0.01)
                del iteration, steps
                texts.append(problem_of(asked.result))
        return texts, rank.loop(2)

    for texts, made in on_two(loop):
        assert all("Another iteration of this loader has begun" in text for text in texts)
        assert made == [(0, 4), (1, 4)]


def test_a_rank_without_a_loader_is_told_and_the_channel_is_free_once_none_has_one() -> None:
    def loop(rank: Rank) -> Any:
        rank.loop(1)
        if rank.channel.rank == 1:
            rank.windows.close()
            return ""
        return problem_of(lambda: rank.loop(1))

    ranks = list[Rank]()

    def noted(rank: Rank) -> Any:
        ranks.append(rank)
        text = loop(rank)
        rank.windows.close()
        rank.windows._thread.join(20)
        return text, rank.channel.ended

    (text, ended), (_, ended_there) = on_two(noted)
    assert "Rank 1 has no such loader any more" in text
    assert ended
    assert ended_there


def test_ranks_whose_loops_begin_at_different_steps_are_refused() -> None:
    def loop(rank: Rank) -> str:
        return problem_of(lambda: rank.loop(2, epoch=rank.channel.rank))

    for text in on_two(loop):
        assert "rank 0: step 0 of epoch 0; rank 1: step 0 of epoch 1" in text


@pytest.fixture
def alone() -> Iterator[Rank]:
    rank = Rank(Channel(None, 20.0))
    yield rank
    rank.windows.close()


def test_a_batch_outside_of_a_loop_is_made_by_one_rank_alone(alone: Rank) -> None:
    assert alone.windows.made("asked") == ("asked", 1)
    assert alone.loop(2) == [(0, 2), (1, 2)]
    assert alone.windows.made("again") == ("again", 1)
    with pytest.raises(RuntimeError, match="in the steps of an epoch only"):
        on_two(lambda rank: rank.windows.made("asked"))


def test_an_interrupted_loop_does_not_go_on(alone: Rank) -> None:
    iteration, steps = alone.begin(4)
    next(steps)
    with pytest.raises(RuntimeError, match="This loop was interrupted"):
        iteration.in_windows(iter(range(4)), lambda: 4)


def test_a_sampler_of_seeds_that_fails_ends_the_exchange(alone: Rank) -> None:
    def failing() -> Iterator[int]:
        yield 0
        raise ZeroDivisionError("planted")

    steps = alone.windows.iterate(0, 0).in_windows(failing(), lambda: 9)
    with pytest.raises(ZeroDivisionError):
        next(steps)
    with pytest.raises(ExchangeError, match="Rank 0 failed: ZeroDivisionError: planted"):
        alone.windows.check()


def test_an_error_in_making_a_window_is_raised_at_every_request(alone: Rank) -> None:
    def fail(asked: Sequence[Any]) -> Any:
        raise OSError("planted")

    alone.windows._make = fail
    with pytest.raises(ExchangeError, match="Rank 0 failed: OSError: planted"):
        alone.loop(2)
    with pytest.raises(ExchangeError, match="Rank 0 failed: OSError: planted"):
        alone.windows.iterate(0, 0)


def test_a_thread_that_has_nothing_to_make_does_not_wake(alone: Rank) -> None:
    alone.loop(2)
    status = Path(f"/proc/self/task/{alone.windows._thread.native_id}/status")
    if not status.exists():
        pytest.skip("there is no /proc")

    def switches() -> list[str]:
        return [line for line in status.read_text().splitlines() if "ctxt_switches" in line]

    time.sleep(0.05)  # it goes back to where it waits
    before = switches()
    time.sleep(0.1)
    assert switches() == before
