"""Stages of `benchmarks.gpu` that say what is installed, and whether the CUDA half is right."""

from __future__ import annotations

import glob
import os
import re
import shutil
import site
import sys
from pathlib import Path

from benchmarks.gpu.device import TESTS, Context
from benchmarks.gpu.limited import Running, run_limited
from benchmarks.gpu.marks import SANITIZER_FOUND
from benchmarks.gpu.needs import MissingError, need

FIRST_TOOL = "memcheck"  # it finds most, and has the machine to itself
TOOLS = (FIRST_TOOL, "initcheck", "synccheck", "racecheck")
WORKERS = "6"  # of pytest
MARGIN_SECONDS = 5  # to write down what happened before the stage itself is stopped


def describe(context: Context) -> None:
    """Keep what `python -m pyg_direct.info` says, with the link measured."""
    command = [
        sys.executable,
        "-m",
        "pyg_direct.info",
        *(["--no-bandwidth"] if context.dry else []),
    ]
    log = context.logs / "info.txt"
    seconds, environment = context.left() - MARGIN_SECONDS, context.environment()
    outcome = run_limited(command, seconds, log, environment, TESTS.parent, context.dry)
    context.keep("status", outcome.status)
    context.keep("report", log.read_text().splitlines())


def gpu_test_files(folder: Path = TESTS) -> list[Path]:
    """Return the test files with tests that need a GPU: others may need what is not installed."""
    marked = re.compile(r"^(@|pytestmark = )pytest\.mark\.gpu$", re.MULTILINE)
    return sorted(p for p in folder.rglob("test_*.py") if marked.search(p.read_text()))


def count_results(text: str) -> dict[str, int]:
    """Return how many tests passed, failed and so on, by the verbose output of pytest's workers.

    It is counted line by line, so that it holds for a run that was stopped, too.
    """
    words = re.findall(r"^\[gw\d+\] .*?\] (PASSED|FAILED|ERROR|SKIPPED) ", text, re.MULTILINE)
    return {word.lower(): words.count(word) for word in ("PASSED", "FAILED", "ERROR", "SKIPPED")}


def run_tests(context: Context) -> None:
    """Run the tests that need a GPU; those that are skipped fail."""
    need("pytest", "hypothesis", "xdist", "pytest_timeout", "pynvml")
    files = [str(path) for path in gpu_test_files()]
    log = context.logs / "tests.txt"
    pytest = [sys.executable, "-m", "pytest", "-v", "-n", WORKERS, "--durations=10"]
    outcome = run_limited(
        [*pytest, "-m", "gpu", *files],
        context.left() - MARGIN_SECONDS,
        log,
        context.environment(PYG_DIRECT_REQUIRE_GPU="1"),
        TESTS.parent,
    )
    context.keep("counts", count_results(log.read_text(errors="replace")))
    context.keep("outcome", outcome._asdict())


def find_sanitizer() -> str | None:
    """Return the path of compute-sanitizer: named, of the toolkit, or of NVIDIA's wheel.

    The wheel is nvidia-cuda-sanitizer-api-cu12, for CUDA 12.
    """
    named = os.environ.get("COMPUTE_SANITIZER") or shutil.which("compute-sanitizer")
    if named:
        return named
    patterns = [
        "/usr/local/cuda*/bin/compute-sanitizer",
        *(f"{folder}/nvidia/**/compute-sanitizer" for folder in site.getsitepackages()),
    ]
    found = [file for pattern in patterns for file in sorted(glob.glob(pattern, recursive=True))]
    return found[-1] if found else None


def sanitize(context: Context) -> None:
    """Run memcheck over `gpu_small_run`, and then the other tools of compute-sanitizer at once."""
    need("pytest", "hypothesis")
    sanitizer = find_sanitizer()
    if sanitizer is None:
        raise MissingError(
            "compute-sanitizer was not found; it is part of the CUDA toolkit. Set "
            "COMPUTE_SANITIZER to its path."
        )
    context.keep("sanitizer", sanitizer)
    # Every array in an allocation of its own, so that each one's bounds are seen.
    env = context.environment(PYTORCH_NO_CUDA_MEMORY_CACHING="1")
    for tools in (TOOLS[:1], TOOLS[1:]):
        running = {
            tool: Running(sanitizer_command(sanitizer, tool), context.logs / f"{tool}.txt", env,
                          TESTS.parent)
            for tool in tools
        }  # fmt: skip
        for tool, process in running.items():
            outcome = process.wait(context.left() - MARGIN_SECONDS)
            context.keep(tool, outcome._asdict())


def sanitizer_command(sanitizer: str, tool: str) -> list[str]:
    """Return the command that runs every kernel under one tool."""
    return [
        sanitizer, "--tool", tool, "--error-exitcode", str(SANITIZER_FOUND), "--print-limit", "20",
        "--target-processes", "all", sys.executable, "-m", "benchmarks.gpu.small_run",
    ]  # fmt: skip
