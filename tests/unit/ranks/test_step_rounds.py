"""Which step a rank asks for, and when all make it."""

from __future__ import annotations

from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any

import pytest

from pyg_direct.core.types import BatchKey, StepKey
from pyg_direct.ranks import step_rounds
from pyg_direct.ranks.channel import CLOSED, IDLE, LEAVING, WORKING, RankWord, ranks_agree
from pyg_direct.ranks.step_rounds import NOTHING, StepRounds


def request_of(epoch: int, step: int, ticket: int = 0) -> Any:
    key = StepKey.at(BatchKey(1, 2), epoch, step, ticket)
    return SimpleNamespace(asked=SimpleNamespace(key=key), done=SimpleQueue())


def rounds_of(*asked: Any) -> StepRounds:
    channel: Any = SimpleNamespace(timeout_seconds=5.0)
    rounds = StepRounds(channel, list)
    for request in asked:
        rounds._requests.put(request)
    return rounds


def test_the_earliest_step_is_asked_for_and_the_others_are_held() -> None:
    asked = [request_of(1, 0), request_of(0, 7), request_of(0, 5)]
    rounds, window = rounds_of(*asked), list[Any]()
    rounds._fill(window, 0.0)
    assert window == [asked[2]]
    assert rounds._step(window) == 5
    rounds._requests.put(earlier := request_of(0, 4))  # a round came to nothing in between
    rounds._fill(window, 0.0)
    assert window == [earlier]
    window.clear()  # it was made
    rounds._fill(window, 0.0)
    assert window == [asked[2]]
    assert rounds._step([]) == NOTHING


def test_what_nobody_waits_for_is_dropped() -> None:
    stale, asked = request_of(0, 3, ticket=1), request_of(0, 4, ticket=2)
    rounds, window = rounds_of(stale, asked), list[Any]()
    rounds.works_for(lambda: True, lambda ticket: ticket < 2, 1)
    rounds._fill(window, 0.0)
    assert window == [asked]
    found, problem = stale.done.get_nowait()
    assert found is None
    assert "Another iteration" in problem


def test_ranks_agree_on_a_step_that_all_ask_for() -> None:
    def words(*steps: int) -> list[RankWord]:
        return [RankWord(WORKING, step != NOTHING, False, step) for step in steps]

    assert ranks_agree(words(3, 3))
    assert not ranks_agree(words(3, 4))
    assert not ranks_agree(words(3, NOTHING))
    assert not ranks_agree(words(NOTHING, NOTHING))
    assert ranks_agree([RankWord(WORKING, 2, False, 0), RankWord(IDLE, 0, False, 0)])


def test_a_rank_that_asks_for_one_step_too_long_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(step_rounds, "monotonic", lambda: now[0])
    rounds, window = rounds_of(request_of(2, 6)), list[Any]()
    for second in (0.0, 4.0, 5.0):
        now[0] = second
        rounds._fill(window, 0.0)
        assert rounds._failure is None
        rounds._end([RankWord(WORKING, 1, False, rounds._step(window)), *words_of_others()])
    now[0] = 5.5
    rounds._fill(window, 0.0)
    assert rounds._failure is not None
    assert "It has asked for step 6 of epoch 2 for 5 s" in rounds._failure
    assert "rank 1 asks for step 0 of epoch 3, rank 2 asks for none" in rounds._failure


def words_of_others() -> list[RankWord]:
    return [RankWord(WORKING, 1, False, 3 << 32), RankWord(IDLE, 0, False, NOTHING)]


@pytest.mark.parametrize(
    ("status", "step", "expected"),
    [
        (LEAVING, NOTHING, "Rank 1 has ended its program"),
        (CLOSED, NOTHING, "Rank 1 has no such loader any more"),
        (IDLE, NOTHING, None),
    ],
)
def test_who_cannot_ask_any_more_ends_the_others(status: int, step: int, expected: Any) -> None:
    rounds = rounds_of()
    ended = rounds._end([RankWord(WORKING, 1, False, 8), RankWord(status, 0, False, step)])
    assert (ended is None) == (expected is None)
    assert expected is None or expected in str(ended)
    assert rounds._end([RankWord(CLOSED, 0, False, NOTHING)] * 2) is None  # all end
