"""One rank of two fails at a random moment: no hang beyond the group's timeout, nothing is left."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "failing_ranks.py"
GROUP_SECONDS, EXIT_SECONDS = 3, 15
TIMES = int(os.environ.get("PYG_DIRECT_FAILURES", "2"))


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


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm and forks")
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
        assert seconds < GROUP_SECONDS + EXIT_SECONDS, (request, outcome)
        assert code != 0, "the collective of the other rank fails"
        assert "RuntimeError" in outcome["logs"][0] or "DistBackendError" in outcome["logs"][0]
        if event == "raise":
            assert "ZeroDivisionError: planted in a producer" in outcome["logs"][1]
            assert code_of_failing == 1


SHARED, COOPERATIVE = {"share_rows": True, "timeout": 3}, {"cooperative": True, "timeout": 3}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm and forks")
@pytest.mark.parametrize("options", [SHARED, COOPERATIVE], ids=["rows", "cooperative"])
@pytest.mark.parametrize("event", ["kill", "stop", "raise", "absent", "group"])
def test_ranks_that_exchange_end_where_another_one_fails(
    event: str, options: dict[str, Any], server: Any, tmp_path: Path
) -> None:
    moments = random.Random(event)
    for number in range(max(1, TIMES // 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        request = {"event": event, "after": moments.random(), "folder": str(folder)}
        server.stdin.write(json.dumps({**request, "options": [options, options]}) + "\n")
        server.stdin.flush()
        outcome = json.loads(server.stdout.readline())
        assert outcome["left"] == [], (request, outcome)
        seconds, code = outcome["ended"]["0"]
        assert seconds < options["timeout"] + EXIT_SECONDS, (request, outcome)
        assert code == 1, (request, outcome)
        if event == "raise":
            assert "planted in a producer" in outcome["logs"][0]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /dev/shm and forks")
@pytest.mark.parametrize(
    "options",
    [[SHARED, {"timeout": 3}], [{"timeout": 3}, COOPERATIVE], [COOPERATIVE, SHARED]],
    ids=["rows or none", "none or cooperative", "cooperative or rows"],
)
def test_ranks_whose_loaders_work_in_different_ways_are_told(
    options: list[dict[str, Any]], server: Any, tmp_path: Path
) -> None:
    request = {"event": "none", "after": 0.5, "folder": str(tmp_path), "options": options}
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    outcome = json.loads(server.stdout.readline())
    assert outcome["left"] == []
    for rank in range(2):
        seconds, code = outcome["ended"][str(rank)]
        assert seconds < EXIT_SECONDS
        assert code == 1
        assert "loaders that work together in different ways: rank 0: " in outcome["logs"][rank]
