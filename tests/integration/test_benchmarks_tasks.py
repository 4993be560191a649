"""Benchmarks of tasks and of the other loaders run at toy size, with complete results."""

import json
import math

import numpy as np
import pytest
import torch
from results import check_environment

from benchmarks.cpu import derive, other_loaders
from benchmarks.cpu.cases import NUM_WORKERS, OURS, TORCH_SPARSE, available
from benchmarks.result import QUICK_NOTE
from benchmarks.training import tasks

pytestmark = pytest.mark.usefixtures("one_thread")

needs_torch_sparse = pytest.mark.skipif(
    not available(TORCH_SPARSE), reason="PyG's own loader needs torch_sparse"
)


@needs_torch_sparse
def test_the_benchmark_of_tasks_scores_links_edge_types_and_times(tmp_path):
    tasks.main(["--quick", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "tasks.json").read_text())
    check_environment(result)
    rows = {row["task"]: row for row in result["rows"]}
    assert {name: list(row["scores"]) for name, row in rows.items()} == {
        "links": ["pyg_direct", "pyg"],
        "edge types": ["pyg_direct", "pyg"],
        "times": ["pyg_direct", tasks.NO_TIMES, tasks.ALL_TIMES],
    }
    for row in rows.values():
        assert 0 < row["p_value"] <= 1
        for name, values in row["scores"].items():
            assert len(values) == 2
            assert all(0 <= value <= 1 for value in values)
            assert math.isclose(row["mean"][name], sum(values) / 2)
    text = (tmp_path / "tasks.md").read_text()
    assert QUICK_NOTE in text
    assert "| links | generated | AUC |" in text
    assert "without a baseline" in text


# From Python 3.12 on, for PyG's workers; this process has idle threads by then.
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_the_benchmark_of_other_loaders_measures_nodes_and_links(tmp_path):
    other_loaders.main(["--quick", "--out", str(tmp_path)])
    result = json.loads((tmp_path / "others.json").read_text())
    check_environment(result)
    assert [graph["case"]["loader"] for graph in result["graphs"]] == [
        other_loaders.NODES,
        other_loaders.LINKS,
    ]
    for graph in result["graphs"]:
        medians = {
            (row["loader"], row["num_workers"], row["metric"]): row["median"]
            for row in graph["rows"]
        }
        for workers in NUM_WORKERS:
            for metric in derive.METRICS:
                assert medians[OURS, workers, metric] > 0
        if available(TORCH_SPARSE):
            assert {row["num_workers"] for row in graph["ratios"]} == {"best", "0", "2"}
            batch = medians[OURS, 0, "batch_edges"], medians[TORCH_SPARSE, 0, "batch_edges"]
            assert batch[0] == pytest.approx(batch[1], rel=0.3)  # both do the same work
        else:
            assert graph["ratios"] == []
    rows = {row["sampling"]: row for row in result["variants"]["rows"]}
    assert set(rows) == set(other_loaders.VARIANTS)
    assert rows[other_loaders.UNIFORM]["of_uniform"] == 1
    assert all(row["min"] > 0 for row in rows.values())
    text = (tmp_path / "others.md").read_text()
    assert QUICK_NOTE in text
    assert "## Weighted and temporal sampling" in text
    if available(TORCH_SPARSE):  # PyG draws what it can with what is installed
        variants = result["variants"]
        measured = {row["sampling"] for row in variants["rivals"]}
        assert {other_loaders.UNIFORM, other_loaders.REPLACE} <= measured
        assert measured | set(variants["refused"]) == set(other_loaders.VARIANTS)
        assert f"| {variants['rivals'][0]['loader']} | times as many |" in text
    assert len(result["variants"]["others_cores"]) == 1


def test_auc_equals_the_share_of_ordered_pairs_with_ties_as_half():
    rng = np.random.default_rng(0)
    score = rng.integers(0, 5, 60).astype(float)  # many ties
    label = rng.integers(0, 2, 60)
    positive, negative = score[label == 1][:, None], score[label == 0]
    pairs = (positive > negative) + 0.5 * (positive == negative)
    assert tasks.auc(score, label) == pytest.approx(pairs.mean())
    assert tasks.auc(label.astype(float), label) == 1
    assert tasks.auc(-label.astype(float), label) == 0
    assert tasks.auc(torch.zeros(4).numpy(), np.array([0, 1, 0, 1])) == 0.5
