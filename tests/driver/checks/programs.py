"""Commands of the package, and the suite's own tests for a GPU."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator

Outcomes = Iterator[tuple[str, str]]
LIMIT_SECONDS = 800
# Too large for the emulator: graphs of millions of edges, and hundreds of generated ones.
GPU_TESTS = ("tests/gpu", "tests/unit/ops/cuda", "tests/unit/tools")
LEFT_OUT = "not large and not any_graph and not every_fanout and not hub"


def _run(schedule: str, *arguments: str, **variables: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.driver.start", *arguments],
        env=os.environ | {"STANDIN_SCHEDULE": schedule} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def info(schedule: str) -> Outcomes:
    """`python -m pyg_direct.info` names the GPU, and its checks pass."""
    status, output = _run(schedule, "pyg_direct.info")
    yield "exit status", "" if status == 0 else f"{status}: {output[-300:]}"
    for what, pattern in (("GPU", r"Stand-in GPU 0"), ("problems", r"problems: +none found")):
        yield what, "" if re.search(pattern, output) else f"no {pattern!r} in {output[-300:]!r}"


def benchmarks_run_dry(schedule: str) -> Outcomes:
    """`python -m benchmarks gpu --dry` goes through, with a GPU in the machine."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ("benchmarks", "gpu", "--dry", "--out", folder, "--logs", folder)
        status, output = _run(schedule, *arguments)
    yield "exit status", "" if status == 0 else f"{status}: {output[-300:]}"


def tests_for_a_gpu(schedule: str) -> Outcomes:
    """Tests marked `gpu` pass, but for those that are too large for the emulator."""
    status, output = _run(
        schedule,
        "pytest",
        "-q",
        "-n",
        "0",
        "-m",
        "gpu",
        "-k",
        LEFT_OUT,
        *GPU_TESTS,
        PYG_DIRECT_REQUIRE_GPU="1",
    )
    passed = re.search(r"(\d+) passed", output)
    failed = re.findall(r"^(?:FAILED|ERROR) \S+", output, re.MULTILINE)
    summary = "; ".join(failed) or output.strip().splitlines()[-1]
    yield f"{passed[1] if passed else 0} tests", "" if status == 0 and passed else summary


CHECKS = (info, benchmarks_run_dry, tests_for_a_gpu)
