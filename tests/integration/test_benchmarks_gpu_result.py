"""The result of the run on a GPU: made by several calls, on machines where much is missing."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import machine
from benchmarks.gpu import checks, claims, marks, needs, report, right
from benchmarks.gpu import run as gpu_run
from benchmarks.gpu.limited import Outcome
from benchmarks.gpu.plan import DRY, Stage

ROOT = Path(__file__).parents[2]
# Hides packages from a process and from those that it starts, as if they were not installed.
HIDING = """
import importlib.metadata, os, socket, sys
from importlib.machinery import PathFinder

hidden = set(os.environ["HIDDEN"].split())
bare = "pyg-direct" in hidden  # not installed; the checkout is the current folder

class Hiding:
    def __init__(self, finder):
        self.finder = finder
    def __getattr__(self, name):
        return getattr(self.finder, name)
    def find_spec(self, name, path=None, target=None):
        if bare and name == "pyg_direct":
            return PathFinder.find_spec(name, [p for p in sys.path if "site-packages" not in p])
        is_hidden = name.partition(".")[0] in hidden
        return None if is_hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Hiding(finder) for finder in sys.meta_path]
if "network" in hidden:
    def refused(*arguments, **named):
        raise OSError("there is no network")
    socket.getaddrinfo = socket.create_connection = refused
if bare:
    found = importlib.metadata.version
    def version(name):
        if name == "pyg-direct":
            raise importlib.metadata.PackageNotFoundError(name)
        return found(name)
    importlib.metadata.version = version
