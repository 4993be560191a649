"""Ranks that compute one result: what each is told of the others' errors."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyg_direct.ranks import together as module
from pyg_direct.ranks.together import Together

SECONDS = 20.0


@pytest.fixture
def on_both(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[Any]]:
    """Return what calls a function with the `Together` of each of two ranks, in threads."""
    here, barrier = threading.local(), threading.Barrier(2, timeout=SECONDS)
    values: list[Any] = [None, None]

    def gathered(value: Any, *, group: Any, device: torch.device) -> list[Any]:
        values[here.rank] = value
        barrier.wait()
        found = list(values)
        barrier.wait()
        return found

    def call(function: Any) -> list[Any]:
        def on_rank(rank: int) -> Any:
            here.rank = rank
            return function(Together(True, torch.device("cpu")))

        with ThreadPoolExecutor(2) as ranks:
            return [one.result(2 * SECONDS) for one in [ranks.submit(on_rank, r) for r in (0, 1)]]

    dist = SimpleNamespace(get_rank=lambda group: here.rank, get_world_size=lambda group: 2)
    monkeypatch.setattr(module, "dist", dist)
    monkeypatch.setattr(module, "gathered", gathered)
    monkeypatch.setattr(module, "default_group", lambda: "both")
    return call


@pytest.mark.parametrize("exchanges", [0, 1, 3])
def test_an_error_after_exchanges_is_told_to_the_rank_that_waits(
    on_both: Any, exchanges: int
) -> None:
    def steps(ranks: Together) -> None:
        with ranks.telling():
            for step in range(exchanges):
                assert ranks.exchange(f"step {step}", ranks.rank) == [0, 1]
            if ranks.rank == 0:
                raise ZeroDivisionError("planted")
            ranks.exchange("result")

    def run(ranks: Together) -> str:
        with pytest.raises((RuntimeError, ZeroDivisionError)) as caught:
            steps(ranks)
        return str(caught.value)

    assert on_both(run) == ["planted", "Rank 0 failed: ZeroDivisionError: planted"]


@pytest.mark.parametrize("wrong", ["other step", "error"])
def test_an_error_that_all_ranks_know_is_not_told_again(on_both: Any, wrong: str) -> None:
    def run(ranks: Together) -> list[str]:
        first = ranks.rank == 0
        step = "first" if first and wrong == "other step" else "second"
        error = ZeroDivisionError("planted") if first and wrong == "error" else None
        with pytest.raises((RuntimeError, ZeroDivisionError)) as caught, ranks.telling():
            ranks.exchange(step, error=error)
        return [str(caught.value), *Together(True, torch.device("cpu")).exchange("next", "value")]

    first, second = on_both(run)
    assert first[1:] == second[1:] == ["value", "value"]
    if wrong == "error":
        assert [first[0], second[0]] == ["planted", "Rank 0 failed: ZeroDivisionError: planted"]
    else:
        assert "rank 1 is at 'second', where this one is at 'first'" in first[0]
        assert "rank 0 is at 'first', where this one is at 'second'" in second[0]
