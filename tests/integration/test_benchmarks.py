"""Every benchmark runs at toy size, and its result holds what is promised."""

import json
import math
import sys
from functools import partial
from pathlib import Path

import pytest
from results import check_environment

import benchmarks.__main__
from benchmarks import load, machine
from benchmarks import result as result_module
from benchmarks.cpu import derive, report
from benchmarks.cpu import loaders as cpu_loaders
from benchmarks.cpu.cases import OURS, TORCH_SPARSE, available
from benchmarks.machine import copy_bandwidth, describe
from benchmarks.result import COMMANDS, QUICK_NOTE, RESULTS, markdown
from benchmarks.statistics import permutation_test, spread
from benchmarks.training import accuracy

# PyG's own loader needs torch_sparse, which an ordinary install has not.
LOADERS = [loader for loader in (OURS, TORCH_SPARSE) if available(loader)]

METRICS = {
    "batch_ms",
    "batch_cpu_ms",
    "batch_nodes",
    "batch_edges",
    "sampling_ms",
    "sampling_cpu_ms",
    "construct_seconds",
    "construct_peak_extra_bytes",
    "iterating_extra_bytes",
}


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def cpu_result(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    # One setting of the allocator: each contestant is a process, with its imports to wait for.
    cpu_loaders.main(["--quick", "--out", str(folder)])
    return folder / "cpu.json"


@pytest.mark.slow
def test_the_benchmark_of_cpu_loaders_measures_all_loaders_and_metrics(cpu_result):
    result = json.loads(cpu_result.read_text())
    check_environment(result)
    assert result["quick"] is True
    assert set(result["copy_bytes_per_s"]) >= {"1"}
    (graph,) = result["graphs"]
    assert graph["failures"] == {}
    measured = {(row["loader"], row["num_workers"], row["metric"]) for row in graph["rows"]}
    for loader in LOADERS:
        for num_workers in (0, 2):
            assert {m for who, n, m in measured if (who, n) == (loader, num_workers)} == METRICS
    for row in graph["rows"]:
        assert row["malloc"] == "kept"
        assert row["n"] == len(row["samples"]) >= 1
        assert row["min"] <= row["p25"] <= row["median"] <= row["p75"] <= row["max"]
    times = [row for row in graph["rows"] if row["metric"] in derive.METRICS]
    assert all(row["min"] > 0 for row in times)
    assert {row["loader"] for row in graph["limit"]} == set(LOADERS)
    if TORCH_SPARSE in LOADERS:
        assert {row["num_workers"] for row in graph["ratios"]} == {"best", "0", "2"}
    else:
        assert TORCH_SPARSE in result["not_installed"]


@pytest.mark.slow
def test_the_report_has_all_tables_and_is_written_again_alike(cpu_result):
    written = cpu_result.with_suffix(".md").read_text()
    cpu_result.with_suffix(".md").unlink()
    assert benchmarks.__main__.main(["report", str(cpu_result)]) == 0
    text = cpu_result.with_suffix(".md").read_text()
    for title, _ in report.TABLES.values():
        assert f"| {title} |" in text
    assert text == written
    assert QUICK_NOTE in text
    assert cpu_result.with_suffix(".png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_first_batch_takes_longer_with_a_cold_kernel_cache():
    rows = cpu_loaders.first_batches(1)
    states = {(row["loader"], row["kernel_cache"]) for row in rows}
    baseline = {(TORCH_SPARSE, "none")} if TORCH_SPARSE in LOADERS else set()
    assert states == {(OURS, "cold"), (OURS, "warm")} | baseline
    own = {
        (row["loader"], row["kernel_cache"]): row["median"]
        for row in rows
        if row["metric"] == "own_s"
    }
    assert own[OURS, "warm"] < own[OURS, "cold"]


@pytest.mark.skipif(TORCH_SPARSE not in LOADERS, reason="PyG's own loader needs torch_sparse")
def test_the_benchmark_of_accuracy_has_a_row_for_both_loaders(tmp_path):
    accuracy.main(["--quick", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "accuracy.json").read_text())
    check_environment(result)
    (row,) = result["rows"]
    for loader in (OURS, "pyg"):
        assert len(row["accuracy"][loader]) == 2
        assert 0 <= row["mean"][loader] <= 1
        assert row["std"][loader] >= 0
    assert 0 < row["p_value"] <= 1
    assert "| generated |" in (tmp_path / "accuracy.md").read_text()


def row(loader, num_workers, samples, metric="batch_ms"):
    who = {"loader": loader, "num_workers": num_workers, "malloc": "default"}
    return {**who, "metric": metric, "samples": samples, **spread(samples)}


def test_ratios_compare_best_with_best():
    rows = [
        row(OURS, 0, [2.0, 2.0, 4.0]),
        row(OURS, 2, [1.0, 1.0, 1.0]),
        row(TORCH_SPARSE, 0, [8.0, 6.0, 8.0]),
        row(TORCH_SPARSE, 2, [9.0, 9.0, 9.0]),
    ]
    ratios = {found["num_workers"]: found for found in derive.ratios(rows)}
    assert ratios["best"]["ratio"] == 8.0
    assert ratios["0"]["ratio"] == 4.0
    assert ratios["2"]["ratio"] == 9.0
    assert ratios["0"]["p25"] == 2.5  # of 4, 3, 2


def test_limit_counts_bytes():
    # Two nodes of 3 features and one edge: 2 (2 (12 + 8) + 8 + 8) + (8 + 24).
    assert derive.bytes_per_batch(2, 1, 3) == 144
    sizes = [row(OURS, 0, [2.0], "batch_nodes"), row(OURS, 0, [1.0], "batch_edges")]
    graph = {"rows": [row(OURS, 0, [10.0]), *sizes], "case": {"num_features": 3}}
    (limit,) = derive.limit(graph, {"1": 144e3})
    assert limit["bytes"] == 144
    assert limit["limit_ms"] == {"1": pytest.approx(1.0)}
    assert limit["times_limit"] == {"1": pytest.approx(10.0)}


@pytest.mark.slow
def test_a_failed_contestant_does_not_stop_the_run(capsys):
    child = cpu_loaders.Child(
        cpu_loaders.Contestant(OURS, 0, "default"), cpu_loaders.cases.QUICK_CASES[0]
    )
    assert child.ask("load", folder="/no/such/folder") == {}
    assert "FileNotFoundError" in child.failure
    assert child.ask("construct") == {}
    child.close()
    assert "failed in load" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ends", "how"),
    [
        ("import sys; print('no such library', file=sys.stderr); sys.exit(3)", "with 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "by SIGKILL"),
    ],
    ids=["error", "killed"],
)
def test_a_contestant_that_dies_says_why(ends, how, tmp_path, capsys):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{ends}"\n')
    python.chmod(0o755)
    case = cpu_loaders.cases.QUICK_CASES[0]._replace(quick=False)
    child = cpu_loaders.Child(cpu_loaders.Contestant(OURS, 0, "default"), case, str(python))
    assert child.ask("load", folder="x" * 100_000) == {}  # more than a pipe holds
    assert child.failure.startswith(f"the process ended {how}, having said:")
    assert how != "with 3" or "no such library" in child.failure
    child.close()
    assert "failed in load" in capsys.readouterr().err


def test_loaders_of_another_interpreter_take_part():
    names = {who.loader for who in cpu_loaders.cases.contestants("default", ["graphbolt"])}
    assert "graphbolt" in names


def test_rounds_in_which_others_took_cores_are_named():
    told = load.taken_by_others([0.1, 0.9, 0.0, 1.4])
    assert told[-1] == (
        "Other programs took 0.6 cores on average while it ran, 0.5 or more in the rounds "
        "2 (0.9), 4 (1.4)."
    )
    assert load.taken_by_others([0.1, 0.2])[-1].endswith("while it ran.")
    assert load.taken_by_others(None) == []


def test_each_result_says_what_others_took_while_it_ran(tmp_path, monkeypatch):
    moments = iter([(0.0, 0.0, 0.0), (10.0, 20.0, 8.0)])
    monkeypatch.setattr(load, "_now", lambda: next(moments))
    monkeypatch.setattr(result_module, "RUNNING", {})
    machine = {"cpu_model": "a", "cores": 2, "memory_bytes": 1, "load_average_1min": 0.1}
    found = {"versions": {}, "commit": "0", "machine": machine}
    monkeypatch.setattr(result_module, "environment", lambda: found)
    result = result_module.new_result("construction", True)
    path = result_module.write(result, tmp_path)
    assert json.loads(path.read_text())["others_cores"] == pytest.approx(1.2)
    assert "1.2 cores taken by other programs while it ran" in describe(result)


def test_the_cores_of_this_process_do_not_count_as_those_of_others(monkeypatch):
    ends = (10.0, 20.0, 8.0), (20.0, 30.0, 18.0)
    moments = iter([(0.0, 0.0, 0.0), ends[0], ends[0], ends[1], ends[1]])
    monkeypatch.setattr(load, "_now", lambda: next(moments))
    watch = load.Watch()
    watch.round()
    watch.round()
    assert watch.cores == [pytest.approx(1.2), 0.0]


def test_the_permutation_test_gives_known_p_values():
    low, high = [1.0, 2, 3, 4, 5], [6.0, 7, 8, 9, 10]
    assert permutation_test(low, high) == pytest.approx(2 / 252)
    assert permutation_test(low, low) == 1
    # Too many deals to go through them all: about the same.
    assert permutation_test([0.0, 1] * 10, [0.0, 1] * 10) == 1
    assert permutation_test([0.0] * 12, [1.0] * 12) < 0.001


def test_the_spread_of_samples_is_their_quartiles_and_extremes():
    found = spread([1.0, 2.0, 3.0, 4.0, 100.0])
    assert found == {"n": 5, "median": 3, "p25": 2, "p75": 4, "min": 1, "max": 100}
    assert math.isclose(spread([0.5])["median"], 0.5)


def test_the_copy_bandwidth_is_positive_for_each_number_of_threads():
    speeds = copy_bandwidth(1 << 20, repeats=2)
    assert set(speeds) >= {"1"}
    assert all(math.isfinite(value) and value > 0 for value in speeds.values())


def test_the_command_lists_all_benchmarks_and_refuses_unknown_ones(capsys):
    assert benchmarks.__main__.main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"    {name} " in listed for name in [*COMMANDS, "all", "report"])
    assert benchmarks.__main__.main(["cpus"]) == 2
    assert "no benchmark 'cpus'" in capsys.readouterr().err
    for command in COMMANDS.values():
        with pytest.raises(SystemExit, match="0"):
            command.load().main(["--help"])
        assert "--quick" in capsys.readouterr().out


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.name)
def test_committed_reports_are_those_of_the_committed_results(path):
    result = json.loads(path.read_text())
    assert result["quick"] is False
    check_environment(result)
    if hasattr(COMMANDS[result["benchmark"]].load(), "sections"):
        assert path.with_suffix(".md").read_text() == markdown(result, path.stem)


