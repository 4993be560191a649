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
