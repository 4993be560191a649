"""The benchmarks of training, of statistics and of plans run, on toy sizes."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from benchmarks import accelerated_training, graphbolt, plan_accuracy, readme, stats_cost
from benchmarks.cpu import family as cpu_family
from benchmarks.training import accuracy, end_to_end, family, narrow, tasks


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_benchmark_of_accelerated_training_finds_equal_outputs(tmp_path) -> None:
    pytest.importorskip("torch_sparse")
    accelerated_training.main(["--quick", "--rounds", "1", "--out", str(tmp_path)])
    out = tmp_path / "accelerated_training.json"
    rows = json.loads(out.read_text())["rows"]
    assert [row["model"] for row in rows] == [*accelerated_training.MODELS, "to_hetero(SAGE)"]
    assert all(row["difference"] < 1e-4 for row in rows)
    assert rows[0]["forms"] == ["products"]
    assert "| GraphSAGE |" in out.with_suffix(".md").read_text()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_end_to_end(tmp_path) -> None:
    end_to_end.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "end_to_end.json"
    for task in json.loads(out.read_text())["tasks"]:
        ways = {(row["contestant"], row["num_workers"]) for row in task["rows"]}
        assert {(end_to_end.OURS, 0), (end_to_end.ACCELERATED, 2)} <= ways
        assert all(row["wall_s"]["median"] > 0 < row["cpu_s"]["median"] for row in task["rows"])
    text = out.with_suffix(".md").read_text()
    assert "## to_hetero(SAGE)" in text
    for name, there in end_to_end.RIVALS.items():
        assert there == (f"| {name} |" in text), name
    assert all(word in "\n".join(readme.end_to_end(tmp_path)) for word in ("epochs", "as fast"))


class Stage:
    """A stage of GraphBolt's pipe: what was called on it, and with what."""

    def __init__(self, calls: list[Any]) -> None:
        self.calls = calls

    def __getattr__(self, name: str) -> Any:
        def call(*args: Any, **kwargs: Any) -> Stage:
            self.calls.append((name, args, kwargs))
            return self

        return call


def test_graphbolt_gets_the_same_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same graph as CSC, seeds and labels, and the fan-out in GraphBolt's order."""
    calls: list[Any] = []
    package, module = types.ModuleType("dgl"), Stage(calls)
    package.graphbolt = module  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "dgl", package)
    monkeypatch.setitem(sys.modules, "dgl.graphbolt", module)  # type: ignore[arg-type]
    data = Data(x=torch.rand(3, 2), y=torch.arange(3), edge_index=torch.tensor([[2, 0], [1, 0]]))
    graphbolt.loader_of(data, torch.tensor([2, 0]), [15, 10], 2, 0)
    given = {name: args for name, args, _ in calls}
    indptr, indices = given["fused_csc_sampling_graph"]
    assert (indptr.tolist(), indices.tolist()) == ([0, 1, 2, 2], [0, 2])
    assert [part.tolist() for part in given["ItemSet"][0]] == [[2, 0], [2, 0]]
    assert given["sample_neighbor"][1] == [10, 15]


def test_a_readme_without_a_result_of_end_to_end(tmp_path: Path) -> None:
    assert "no result is committed" in readme.end_to_end(tmp_path)[0]


def test_the_benchmark_of_stats_measures_what_an_addition_costs(tmp_path) -> None:
    stats_cost.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "stats_cost.json"
    assert json.loads(out.read_text())["add"]["median"] > 0


def test_the_plan_with_the_graph_is_within_ten_percent(tmp_path) -> None:
    plan_accuracy.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "plan_accuracy.json"
    (row,) = json.loads(out.read_text())["rows"]
    assert abs(row["with_graph"]["error_percent"]) < 10


@pytest.mark.parametrize(
    ("module", "option"),
    [
        (accuracy, "--datasets"),
        (narrow, "--datasets"),
        (tasks, "--tasks"),
        (family, "--only"),
        (cpu_family, "--only"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_a_choice_that_leaves_nothing_to_measure_is_refused(
    module: Any, option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = [] if module is cpu_family else ["--root", str(tmp_path)]
    with pytest.raises(SystemExit):
        module.main(["--quick", *root, "--out", str(tmp_path), option, "node2"])
    assert f"{option} leaves nothing to measure: there are " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
