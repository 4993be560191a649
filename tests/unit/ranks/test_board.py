"""What ranks leave for each other in the store of their group, and who of them is missing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from pyg_direct.ranks import board as board_module
from pyg_direct.ranks.board import Board, ExchangeError, within


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what stands for a process group on each of three ranks."""
    store = dist.HashStore()
    monkeypatch.setattr(board_module, "group_store", lambda group: store)
    ranks = SimpleNamespace(get_rank=lambda group: group, get_world_size=lambda group: 3)
    monkeypatch.setattr(board_module, "dist", ranks)
    return range(3)


def on_all(groups: Any, function: Any) -> list[Any]:
    with ThreadPoolExecutor(3) as ranks:
        return [found.result(20) for found in [ranks.submit(function, g) for g in groups]]


def test_values_reach_all_ranks_again_and_again(groups: Any) -> None:
    def on_rank(group: Any) -> Any:
        boards = [Board(group, "alone") for _ in range(2)]
        return [
            board.values((group, turn, number), 20.0)
            for turn in range(3)
            for number, board in enumerate(boards)
        ]

    expected = [[(rank, turn, b) for rank in range(3)] for turn in range(3) for b in range(2)]
    assert on_all(groups, on_rank) == [expected] * 3


def test_ranks_that_do_not_come_are_named(groups: Any) -> None:
    board = Board(0, "alone")
    with pytest.raises(ExchangeError, match=r"^Rank 1, 2 did not come within 0.05 s"):
        board.values("here", 0.05)
    with pytest.raises(ExchangeError, match="Rank 0 failed: It has waited in vain"):
        Board(1, "alone").values("late", 20.0)


def test_ranks_that_work_in_different_ways_are_told(groups: Any) -> None:
    def on_rank(group: Any) -> str:
        with pytest.raises(ValueError) as caught:
            Board(group, "share_rows=True" if group == 1 else "a partition").values(0, 20.0)
        return str(caught.value)

    for text in on_all(groups, on_rank):
        ways = "rank 0: a partition; rank 1: share_rows=True; rank 2: a partition"
        assert f"work together in different ways: {ways}." in text


def test_a_failure_ends_the_waits_of_others(groups: Any) -> None:
    boards = [Board(group, "alone") for group in groups]
    assert boards[0].told() == ""
    boards[2].tell("OSError: planted")
    boards[2].tell("another one")
    assert boards[2].failure == "OSError: planted"
    assert boards[0].told_within(20.0) == "Rank 2 failed: another one"
    with pytest.raises(ExchangeError, match="Rank 2 failed: another one"):
        boards[0].values(0, 20.0)
    assert Board(0, "alone").told() == ""  # of the next loader


def test_a_store_whose_process_has_ended_is_told(groups: Any) -> None:
    board = Board(0, "alone")

    def lost(*_: Any) -> None:
        raise dist.DistNetworkError("Connection reset by peer")

    board._store = SimpleNamespace(set=lost)
    with pytest.raises(ExchangeError, match=r"store of the process group is lost.*reset by peer"):
        board.values("here", 20.0)


def test_a_store_that_does_not_answer_is_not_waited_for(groups: Any) -> None:
    stopped, board = threading.Event(), Board(0, "alone")

    def wait(*_: Any) -> bool:
        return stopped.wait(20)

    board._store = SimpleNamespace(set=wait, check=wait)
    begun = time.monotonic()
    assert board.told_within(0.05) == ""
    with pytest.raises(ExchangeError, match="did not answer within"):
        within(0.05, lambda: board._store.set("key", "value"))
    stopped.set()
    assert time.monotonic() < begun + 10.0


def test_an_error_of_the_store_is_raised(groups: Any) -> None:
    def fail() -> None:
        raise KeyError("planted")

    with pytest.raises(KeyError, match="planted"):
        within(20.0, fail)


def test_a_process_waits_for_calls_of_the_store_that_were_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One that comes back while the interpreter ends aborts the process."""
    answers, ended = threading.Event(), list[int]()

    def slow(number: int) -> None:
        answers.wait(20.0)
        ended.append(number)

    for number in range(2):
        with pytest.raises(ExchangeError, match=r"did not answer within 0\.01 s"):
            within(0.01, partial(slow, number))
    monkeypatch.setattr(board_module, "ENDING_SECONDS", 0.01)
    board_module._end_calls()  # the store does not answer: it ends
    assert ended == []
    monkeypatch.setattr(board_module, "ENDING_SECONDS", 20.0)
    threading.Timer(0.05, answers.set).start()
    board_module._end_calls()
    assert sorted(ended) == [0, 1]


def test_calls_of_the_store_end_before_the_interpreter() -> None:
    program = """
import atexit, time
ended = []
atexit.register(lambda: print(ended))  # called after those that are registered later
from pyg_direct.ranks.board import within
try:
    within(0.01, lambda: (time.sleep(0.5), ended.append("call")))
except RuntimeError:
    pass
"""
    ran = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "['call']\n"