def test_all_runs_each_command(monkeypatch):
    ran = []
    for name, command in COMMANDS.items():
        run = lambda argv, name=name: ran.append((name, argv))  # noqa: E731
        monkeypatch.setattr(command.load(), "main", run)
    benchmarks.__main__.main(["all", "--quick"])
    assert ran == [(name, ["--quick"]) for name in COMMANDS]


def test_toy_sizes_do_not_overwrite_committed_results(tmp_path) -> None:
    parser, out = benchmarks.result.parser("A benchmark."), str(tmp_path)
    assert parser.parse_args([]).out == benchmarks.result.RESULTS
    quick = parser.parse_args(["--quick"])
    assert quick.quick is True
    assert not quick.out.is_relative_to(benchmarks.result.RESULTS)
    for arguments in (["--quick", "--out", out], ["--out", out, "--quick"]):
        assert parser.parse_args(arguments).out == tmp_path


class Stub:
    """A benchmark that writes a result, and fails as often as it is told."""

    def __init__(self, name: str, failures: int = 0) -> None:
        self.name, self.failures, self.runs = name, failures, 0

    def load(self) -> "Stub":
        return self

    def main(self, argv: list[str]) -> None:
        self.runs += 1
        folder = result_module.parser("A stub.").parse_args(argv).out
        found = result_module.new_result(self.name, False)
        result_module.write(found, folder)
        if self.runs <= self.failures:
            raise RuntimeError("no such data")


def test_all_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stubs = {"a": Stub("a"), "b": Stub("b", failures=1), "c": Stub("c")}
    monkeypatch.setattr(result_module, "COMMANDS", stubs)
    monkeypatch.setattr(machine, "commit", lambda: None)  # git is a process
    run_all = partial(benchmarks.__main__.main, ["all", "--out", str(tmp_path)])
    assert run_all() == 1
    assert "These failed: b." in capsys.readouterr().err
    assert "minutes" not in json.loads((tmp_path / "b.json").read_text())
    assert run_all() == 0
    assert {name: stub.runs for name, stub in stubs.items()} == {"a": 1, "b": 2, "c": 1}
    monkeypatch.setattr(result_module, "sources_digest", lambda: "of another commit")
    assert run_all() == 0
    assert {name: stub.runs for name, stub in stubs.items()} == {"a": 2, "b": 3, "c": 2}
