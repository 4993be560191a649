"""The example over parts: in one process, and started by torchrun."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples import partitioned

ROOT = Path(__file__).parents[2]
SMALL = ["--num-nodes", "1500", "--batch-size", "100", "--epochs", "1"]


def test_one_process_reads_all_parts(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = str(tmp_path / "parts")
    assert partitioned.main([*SMALL, "--folder", folder, "--write"]) is None
    accuracy = partitioned.main([*SMALL, "--folder", folder])
    out = capfd.readouterr().out
    assert "4 parts by ldg" in out
    assert f"test accuracy {accuracy:.3f}" in out


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="gloo over the loopback device")
def test_torchrun_starts_it(tmp_path: Path) -> None:
    folder = str(tmp_path / "parts")
    partitioned.main([*SMALL, "--folder", folder, "--write"])
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", "2", "examples/partitioned.py", *SMALL]
    done = subprocess.run(
        [*command, "--folder", folder], cwd=ROOT, capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("test accuracy") == 1
    assert "MB a batch from other ranks" in done.stdout
