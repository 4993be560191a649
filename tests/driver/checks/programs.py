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

from ..environment import ROOT
from ..modules import PLANT_VARIABLE
from .processes import children, everywhere

Outcomes = Iterator[tuple[str, str]]
LIMIT_SECONDS = 3600
LONG_TESTS = "test_conformance.py"  # half an hour
APART = ("tests",)  # a stage that is a check of its own, below
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
    """`python -m benchmarks gpu` goes through, not dry; a stage may lack what is not installed.

    Its models compute nothing, as most kernels of torch are left out, and its times say nothing.
    """
    # Not at the top: see `tests_for_a_gpu`.
    from benchmarks.gpu.plan import STAGES

    with tempfile.TemporaryDirectory() as folder:
        only = [part for s in STAGES if s.name not in APART for part in ("--only", s.name)]
        arguments = ("benchmarks", "gpu", "--toy", "--minutes", "300", *only, "--out", folder)
        status, output = _run(schedule, *arguments, "--logs", folder, **everywhere(schedule))
        result = json.loads((Path(folder) / "gpu.json").read_text())
    yield "exit status", "" if status == 0 else f"{status}: {output[-300:]}"
    results = {}
    for name, stage in result["stages"].items():
        done = stage["status"] == "ok" or stage["status"].startswith("not run (")
        yield f"{name}: {stage['status']}", "" if done else f"{stage['status']}: {output[-300:]}"
        results[name] = stage["results"]
    yield "right: cells that differ", str(results["right"]["wrong"] or "")
    for size, case in results["launches"].items():
        works = {what: graph["works"] for what, graph in case["graphs"].items()}
        works_alone = {"the hops of a batch": True, "a batch of given sizes": True}
        expected = works_alone | {"a whole batch": False}
        yield f"graphs of a {size} batch", "" if works == expected else str(case["graphs"])


def _pytest(schedule: str, *chosen: str) -> str:
    """Run tests marked `gpu`, and return what failed, or ""."""
    arguments = ("pytest", "-q", "-n", "0", "-m", "gpu", "--timeout=0")
    status, output = _run(schedule, *arguments, *chosen, PYG_DIRECT_REQUIRE_GPU="1")
    failed = re.findall(r"^(?:FAILED|ERROR) \S+", output, re.MULTILINE)
    summary = "; ".join(failed) or output.strip().splitlines()[-1]
    return "" if status == 0 and re.search(r"\d+ passed", output) else summary


def tests_for_a_gpu(schedule: str) -> Outcomes:
    """Tests marked `gpu` pass: all of each file but the one that takes longest."""
    # Not at the top: the package keeps its processes, and those that they start, on the CPU.
    from benchmarks.gpu.checks import gpu_test_files

    for file in gpu_test_files():
        if file.name != LONG_TESTS:
            yield file.name, _pytest(schedule, str(file))


def conformance_on_a_gpu(schedule: str) -> Outcomes:
    """Both backends sample and gather the same in hundreds of made-up cases."""
    yield LONG_TESTS, _pytest(schedule, str(ROOT / "tests" / "gpu" / LONG_TESTS))


def examples(schedule: str) -> Outcomes:
    """Examples see the CPU's batches on a GPU; their models train on the CPU."""
    for name in EXAMPLES:
        yield name, children(schedule, ["run_example", name])[0]


CHECKS = (
    info,
    benchmarks_run_dry,
    right_first,
    stages_for_a_gpu,
    tests_for_a_gpu,
    conformance_on_a_gpu,
    examples,
)
