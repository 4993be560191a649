"""Commands of the package, and the suite's own tests for a GPU."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ..modules import PLANT_VARIABLE
from .processes import children, everywhere

Outcomes = Iterator[tuple[str, str]]
LIMIT_SECONDS = 3600
STAGES_OF_KERNELS = ("gather", "sampling", "small_hops", "quantized")
EXAMPLES = ("hetero", "link_prediction", "temporal", "large_graph")


def _run(schedule: str, *arguments: str, **variables: str) -> tuple[int, str]:
    # Where every process prepares itself, this one does, too.
    start = () if "STANDIN_EVERYWHERE" in variables else ("tests.driver.start",)
    done = subprocess.run(
        [sys.executable, "-m", *start, *arguments],
        env=os.environ | {"STANDIN_SCHEDULE": schedule} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    return done.returncode, done.stdout


def info(schedule: str) -> Outcomes:
    """`python -m pyg_direct.info` names the GPU, and its checks pass.

    The machine's own limit on page-locked memory, which the stand-in does not enforce, may be
    named as the one problem.
    """
    status, output = _run(schedule, "pyg_direct.info", "--no-bandwidth")
    yield "exit status", "" if status == 0 else f"{status}: {output[-300:]}"
    for what, pattern in (
        ("GPU", r"Stand-in GPU 0"),
        ("problems", r"problems: +(none found|1\n +1\. Only \S+ \S+ may be page-locked)"),
    ):
        yield what, "" if re.search(pattern, output) else f"no {pattern!r} in {output[-300:]!r}"


def benchmarks_run_dry(schedule: str) -> Outcomes:
    """`python -m benchmarks gpu --dry` goes through, with a GPU in the machine."""
    with tempfile.TemporaryDirectory() as folder:
        arguments = ("benchmarks", "gpu", "--dry", "--out", folder, "--logs", folder)
        status, output = _run(schedule, *arguments)
    yield "exit status", "" if status == 0 else f"{status}: {output[-300:]}"


def _cells(output: str) -> dict[str, str]:
    """Return what `benchmarks.gpu.right` printed: the outcome of each place."""
    found = re.findall(r"^cell: (.+)$", output, re.MULTILINE)
    return dict(json.loads(line) for line in found)


def right_first(schedule: str) -> Outcomes:
    """The first stage on a GPU finds a wrong word of a kernel, in the kind that uses it alone."""
    wrong_word = {PLANT_VARIABLE: "part & 0xFF)=>part & 0x7F)", "PYG_DIRECT_SELF_CHECK": "0"}
    for kind, variables, pattern in (
        ("node, quantized", {}, "^$"),
        ("node, quantized", wrong_word, r"x: \d+ of \d+ bytes, first at \[\d+, \d+\]: "),
        ("node", wrong_word, "^$"),
    ):
        _, output = _run(schedule, "benchmarks.gpu.right", kind, **variables)
        cells = _cells(output)
        missed = {place: cell for place, cell in cells.items() if not re.search(pattern, cell)}
        named = f"{kind}{', a wrong word in decode.cu' if variables else ''}"
        yield named, str(missed or "") if cells else f"no cell in {output[-300:]!r}"


def stages_for_a_gpu(schedule: str) -> Outcomes:
    """`python -m benchmarks gpu` goes through what trains no model and takes no time, not dry."""
    with tempfile.TemporaryDirectory() as folder:
        only = [part for stage in STAGES_OF_KERNELS for part in ("--only", stage)]
        arguments = ("benchmarks", "gpu", "--toy", "--out", folder, "--logs", folder, *only)
        status, output = _run(schedule, *arguments, **everywhere(schedule))
        result = json.loads((Path(folder) / "gpu.json").read_text())
    yield "exit status", "" if status == 0 else f"{status}: {output[-300:]}"
    for name, stage in result["stages"].items():
        yield name, "" if stage["status"] == "ok" else f"{stage['status']}: {output[-300:]}"


def _pytest(schedule: str, *chosen: str) -> str:
    """Run tests marked `gpu`, and return what failed, or ""."""
    arguments = ("pytest", "-q", "-n", "0", "-m", "gpu", "--timeout=0")
    status, output = _run(schedule, *arguments, *chosen, PYG_DIRECT_REQUIRE_GPU="1")
    failed = re.findall(r"^(?:FAILED|ERROR) \S+", output, re.MULTILINE)
    summary = "; ".join(failed) or output.strip().splitlines()[-1]
    return "" if status == 0 and re.search(r"\d+ passed", output) else summary


def tests_for_a_gpu(schedule: str) -> Outcomes:
    """Tests marked `gpu` pass: all of each file that has some."""
    # Not at the top: the package keeps its processes, and those that they start, on the CPU.
    from benchmarks.gpu.checks import gpu_test_files

    for file in gpu_test_files():
        yield file.name, _pytest(schedule, str(file))


def examples(schedule: str) -> Outcomes:
    """Examples see the CPU's batches on a GPU; their models train on the CPU."""
    for name in EXAMPLES:
        yield name, children(schedule, ["run_example", name])[0]


CHECKS = (info, benchmarks_run_dry, right_first, stages_for_a_gpu, tests_for_a_gpu, examples)
