"""The benchmarks of training, of statistics and of plans run, on toy sizes."""

import json

import pytest

from benchmarks import accelerated_training, plan_accuracy, stats_cost


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_accelerated_training(tmp_path) -> None:
    pytest.importorskip("torch_sparse")
    out = tmp_path / "result.json"
    accelerated_training.main(["--smoke", "--rounds", "1", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["model"] for row in rows] == [*accelerated_training.MODELS, "to_hetero(SAGE)"]
    assert all(row["difference"] < 1e-4 for row in rows)
    assert rows[0]["forms"] == ["product"]
    assert "| GraphSAGE |" in out.with_suffix(".md").read_text()


def test_stats_cost(tmp_path) -> None:
    out = tmp_path / "result.json"
    stats_cost.main(["--smoke", "--out", str(out)])
    assert json.loads(out.read_text())["add"]["median"] > 0


def test_plan_accuracy(tmp_path) -> None:
    out = tmp_path / "result.json"
    plan_accuracy.main(["--smoke", "--out", str(out)])
    (row,) = json.loads(out.read_text())["rows"]
    assert abs(row["with_graph"]["error_percent"]) < 10
