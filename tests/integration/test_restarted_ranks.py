"""Launchers that start the ranks again after a crash: the run ends as if there had been none."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

import pyg_direct
from examples.support.synthetic import power_law_graph

ROOT = Path(__file__).parents[2]
LAUNCH = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
SIZES = ["--num-nodes", "4000", "--batch-size", "50", "--epochs", "2"]
ARGUMENTS = [*SIZES, "--num-workers", "2", "--every", "3"]


def launched(checkpoint: Path, log: Path) -> subprocess.Popen[bytes]:
    program = [*LAUNCH, "--max-restarts", "3", str(ROOT / "examples" / "restarted.py")]
    with log.open("w") as output:
        return subprocess.Popen(
            [sys.executable, *program, *ARGUMENTS, "--checkpoint", str(checkpoint)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )


def last_line(log: Path) -> str:
    return next(line for line in reversed(log.read_text().splitlines()) if "last loss" in line)


def children_of(pid: int) -> list[int]:
    return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def steps_in(checkpoint: Path) -> int:
    if not checkpoint.exists():
        return 0
    steps: int = torch.load(checkpoint, weights_only=True)["steps"]
    return steps


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds the ranks in /proc")
def test_killed_under_torchrun(tmp_path: Path) -> None:
    whole = launched(tmp_path / "whole.pt", tmp_path / "whole.log")
    assert whole.wait(240) == 0, (tmp_path / "whole.log").read_text()
    expected = last_line(tmp_path / "whole.log")
    end = int(expected.split()[0])

    checkpoint, log = tmp_path / "killed.pt", tmp_path / "killed.log"
    with launched(checkpoint, log) as run:
        try:
            for rank, steps in ((1, 3), (0, end // 2)):
                while steps_in(checkpoint) < steps and run.poll() is None:
                    time.sleep(0.005)
                assert run.poll() is None, log.read_text()
                os.kill(children_of(run.pid)[rank], signal.SIGKILL)
                while log.read_text().count("goes on after") < 2 + 2 * (rank == 0):
                    assert run.poll() is None, log.read_text()
                    time.sleep(0.05)
            assert run.wait(240) == 0, log.read_text()
        finally:
            run.terminate()
    assert last_line(log) == expected


@pytest.mark.slow
@pytest.mark.timeout(600)  # Ray takes its time to start, and to notice
@pytest.mark.skipif(sys.platform != "linux", reason="sends signals")
def test_killed_under_ray_train(tmp_path: Path) -> None:
    pytest.importorskip("ray.train")
    parts = str(tmp_path / "parts")
    pyg_direct.partition(power_law_graph(4000, 40_000, seed=0), parts, 2, "ldg")
    results = []
    for kill_at, graph in ((0, []), (13, []), (13, ["--parts", parts])):
        folder = tmp_path / str(len(results))
        program = [sys.executable, str(ROOT / "examples" / "ray_train.py"), *SIZES, *graph]
        program += ["--every", "5", "--storage", str(folder), "--kill-at", str(kill_at)]
        run = subprocess.run(program, capture_output=True, text=True, timeout=280, check=False)
        assert run.returncode == 0, run.stdout + run.stderr
        assert ("goes on after" in run.stdout + run.stderr) == (kill_at > 0)
        results.append(next(line for line in run.stdout.splitlines() if "last loss" in line))
    assert len(set(results)) == 1, results
