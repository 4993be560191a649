"""One in ten of the planted faults that are cheap to find is noticed by its nearest tests."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_tenth_of_the_faults_is_noticed() -> None:
    """PYG_DIRECT_PLANTED_SEED repeats a choice."""
    seed = os.environ.get("PYG_DIRECT_PLANTED_SEED") or str(random.randrange(10**6))
    command = ["-m", "tests.planted", "--cheap", "--share", "10", "--seed", seed]
    done = subprocess.run(
        [sys.executable, *command, "--stages", "near"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    print(done.stdout)
    assert done.returncode == 0, f"seed {seed}:\n{done.stdout}\n{done.stderr[-2000:]}"
