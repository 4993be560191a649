"""Which batches of a rank travel together."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from pyg_direct.ranks.rounds import Rounds

NOTHING: Any = None


@pytest.mark.parametrize(("together", "expected"), [(4, 4), (1, 1)])
def test_a_round_waits_for_batches_that_come_together(together: int, expected: int) -> None:
    rounds = Rounds(NOTHING, lambda asked: asked, window=4)
    rounds.works_for(lambda: True, NOTHING, together)
    rounds._patience_seconds = 30.0

    request: Any = object()

    def ask() -> None:
        for _ in range(4):
            time.sleep(0.05)
            rounds._requests.put(request)

    asking = threading.Thread(target=ask)
    asking.start()
    window: list[Any] = []
    rounds._fill(window, 0.001)
    assert len(window) == expected
    asking.join()


def test_a_rank_whose_loop_pauses_keeps_nobody_waiting() -> None:
    rounds = Rounds(NOTHING, lambda asked: asked, window=4)
    rounds.works_for(lambda: False, NOTHING, 4)
    rounds._patience_seconds = 1e6
    window: list[Any] = []
    rounds._fill(window, 0.001)
    assert window == []
