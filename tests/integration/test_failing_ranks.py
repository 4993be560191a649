"""A rank fails at a random moment: no other hangs beyond the timeout, and nothing is left.

PYG_DIRECT_FAILURES=20 tries each event 20 times in place of once, which takes two hours.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm and forks"),
]

PROGRAM = Path(__file__).parents[1] / "support" / "failing_ranks.py"
GROUP_SECONDS, EXIT_SECONDS = 3, 15
TIMES = int(os.environ.get("PYG_DIRECT_FAILURES", "1"))
TIMEOUT_SECONDS = 3


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    command = [sys.executable, str(PROGRAM)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        assert process.stdin is not None
        yield process
        process.stdin.close()
        assert process.wait(60) == 0


@pytest.mark.parametrize("event", ["kill", "stop", "raise", "break"])
def test_one_rank_fails(event: str, server: Any, tmp_path: Path) -> None:
    moments = random.Random(event)
    for number in range(TIMES):
        folder = tmp_path / str(number)
        folder.mkdir()
        request = {"event": event, "after": moments.random(), "folder": str(folder)}
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        outcome = json.loads(server.stdout.readline())
        assert outcome["left"] == [], (request, outcome)
        assert outcome["shared_memory"] == []
        (seconds, code), (_, code_of_failing) = outcome["ended"]["0"], outcome["ended"]["1"]
        assert seconds < GROUP_SECONDS + EXIT_SECONDS * outcome["slowness"], (request, outcome)
        assert code != 0, "the collective of the other rank fails"
        assert "RuntimeError" in outcome["logs"][0] or "DistBackendError" in outcome["logs"][0]
        if event == "raise":
            assert "ZeroDivisionError: planted in a producer" in outcome["logs"][1]
            assert code_of_failing == 1


WAYS: dict[str, dict[str, Any]] = {
    "rows": {"share_rows": True, "timeout": TIMEOUT_SECONDS},
    "cooperative": {"cooperative": True, "timeout": TIMEOUT_SECONDS},
    "parts": {"parts": True, "timeout": TIMEOUT_SECONDS},
    "none": {"timeout": TIMEOUT_SECONDS},
}
DIED = r"(connection to another rank|group) is lost|did not (answer|come) within|could not connect"
CAUSES = {  # in what each rank prints to which the event does not happen
    "kill": DIED,
    "stop": DIED,
    "raise": "planted in a producer",
    "break": r"has left its loop|did not answer within|is lost",
    "absent": r"Rank \d did not come within",
    "group": DIED,
}


TRIALS = range(TIMES)


def outcome_of(server: Any, folder: Path, moments: random.Random, **request: Any) -> dict[str, Any]:
    """Let ranks run from a random moment on, and return how they ended; nothing may be left."""
    request = {
        "after": moments.random(), "folder": str(folder), "store": moments.choice(["file", "tcp"]),
        **request,
    }  # fmt: skip
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    outcome: dict[str, Any] = json.loads(server.stdout.readline())
    assert outcome["left"] == [], (request, outcome)
    return outcome


def check_ended(outcome: dict[str, Any], ranks: list[int], cause: str) -> None:
    """Check that ranks have failed in time, with the cause in what they print.

    Of the seconds beyond the timeout those count that an idle machine would need.
    """
    for rank in ranks:
        assert str(rank) in outcome["ended"], outcome
        seconds, code = outcome["ended"][str(rank)]
        assert seconds < TIMEOUT_SECONDS + 10.0 * outcome["slowness"], (rank, outcome)
        assert code == 1, (rank, outcome)
        assert re.search(cause, outcome["logs"][rank]), (rank, outcome)


@pytest.mark.parametrize("way", ["rows", "cooperative", "parts"])
@pytest.mark.parametrize("event", CAUSES)
@pytest.mark.parametrize("trial", TRIALS)
def test_ranks_that_exchange_end_where_another_one_fails(
    event: str, way: str, trial: int, server: Any, tmp_path: Path
) -> None:
    moments = random.Random(f"{event} {way} {trial}")
    ranks = moments.randrange(2, 5)
    culprit = moments.randrange(ranks)
    outcome = outcome_of(
        server, tmp_path, moments, event=event, options=[WAYS[way]] * ranks, culprit=culprit
    )
    check_ended(outcome, [rank for rank in range(ranks) if rank != culprit], CAUSES[event])
    assert outcome["ended"][str(culprit)][1] != 0


@pytest.mark.parametrize("way", ["rows", "cooperative", "parts"])
@pytest.mark.parametrize("trial", TRIALS)
def test_ranks_that_leave_their_loops_at_the_same_step_end_well(
    way: str, trial: int, server: Any, tmp_path: Path
) -> None:
    moments = random.Random(f"{way} {trial}")
    options = [{**WAYS[way], "timeout": 60}] * moments.randrange(2, 5)
    outcome = outcome_of(server, tmp_path, moments, event="break together", options=options)
    assert {code for _, code in outcome["ended"].values()} == {0}, outcome


@pytest.mark.parametrize("trial", TRIALS)
@pytest.mark.parametrize("ways", list(itertools.combinations(WAYS, 2)), ids=" or ".join)
def test_ranks_whose_loaders_work_in_different_ways_are_told(
    ways: tuple[str, str], trial: int, server: Any, tmp_path: Path
) -> None:
    moments = random.Random(f"{ways} {trial}")
    ranks = moments.randrange(2, 5)
    names = [*ways, *moments.choices(ways, k=ranks - 2)]
    moments.shuffle(names)
    outcome = outcome_of(
        server, tmp_path, moments, event="none", options=[WAYS[name] for name in names]
    )
    check_ended(outcome, list(range(ranks)), "loaders that work together in different ways")
