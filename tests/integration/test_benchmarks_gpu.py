"""The run on a GPU cannot be broken while there is none: it runs dry, and its parts are tested."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import stat
import sys
import time
import types
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from emulator import emulated

import pyg_direct.sampling.sampler
from benchmarks.cpu.cases import TORCH_SPARSE, available
from benchmarks.gpu import checks as gpu_checks
from benchmarks.gpu import claims as gpu_claims
from benchmarks.gpu import epochs as gpu_epochs
from benchmarks.gpu import gather as gpu_gather
from benchmarks.gpu import large_tables as gpu_tables
from benchmarks.gpu import limited
from benchmarks.gpu import marks as gpu_marks
from benchmarks.gpu import plan as gpu_plan
from benchmarks.gpu import plot as gpu_plot
from benchmarks.gpu import rivals as gpu_rivals
from benchmarks.gpu import run as gpu_run
from benchmarks.gpu import small_run as gpu_small_run
from benchmarks.gpu import training as gpu_training
from benchmarks.gpu import wholegraph as gpu_wholegraph
from benchmarks.gpu.constants import MEASURED_BY, WAYS, changed
from benchmarks.gpu.device import Context, DryDevice, registered
from benchmarks.gpu.limited import Outcome, run_limited
from benchmarks.gpu.needs import PYG_SAMPLERS, MissingError
from benchmarks.gpu.plan import DRY, FULL, STAGES, Stage
from benchmarks.gpu.small_hops import WAYS as SMALL_WAYS
from benchmarks.result import QUICK_NOTE
from examples.support.synthetic import power_law_graph
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.source import FILES, declarations, read_source

NAMES = [stage.name for stage in STAGES]


@pytest.fixture(scope="module")
def dry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dry")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")  # toys gain nothing from threads
        gpu_run.main(["--dry", "--out", str(out), "--logs", str(out / "logs")])
    return out / "gpu.json"


@pytest.mark.slow
def test_a_dry_run(dry: Path) -> None:
    result = json.loads(dry.read_text())
    assert next(iter(result)) == "note"
    assert "DRY RUN" in result["note"]
    assert result["dry"] is True
    assert {"versions", "commit", "sources", "gpus", "machine", "plan"} <= set(result)
    stages = result["stages"]
    assert list(stages) == NAMES
    for stage in STAGES:
        record = stages[stage.name]
        if stage.needs_gpu:
            assert record == {"status": "not run (dry)", "seconds": 0.0, "results": {}}
        elif stage.name == "pyg" and not available(TORCH_SPARSE):
            assert record["status"] == f"not run (not installed: {PYG_SAMPLERS})"
        else:
            assert record["status"] == "ok", record.get("error")
            assert record["results"]
    assert any("device=None means" in line for line in stages["info"]["results"]["report"])
    assert len(result["marks"]) == len(gpu_marks.MARKS)
    for mark in result["marks"]:
        assert (mark["value"], mark["passed"], mark["why"]) == (None, None, "not run (dry)")
    assert dry.with_suffix(".png").stat().st_size > 10_000


@pytest.mark.slow
def test_a_dry_run_has_all_results_that_marks_and_plot_read(dry: Path) -> None:
    """Everything that the marks and the plot read, by the names under which they read it."""
    record = json.loads(dry.read_text())
    stages = {name: stage["results"] for name, stage in record["stages"].items()}
    cases = {(row["row_bytes"], row["base"]) for row in stages["gather"]["by_row"]}
    assert cases == {(row, base) for row in DRY.row_bytes for base in DRY.bases}
    assert set(stages["sampling"]) == {"host", "device"}
    names = ["float32", *(name for name, _, _ in gpu_gather.QUANTIZED)]
    for place in ("host", "device"):
        assert list(stages["quantized"][place]) == names
    sizes = {name: row["row_bytes"] for name, row in stages["quantized"]["host"].items()}
    features = DRY.num_features
    assert list(sizes.values()) == [4 * features, features, features + 4, 2 * features]
    small = stages["small_hops"]["by_batch_size"]
    assert [row["batch_size"] for row in small] == DRY.small_batch_sizes
    assert all(row[name]["ms"]["n"] == DRY.rounds for row in small for name in SMALL_WAYS)
    hops = stages["small_hops"]
    assert [row["seeds"] for row in hops["first_hop"]] == DRY.hop_seeds
    assert all(row[way]["ms"]["n"] == DRY.rounds for row in hops["first_hop"] for way in WAYS)
    assert [row["blocks"] for row in hops["by_host_blocks"]] == DRY.host_blocks
    assert set(hops["hubs"]) == {"device", "host"}
    tables = stages["large_tables"]["tables"]
    assert [row["bytes"] for row in tables[::2]] == DRY.large_table_bytes
    ways = {(way["row_bytes"], way["order"]) for row in tables for way in row["gathers"]}
    assert ways == {(n, order) for n in DRY.large_row_bytes for order in gpu_tables.ORDERS}
    assert stages["opened"]["right"] is True
    assert stages["opened"]["copied_bytes"] == 0
    assert set(stages["ours"]) == set(gpu_epochs.PLACES)
    assert all(row["batches as on the CPU"] == DRY.compared for row in stages["ours"].values())
    for row in [*stages["ours"].values(), stages["in_memory"]["loader"]]:
        for kind in ("trained", "alone"):
            assert row[kind]["ms"]["n"] == DRY.rounds
            assert row[kind]["nodes"] > 0
        assert (row["useful_bytes"] > 0) == ("host" in (row["topology"], row["features"]))
        assert "indptr" in row["placement"]
    for row in [stages["conventional"]["trained"], *stages["conventional"]["alone"]]:
        assert row["ms"]["n"] == DRY.pyg_rounds
        assert row["workers"] > 0
    assert stages["conventional"]["transfer"]["ours"]["ms"]["n"] == DRY.repeats
    assert all(stages["launches"][size]["launches"] > 0 for size in ("small", "large"))
    assert stages["launches"]["small"]["graphs"]["steps of a training"]["works"]
    assert stages["growth"]["growth"]["batches"] == DRY.growth_batches
    known = gpu_marks.evaluate(stages)  # as if it had been measured
    unknown = {mark.name for mark in known if mark.value is None}
    expected = {"batches as on the CPU", "GPU tests", "compute-sanitizer", "memory growth"}
    assert unknown == expected | (
        set() if available(TORCH_SPARSE) else {"loader against PyG's best"}
    )
    for _, draw in gpu_plot.PANELS:
        draw(FakeAxis(), stages)
    found = {row[0]: row[2] for row in gpu_claims.rows(stages) if not row[2].startswith("- (")}
    # Energy is not readable everywhere.
    assert len(found.keys() - {"less power of the system in training"}) == 3
    assert len(list(dry.parent.glob("*.*"))) == 4  # few enough to be carried away
    report = dry.with_suffix(".md").read_text()
    assert QUICK_NOTE in report
    assert "| ours, host |" in report
    assert "| the conventional way |" in report


def test_each_number_that_a_gpu_must_set_has_a_stage_that_measures_it() -> None:
    numbers = {name for name in vars(tuning) if name.isupper()}
    assert set(MEASURED_BY) == numbers
    assert {stage for stage, _ in MEASURED_BY.values()} <= {stage.name for stage in STAGES}


def test_numbers_are_changed_for_a_while() -> None:
    before = tuning.HOST_BLOCKS
    with changed(HOST_BLOCKS=before + 1):
        assert before + 1 == tuning.HOST_BLOCKS
    assert before == tuning.HOST_BLOCKS


class FakeAxis:
    """Takes every call."""

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments, **named: None


def test_the_stages_are_sound() -> None:
    assert len(set(NAMES)) == len(NAMES)
    assert [gpu_plan.seconds_of(stages) for stages in gpu_plan.CALLS.values()] == [370, 393]
    assert tuple(s for stages in gpu_plan.CALLS.values() for s in stages) == STAGES
    assert all(stage.seconds >= 10 for stage in STAGES)
    for stage in STAGES:
        module, _, function = stage.function.partition(":")
        assert callable(getattr(importlib.import_module(module), function))
    assert NAMES.index("graph") < min(NAMES.index(s.name) for s in STAGES if s.needs_graph)
    value = ["right", "tests", "sanitizer", "gather", "large_tables", "opened", "sampling", "ours"]
    value += ["in_memory", "conventional", "pyg", "launches"]
    assert [name for name in NAMES if name in value] == value


def test_only_stages_without_timings_run_side_by_side() -> None:
    groups = gpu_plan.groups_of(STAGES)
    together = [[stage.name for stage in group] for group in groups if len(group) > 1]
    assert together == [["right", "tests", "sanitizer"], ["graph", "build"]]
    assert [stage for group in groups for stage in group] == list(STAGES)
    assert gpu_plan.groups_of(STAGES, side_by_side=False) == [[stage] for stage in STAGES]


def test_a_group_gets_its_share_and_what_others_left() -> None:
    groups, left = gpu_plan.groups_of(gpu_plan.RIGHT), float(gpu_plan.seconds_of(gpu_plan.RIGHT))
    for number, group in enumerate(groups):  # each takes all it may
        limit = gpu_plan.group_seconds(number, groups, left)
        assert limit == pytest.approx(max(stage.seconds for stage in group))
        left -= limit
    assert left == pytest.approx(0)
    last = len(groups) - 1
    assert gpu_plan.group_seconds(last, groups, 300) == 300


def test_chosen_stages_bring_those_that_they_need() -> None:
    assert gpu_plan.chosen(None) == STAGES
    assert gpu_plan.chosen(None, "speed") == gpu_plan.SPEED
    assert [s.name for s in gpu_plan.chosen(["gather"])] == ["gather"]
    assert [s.name for s in gpu_plan.chosen(["ours", "info"])] == ["info", "graph", "ours"]


def test_every_benchmark_stays_small() -> None:
    for path in Path(gpu_run.__file__).parent.glob("*.py"):
        assert len(path.read_text().splitlines()) < 400, path.name


def test_the_full_plan_has_sizes_of_products_and_calibrated_rows() -> None:
    assert max(FULL.row_bytes) == 4096
    assert min(FULL.row_bytes) == 4
    assert FULL.bases == [0, 16, 64]
    assert (FULL.num_nodes, FULL.num_edges, FULL.num_features) == (2_400_000, 62_000_000, 100)
    assert (FULL.fanout, FULL.batch_size) == ([15, 10, 5], 1024)
    assert FULL.growth_batches >= 1000
    row_bytes, base = gpu_gather.CALIBRATED
    for plan in (FULL, DRY):
        assert row_bytes in plan.row_bytes
        assert base in plan.bases
        assert plan.table_bytes >= max(plan.row_bytes)


def test_dry_results_do_not_go_where_results_are() -> None:
    with pytest.raises(SystemExit):
        gpu_run.main(["--dry", "--out", str(gpu_run.RESULTS), "--only", "info"])
    committed = gpu_run.RESULTS / "gpu.json"
    assert not committed.exists() or json.loads(committed.read_text())["dry"] is False


def run_with(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, outcomes: dict[str, Any], seconds: float = 60
) -> dict[str, Any]:
    """Run stages whose processes are made up: name -> (outcome, results)."""

    def fake(command: list[str], limit: float, log: Path, cwd: Path, quick: bool) -> Outcome:
        assert not quick
        config = json.loads(Path(command[-1]).read_text())
        outcome, results = outcomes[config["stage"]]
        assert limit <= seconds
        assert config["deadline"] <= time.monotonic() + limit
        if results is not None:
            Path(config["out"]).write_text(json.dumps(results))
        return outcome

    monkeypatch.setattr(gpu_run, "run_limited", fake)
    run = gpu_run.Run(tmp_path, tmp_path / "logs", DRY, False, seconds)
    needing = {stage.name for stage in STAGES if stage.needs_graph}
    run.stages(tuple(Stage(name, 10, "module:function", name in needing) for name in outcomes))
    written = json.loads((tmp_path / "gpu.json").read_text())
    assert written["dry"] is False
    assert "note" not in written
    return written["stages"]


def test_a_failure_is_recorded_and_the_next_stage_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stages = run_with(monkeypatch, tmp_path, {
        "gather": (Outcome(1, 2.0, "Traceback: it broke"), {"by_row": []}),
        "sampling": (Outcome(None, 9.0, "hung"), None),
        "pyg": (Outcome(0, 1.0, ""), {"not_run": "no sampler"}),
        "growth": (Outcome(0, 1.0, "fine"), {"points": [1]}),
    })  # fmt: skip
    assert stages["gather"]["status"] == "failed"
    assert stages["gather"]["error"] == "Traceback: it broke"
    assert stages["gather"]["results"] == {"by_row": []}
    assert stages["sampling"]["status"] == "stopped at its time limit"
    assert stages["pyg"]["status"] == "not run (no sampler)"
    assert stages["growth"]["status"] == "ok"
    assert "error" not in stages["growth"]


def test_stages_that_train_do_not_start_without_their_graph(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stages = run_with(monkeypatch, tmp_path, {
        "graph": (Outcome(None, 9.0, "hung"), None),
        "ours": (Outcome(0, 1.0, "fine"), {"host": 1}),
        "quantized": (Outcome(0, 1.0, "fine"), {"host": {}}),
    })  # fmt: skip
    assert stages["ours"] == {
        "status": "not run (there is no graph)", "seconds": 0.0, "results": {},
    }  # fmt: skip
    assert stages["quantized"]["status"] == "ok"


def test_no_stage_starts_without_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stages = run_with(monkeypatch, tmp_path, {"gather": None, "sampling": None}, seconds=2)
    assert {record["status"] for record in stages.values()} == {"not run (no time left)"}


def test_a_command_that_hangs_is_stopped_with_all_that_it_started(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time; "
        "child = subprocess.Popen(['sleep', '60'], start_new_session=True); "
        "print(child.pid, flush=True); time.sleep(60)"
    )
    log = tmp_path / "log.txt"
    running = limited.Running([sys.executable, "-c", code], log)
    while not log.read_text().endswith("\n"):
        time.sleep(0.05)
    child = psutil.Process(int(log.read_text()))
    outcome = running.wait(0.1)
    assert outcome.seconds < 50
    assert (outcome.status, outcome.ok) == (None, False)
    # Where orphans are not reaped, it stays as a zombie.
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_a_command_that_fails_has_its_status_and_the_end_of_its_output(tmp_path: Path) -> None:
    outcome = run_limited([sys.executable, "-c", "print('x' * 9000); raise SystemExit(3)"], 60,
                          tmp_path / "log.txt")  # fmt: skip
    assert (outcome.status, outcome.ok) == (3, False)
    assert len(outcome.tail) == limited.TAIL_CHARACTERS


def context(tmp_path: Path, seconds: float = 120) -> Context:
    deadline = time.monotonic() + seconds
    return Context(False, DRY, tmp_path, tmp_path / "out.json", tmp_path / "logs", deadline)


def test_pytest_is_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "test_made_up.py"
    file.write_text(
        "import os, pytest\npytestmark = pytest.mark.gpu\n"
        "def test_a(): assert os.environ['PYG_DIRECT_REQUIRE_GPU'] == '1'\n"
        "@pytest.mark.parametrize('x', [1, 2])\ndef test_b(x): assert x == 1\n"
        "@pytest.mark.skip\ndef test_c(): pass\n"
    )
    monkeypatch.setattr(gpu_checks, "gpu_test_files", lambda: [file])
    given = context(tmp_path)
    gpu_checks.run_tests(given)
    assert given.results["counts"] == {"passed": 2, "failed": 1, "error": 0, "skipped": 1}
    assert given.results["outcome"]["status"] == 1
    assert json.loads((tmp_path / "out.json").read_text()) == given.results


def test_the_files_with_gpu_tests() -> None:
    tests = gpu_checks.TESTS
    found = {path.relative_to(tests).as_posix() for path in gpu_checks.gpu_test_files()}
    expected = {
        "gpu/test_conformance.py",
        "unit/tools/doctor/test_bandwidth.py",
        "unit/tools/test_info.py",
    }
    assert expected <= found
    without = {"kernels/test_philox.py", "integration/test_benchmarks_gpu.py"}  # the words alone
    assert not without & found


FAKE_SANITIZER = """#!/bin/sh
echo "$@" "$PYTORCH_NO_CUDA_MEMORY_CACHING"
case "$2" in memcheck) touch "$0.done" ;; *) test -e "$0.done" || exit 8 ;; esac
case "$2" in racecheck) exit 9 ;; synccheck) sleep 60 ;; esac
"""


def test_all_tools_of_the_sanitizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(FAKE_SANITIZER)
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("COMPUTE_SANITIZER", str(tool))
    given = context(tmp_path, seconds=gpu_checks.MARGIN_SECONDS + 2)
    gpu_checks.sanitize(given)
    found = {name: given.results[name]["status"] for name in gpu_checks.TOOLS}
    assert found == {"memcheck": 0, "racecheck": 9, "initcheck": 0, "synccheck": None}
    said = given.results["memcheck"]["tail"]
    assert said.startswith("--tool memcheck --error-exitcode 9 ")
    assert said.endswith("-m benchmarks.gpu.small_run 1\n")
    mark = gpu_marks.sanitizer_clean({"sanitizer": given.results})
    assert mark == (2, False, "racecheck found errors, synccheck stopped at its time limit")


def test_the_sanitizer_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTE_SANITIZER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(gpu_checks.site, "getsitepackages", lambda: [str(tmp_path)])
    monkeypatch.setattr(gpu_checks.glob, "glob", lambda pattern, recursive: [])
    with pytest.raises(MissingError, match="COMPUTE_SANITIZER"):
        gpu_checks.sanitize(context(tmp_path))
    monkeypatch.undo()
    monkeypatch.delenv("COMPUTE_SANITIZER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    wheel = tmp_path / "nvidia" / "cuda_sanitizer_api" / "bin" / "compute-sanitizer"
    wheel.parent.mkdir(parents=True)
    wheel.write_text("")
    monkeypatch.setattr(gpu_checks.site, "getsitepackages", lambda: [str(tmp_path)])
    found = gpu_checks.find_sanitizer()
    assert found is not None
    assert found == str(wheel) or os.path.exists("/usr/local/cuda/bin/compute-sanitizer")


@pytest.mark.slow
def test_the_small_run_is_right(capsys: pytest.CaptureFixture[str]) -> None:
    """What the sanitizers run, in the emulator; and every kernel is launched by it."""
    launched = set()
    with emulated() as backend:
        device = backend.library.compiler
        run = device._run

        def watched(kernel: Any, *rest: Any) -> None:
            launched.add(kernel.declaration.name)
            run(kernel, *rest)

        device._run = watched
        gpu_small_run.main(backend)
    assert "agree with the CPU" in capsys.readouterr().out
    assert launched == {d.name for file in FILES for d in declarations(read_source(file))}


def test_a_wrong_kernel_is_seen_by_the_small_run() -> None:
    planted = [("step += kReads * threads", "step += threads")]
    with emulated(planted=planted) as backend, pytest.raises(AssertionError):
        gpu_small_run.stream(backend)


def test_first_batches_that_differ_from_the_cpus_are_named() -> None:
    batches = [{"x": torch.ones(3), "n_id": torch.arange(3)} for _ in range(2)]
    gpu_epochs.compare(batches, batches)
    changed = [batches[0], batches[1] | {"x": torch.zeros(3)}]
    with pytest.raises(AssertionError, match=r"batch 1 differs from the CPU's in x$"):
        gpu_epochs.compare(changed, batches)
    with pytest.raises(AssertionError, match="batch 1 has"):
        gpu_epochs.compare([batches[0], {"x": torch.ones(3)}], batches)


def test_a_graph_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The processes of later stages find the CSC, and get the batches of the graph itself."""
    made = power_law_graph(60, 300, 4, 3)
    gpu_training.save_graph(made, tmp_path)
    sampler = pyg_direct.sampling.sampler
    monkeypatch.setattr(sampler, "shared_graph_of", sampler.shared_graph_of)
    data, train = gpu_training.load_graph(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(gpu_training, "shared_graph_of", lambda *given: pytest.fail("converted"))
        found = list(gpu_training.loader_of(DRY, data, train, device="cpu"))
    expected = list(gpu_training.loader_of(DRY, made, train, device="cpu"))
    for mine, theirs in zip(found, expected, strict=True):
        assert torch.equal(mine.e_id, theirs.e_id)
        assert torch.equal(mine.x, theirs.x)
    other = power_law_graph(60, 200, 4, 3)
    assert next(iter(gpu_training.loader_of(DRY, other, train, device="cpu"))).num_edges > 0


@pytest.mark.parametrize("missing", [False, True])
def test_libraries_of_wholegraph_are_loaded_first(
    missing: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its wheels do not load them, and a library that is missing is named."""
    order: list[str] = []
    for name in ("rapids_logger", "librmm"):
        module = types.ModuleType(name)
        module.load_library = lambda name=name: order.append(name)  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, name, module)
    package = tmp_path / "pylibwholegraph"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "torch.py").write_text("raise ImportError('libwholegraph.so: no such file')")
    monkeypatch.syspath_prepend(tmp_path)
    if missing:
        monkeypatch.setitem(sys.modules, "librmm", None)
    with pytest.raises(MissingError, match=r"libwholegraph\.so"):
        gpu_wholegraph.run(context(tmp_path))
    assert order == ["rapids_logger", "librmm"][: 1 if missing else 2]


def test_nothing_is_built_without_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_rivals, "is_there", lambda names: False)
    with pytest.raises(MissingError, match="--build names none"):
        gpu_rivals.build(context(tmp_path))
    monkeypatch.setattr(gpu_rivals, "is_there", lambda names: True)
    with pytest.raises(MissingError, match="is installed"):
        gpu_rivals.build(context(tmp_path))


def test_random_rows_are_distinct_and_cover_the_table() -> None:
    cpu = torch.device("cpu")
    assert torch.equal(gpu_gather.random_rows(50, 50, cpu).sort().values, torch.arange(50))
    few = gpu_gather.random_rows(1 << 40, 1000, cpu)
    assert few.unique().numel() == 1000
    assert 1 << 38 < int(few.max()) < 1 << 40


def test_growth_is_measured_between_the_second_and_the_last_fifth() -> None:
    """The second fifth against the last: what caches take in the beginning does not count."""
    host = [0, 90, 100, 100, 100, 100, 100, 100, 130, 130]
    points = [{"batch": 10 * i, "host": value} for i, value in enumerate(host, 1)]
    expected = {"batches": 100, "bytes": {"host": 30.0}, "of": {"host": 100.0}}
    assert gpu_epochs.growth_of(points) == expected


def test_useful_bytes_are_counted_in_sectors_of_the_place() -> None:
    measured = {"nodes": 100.0, "edges": 50.0, "expanded": 10.0}
    useful, rows = gpu_training.useful_bytes, [400, 8]  # 13 sectors and one
    assert useful(measured, rows, "host", "host") == 100 * 14 * 32 + 50 * 32 + 10 * 32
    assert useful(measured, rows, "device", "host") == 100 * 14 * 32
    assert useful(measured, rows, "host", "device") == 60 * 32
    assert useful({"nodes": 100.0}, rows, "device", "device") == 0


def test_workers_to_try() -> None:
    assert gpu_rivals.worker_counts(16) == [4, 8, 16]
    assert gpu_rivals.worker_counts(1) == [1]


def test_workers_of_pygs_loader_end_when_they_are_done() -> None:
    """Not when the garbage collector finds them, which takes 5 seconds for each."""
    loader = torch.utils.data.DataLoader(range(3), num_workers=2, persistent_workers=True)
    before = set(multiprocessing.active_children())
    list(loader)
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    gpu_rivals.end_workers(loader)
    assert not any(worker.is_alive() for worker in workers)


def test_a_gather_that_gives_wrong_rows_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = context(tmp_path)
    with emulated() as backend:
        device = DryDevice(backend)
        table = torch.arange(8 * 400).view(8, -1).to(torch.uint8).to(backend.device)
        assert gpu_gather.measure_gather(given, device, table)["rows"] == 5
        right = backend.gather
        monkeypatch.setattr(
            backend, "gather", lambda *arguments: [rows + 1 for rows in right(*arguments)]
        )
        with pytest.raises(AssertionError, match="wrong rows"):
            gpu_gather.measure_gather(given, device, table)


@pytest.mark.parametrize("place", ["cpu", "meta"])
def test_a_table_is_measured_in_host_memory_or_not_at_all(place: str) -> None:
    """Loaders move narrow rows to the device, where a gather is not one over the link."""
    table, placed = torch.zeros(4, 32), []
    memory = types.SimpleNamespace(
        place_tables=lambda tables, features: placed.append(features),
        readable=lambda tensor: tensor.to(place),
    )
    device: Any = types.SimpleNamespace(
        device=torch.device("meta"), backend=types.SimpleNamespace(memory=memory)
    )
    if place == "cpu":
        assert registered(device, table) is table
    else:
        with pytest.raises(AssertionError, match="in the device's memory"):
            registered(device, table)
    assert placed == ["host"]


def test_a_plot_of_nothing(tmp_path: Path) -> None:
    gpu_plot.plot({"dry": False, "stages": {}}, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
