"""The benchmarks of training, of statistics and of plans run, on toy sizes."""

import json

import pytest

from benchmarks import accelerated_training, plan_accuracy, stats_cost


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


def test_stats_cost(tmp_path) -> None:
    stats_cost.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "stats_cost.json"
    assert json.loads(out.read_text())["add"]["median"] > 0


def test_plan_accuracy(tmp_path) -> None:
    plan_accuracy.main(["--quick", "--out", str(tmp_path)])
    out = tmp_path / "plan_accuracy.json"
    (row,) = json.loads(out.read_text())["rows"]
    assert abs(row["with_graph"]["error_percent"]) < 10