"""
# What is hidden, and a stage that could use it. PyG itself needs psutil.
HIDDEN = {
    "matplotlib": "graph",
    "torch_sparse pyg_lib": "pyg",
    "pynvml": "in_memory",
    "network": "graph",
    "pyg-direct": "gather",
    "git": "graph",
}


@pytest.mark.slow
@pytest.mark.parametrize("hidden", HIDDEN)
def test_without_a_package(hidden: str, tmp_path: Path) -> None:
    """It is named in the result; what needs it is skipped, and nothing fails."""
    (tmp_path / "sitecustomize.py").write_text(HIDING)
    paths = [str(tmp_path)] if hidden == "pyg-direct" else [str(tmp_path), str(ROOT)]
    environment = {**os.environ, "HIDDEN": hidden, "PYTHONPATH": os.pathsep.join(paths)}
    if hidden == "git":
        environment["PATH"] = str(tmp_path)
    command = [sys.executable, "-m", "benchmarks", "gpu", "--dry", "--only", HIDDEN[hidden]]
    out = tmp_path / "out"
    done = subprocess.run(
        [*command, "--out", str(out), "--logs", str(tmp_path / "logs")],
        env=environment, cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    result = json.loads((out / "gpu.json").read_text())
    status = result["stages"][HIDDEN[hidden]]["status"]
    named = {"torch_sparse pyg_lib": needs.PYG_SAMPLERS}.get(hidden, hidden)
    assert status == ("ok" if named != needs.PYG_SAMPLERS else f"not run (not installed: {named})")
    if hidden in ("network", "pyg-direct"):  # nothing needs them
        assert hidden not in result["missing"]
    else:
        assert named in result["missing"]
    assert (out / "gpu.png").exists() == (hidden != "matplotlib")
    if hidden == "git":
        assert result["commit"] is None
    if hidden == "pyg-direct":
        assert result["versions"]["pyg_direct"] is None


def test_stages_that_need_what_is_missing_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(needs, "is_there", lambda module: module != "hypothesis")
    assert needs.missing()["hypothesis"] == "stages tests and sanitizer"
    needs.need("pytest")
    with pytest.raises(needs.MissingError, match="not installed: hypothesis"):
        needs.need("pytest", "hypothesis")


def call(
    monkeypatch: pytest.MonkeyPatch,
    out: Path,
    stages: dict[str, Any],
    sources: str = "abc",
    gpus: Sequence[str] = ("Some GPU",),
) -> dict[str, Any]:
    """Run made-up stages of one call, and return the result."""

    def fake(command: list[str], limit: float, log: Path, cwd: Path, quick: bool) -> Outcome:
        config = json.loads(Path(command[-1]).read_text())
        Path(config["out"]).write_text(json.dumps(stages[config["stage"]]))
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"said by {config['stage']}\n")
        return Outcome(0, 1.0, "")

    monkeypatch.setattr(gpu_run, "run_limited", fake)
    monkeypatch.setattr(gpu_run.machine, "commit", lambda: None)
    monkeypatch.setattr(gpu_run.machine, "sources_digest", lambda **_: sources)
    monkeypatch.setattr(gpu_run, "gpu_names", lambda: list(gpus))
    run = gpu_run.Run(out, out / "logs", DRY, False, 60)
    run.go_on()
    run.stages(tuple(Stage(name, 10, "module:function") for name in stages))
    found: dict[str, Any] = json.loads((out / "gpu.json").read_text())
    return found


def test_a_second_call_adds_to_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    call(monkeypatch, tmp_path, {"info": {"report": ["GPU 0:   Some GPU, 80 GB"]}, "pyg": {"a": 1}})
    found = call(monkeypatch, tmp_path, {"gather": {"by_row": []}, "pyg": {"a": 3}})
    results = {name: stage["results"] for name, stage in found["stages"].items()}
    assert list(results) == ["info", "gather", "pyg"]  # in the order of a whole call
    assert (results["gather"], results["pyg"]) == ({"by_row": []}, {"a": 3})
    assert "Some GPU, 80 GB." in (tmp_path / "gpu.md").read_text()
    logs = (tmp_path / "gpu_logs.txt").read_text()
    assert "==== gather.log\nsaid by gather\n" in logs
    with pytest.raises(ValueError, match="another call, whose sources differ"):
        call(monkeypatch, tmp_path, {"gather": {}}, sources="def")
    with pytest.raises(ValueError, match="another call, whose gpus differ"):
        call(monkeypatch, tmp_path, {"gather": {}}, gpus=["Another GPU"])


def test_sources_are_told_apart_without_a_checkout(tmp_path: Path) -> None:
    """By what is in them; what a run writes is none of them."""
    for name in ("cuda/gather.cu", "pyg_direct/ops/a.py", "benchmarks/results/gpu.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    before = machine.sources_digest(tmp_path)
    (tmp_path / "benchmarks" / "results" / "gpu.json").write_text("two")
    assert machine.sources_digest(tmp_path) == before
    found = {before}
    for name in ("cuda/gather.cu", "pyg_direct/ops/a.py"):
        (tmp_path / name).write_text("two")
        found.add(machine.sources_digest(tmp_path))
    (tmp_path / "cuda" / "gather.cu").rename(tmp_path / "cuda" / "other.cu")
    found.add(machine.sources_digest(tmp_path))
    assert len(found) == 4


def test_logs_are_cut_to_what_can_be_carried_away(tmp_path: Path) -> None:
    for number in range(60):
        (tmp_path / f"{number}.txt").write_text(f"{number} " * gpu_run.LOG_BYTES)
    text = gpu_run.packed(tmp_path)
    assert len(text) <= gpu_run.LOGS_BYTES < 16 << 20
    assert text.endswith("9 9 \n")


DIFFERS = "batch 0: x: 4 of 8 bytes"
RIGHT = {"table": {"node": {"default": "", "host": DIFFERS}, "HGT": {"host": ""}}}
TRAINED = {
    "ms": {"n": 1, "median": 3.0}, "cores": 0.5, "joules": {"gpu": 2.0, "processor": 1.0},
    "watts": {"gpu": 200.0, "processor": 100.0}, "energy_not_readable": {},
}  # fmt: skip


def trained(milliseconds: float, watts: float) -> dict[str, Any]:
    """Return a record of training."""
    return {**TRAINED, "ms": {"n": 1, "median": milliseconds}, "watts": {"gpu": watts}}


def test_the_report_names_what_differs() -> None:
    lines = report.batches(RIGHT)
    assert lines[0] == "|  | default | host |"
    assert lines[2:4] == ["| node | equal | **differs** |", "| HGT |  | equal |"]
    assert lines[-1] == f"* node, host: {DIFFERS}"


def test_the_claims_of_others_have_rows() -> None:
    stages = {
        "conventional": {
            "trained": trained(6.0, 400.0),
            "transfer": {
                "rows": 1000.0,
                "conventional": {"ms": {"median": 4.0}},
                "ours": {"ms": {"median": 1.0}},
            },
        },
        "ours": {"host": {"trained": trained(4.0, 300.0)}},
        "in_memory": {"loader": {"trained": trained(2.0, 300.0)}},
    }
    ours = [row[2] for row in claims.rows(stages)]
    assert ours == [
        "75.0 % (4.000 to 1.000 ms for 1,000 rows)",
        "1.50 x (6.00 to 4.00 ms a batch)",
        "25.0 % (400 to 300 W)",
        "- (the call uses one GPU)",
        "2.00 x the time (4.00, 2.00 ms a batch)",
    ]
    assert all(row[2].startswith("- (") for row in claims.rows({}))
    stages["ours"]["host"]["trained"]["energy_not_readable"] = {"processor": "no RAPL"}
    assert "no RAPL" in claims.rows(stages)[2][2]


@pytest.mark.parametrize(
    ("graph", "line"),
    [
        ({"works": True, "replayed: thread_ms": 0.5}, "works: replayed: thread_ms 0.500."),
        ({"works": False, "error": "E: no", "call": "m.py, f: g()"}, "not work: E: no at `m.py"),
    ],
)
def test_the_report_of_graphs(graph: dict[str, Any], line: str) -> None:
    record = {"launches": 9, "thread_ms": 1.0, "wall_ms": 2.0, "graphs": {"the hops": graph}}
    lines = list(report.launches({"launches": {"small": record}}))
    assert lines[1].startswith("A small batch with its features takes 9 launches, 1.000 ms")
    assert line in lines[2]


def times(median: float) -> dict[str, Any]:
    """Return a measurement of batches."""
    return {"ms": {"n": 3, "median": median, "p25": median - 1, "p75": median + 1}}


def test_the_summary_has_milliseconds_of_batches_and_steps() -> None:
    """Of ours by place, and of its rivals, each with the number of workers that is best."""
    assert report.summary(None) == [report.NO_RESULT]
    mark = {"name": "m", "wanted": "w", "value": 2.0, "passed": True, "why": "so"}
    stages = {
        "info": {"report": ["GPU 0:   Some GPU"]},
        "ours": {"host": {"trained": times(20), "alone": times(10)}, "auto": {"alone": times(3)}},
        "conventional": {"alone": [times(70), times(60), times(80)], "trained": times(90)},
        "in_memory": {"cached batches": times(19)},
    }
    result = {"dry": False, "gpus": ["Some GPU"], "marks": [mark, {**mark, "value": None}],
              "plan": DRY._asdict(),
              "stages": {name: {"results": found} for name, found in stages.items()}}  # fmt: skip
    lines = report.summary(result)
    assert lines[0].startswith("Run on Some GPU; ")
    assert lines[2:4] == ["* m: so", ""]
    assert lines[4].startswith("300 edges, 4 seeds a batch")
    assert [line.split("|")[1].strip() for line in lines[8:]] == [
        "ours, host", "batches made beforehand", "the conventional way",
    ]  # fmt: skip
    assert [re.findall(r"(\d+)\.?\d* \(", line) for line in lines[8:]] == [
        ["10", "20"], ["19"], ["60", "90"],
    ]  # fmt: skip
    result["stages"] = {}
    assert report.summary(result)[-1].startswith("No batch was measured")


def test_the_report_of_large_tables() -> None:
    gathers = [
        {"row_bytes": 400, "order": order, "bytes_per_second": {"median": rate}}
        for order, rate in (("random", 2e9), ("ascending", 8.5e9))
    ]
    tables = [
        {"bytes": 4_000_000_000, "pages": "4 KiB", "register_seconds": 1.5, "gathers": gathers},
        {"bytes": 32_000_000_000, "pages": "2 MiB", "left out": "too much"},
    ]
    graph = {"bytes": 2e9, "copied_bytes": 0, "bytes_per_second": {"median": 3e9}}
    lines = report.large_tables({"large_tables": {"tables": tables}, "opened": graph})
    assert lines[0].endswith("| GB/s, random | GB/s, ascending |")
    assert lines[2].replace(" ", "") == "|4GB|4KiB|400|1.50|2.00|8.50|"
    assert "too much" in lines[3]
    assert "registering copied 0 bytes; 3.00 GB/s" in lines[-1]
    assert report.large_tables({}) == ["Not measured."]


def test_the_report_of_rows_has_ours_by_base_and_wholegraphs() -> None:
    def row(row_bytes: int, rate: float, **more: int) -> dict[str, Any]:
        return {"row_bytes": row_bytes, "bytes_per_second": {"median": rate}, **more}

    ours = [row(400, 40e9, base=0), row(400, 39e9, base=64), row(16, 6e9, base=0)]
    stages = {"gather": {"by_row": ours}, "wholegraph": {"gather": [row(400, 37e9)]}}
    assert list(report.rows(stages))[-2:] == ["| 16 | 6 |  |  |", "| 400 | 40 | 39 | 37 |"]
    assert list(report.rows({})) == []


@pytest.mark.parametrize(("rate", "passed"), [(44e9, False), (46e9, True), (60e9, False)])
def test_a_gather_passes_near_the_link_and_not_above_it(rate: float, passed: bool) -> None:
    def median(number: float) -> dict[str, Any]:
        return {"bytes_per_second": {"median": number}}

    link = {"stream_kernel": [median(50e9)], "copy_engine": median(49e9)}
    rows = [{"row_bytes": 400, "base": 0, **median(rate)}]
    stages: Any = {"gather": {"link": link, "by_row": rows}}
    assert marks.gather_near_link(stages)[1] is passed


@pytest.mark.parametrize(
    ("row", "value", "passed"),
    [
        ({"host": "", "device": ""}, 0, True),
        ({"host": "", "device": "no outcome: time limit"}, 0, None),
        ({"host": "n_id[0]: 1, 2", "device": "no outcome: time limit"}, 1, False),
    ],
)
def test_places_that_were_not_compared_are_no_failures(row, value, passed) -> None:
    found = marks.batches_right({"right": {"table": {"node": row}}})
    assert found[:2] == (value, passed)
    assert found[2].startswith(f"{list(row.values()).count('')} of 2 places of 1 kinds of loaders")


def test_tests_of_several_workers_are_counted() -> None:
    text = """
