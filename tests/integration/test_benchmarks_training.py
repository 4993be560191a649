"""The benchmarks of training, of statistics and of plans run, on toy sizes."""

import json

import pytest

from benchmarks import accelerated_training, plan_accuracy, stats_cost
from benchmarks.training import end_to_end


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_accelerated_training(tmp_path) -> None:
    pytest.importorskip("torch_sparse")
    accelerated_training.main(["--quick", "--rounds", "1", "--out", str(tmp_path)])
    out = tmp_path / "accelerated_training.json"
    rows = json.loads(out.read_text())["rows"]
    assert [row["model"] for row in rows] == [*accelerated_training.MODELS, "to_hetero(SAGE)"]
    assert all(row["difference"] < 1e-4 for row in rows)
    assert rows[0]["forms"] == ["product"]
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
    assert "## to_hetero(SAGE)" in out.with_suffix(".md").read_text()


def test_stats_cost(tmp_path) -> None:
    stats_cost.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "stats_cost.json"
    assert json.loads(out.read_text())["add"]["median"] > 0


def test_plan_accuracy(tmp_path) -> None:
    plan_accuracy.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "plan_accuracy.json"
    (row,) = json.loads(out.read_text())["rows"]
    assert abs(row["with_graph"]["error_percent"]) < 10
