"""Threads that share work: ranges, failures, and forks."""

from __future__ import annotations

import os
import threading
import time

import pytest
from children import in_child

from pyg_direct.core.threads import available_cores, run_all, split


def test_ranges_cover_all_once() -> None:
    for n in range(1, 9):
        for pieces in range(10):
            found: list[int] = []
            split(n, pieces, lambda first, last, found=found: found.extend(range(first, last)))
            assert sorted(found) == list(range(n)), (n, pieces)


def fails() -> int:
    raise ValueError("planted")


def test_a_failure_is_raised_when_all_have_ended() -> None:
    """They write to memory of the caller."""
    begun, ended = threading.Event(), list[int]()

    def slow() -> int:
        begun.set()
        time.sleep(0.05)
        ended.append(1)
        return 1

    def fails_meanwhile() -> int:
        begun.wait()
        return fails()

    with pytest.raises(ValueError, match="planted"):
        run_all([fails_meanwhile, slow])
    assert ended == [1]
    with pytest.raises(ValueError, match="planted"):
        run_all([slow, fails])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="takes a system that forks")
def test_a_forked_process_has_threads_of_its_own() -> None:
    def work() -> None:
        assert run_all([lambda: 1, lambda: 2, lambda: 3]) == [1, 2, 3]

    count = available_cores() + 1
    run_all([threading.Barrier(count).wait] * count)  # begins all threads of the pool
    in_child(work, 20.0)