[gw0] [  3%] PASSED tests/gpu/test_conformance.py::test_any_graph
tests/gpu/test_pinning.py::test_a_table[PASSED ]
[gw11] [ 12%] FAILED tests/gpu/test_pinning.py::test_a_table[PASSED ]
[gw0] [100%] PASSED tests/gpu/test_pinning.py::test_another
"""
    expected = {"passed": 2, "failed": 1, "error": 0, "skipped": 0}
    assert checks.count_results(text) == expected


def test_places_without_an_outcome_are_told_from_those_that_differ() -> None:
    row = right.row_of("node, LABOR", 'cell: ["default", ""]\ncell: ["host", "x"]', "time limit")
    assert [report.cell(row[place]) for place in ("default", "host", "device")] == [
        "equal", "**differs**", "no outcome",
    ]  # fmt: skip
    assert report.cell(None) == ""


def test_folders_of_one_machine_are_not_in_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_run, "REPOSITORY", Path("/home/me/checkout"))
    monkeypatch.setattr(Path, "home", lambda: Path("/home/me"))
    monkeypatch.setattr(sys, "prefix", "/home/me/checkout/venv")
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    text = "/home/me/checkout/a.py, /home/me/checkout\n/home/me/.cupy /home/me/checkout/venv/bin"
    expected = "./a.py, .\n~/.cupy $VIRTUAL_ENV/bin"
    assert gpu_run.without_paths(text) == expected
    assert gpu_run.without_paths("/home/me2/a /home/me/checkout2/a") == "/home/me2/a ~/checkout2/a"
