"""The benchmark of interpreter time runs, and its committed result keeps to what is wanted."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks import launch_overhead
from benchmarks.result import RESULTS
from pyg_direct.core.types import BatchKey
from pyg_direct.ops.cpu.backend import CpuBackend


def test_launch_overhead_counts_three_launches_for_a_small_batch(tmp_path: Path) -> None:
    launch_overhead.main(["--quick", "--case", "cora-sized", "--out", str(tmp_path)])
    (case,) = json.loads((tmp_path / "launch_overhead.json").read_text())["cases"].values()
    # One for the seeds and both hops, and 2 that write the batch out.
    assert case["launches"] == 1 + 2
    assert case["nodes"] > 1000, "the counts of the CPU's batch were not taken"


def test_counts_are_those_of_the_batch() -> None:
    import numpy as np
    import torch

    from pyg_direct.core.types import SamplingPlan

    csc = launch_overhead.random_csc(launch_overhead.CASES[0])
    plan = SamplingPlan(np.array([[3], [2]]), False, False, False, torch.int64)
    work = CpuBackend().workspace(csc, plan)
    sampled = launch_overhead.run_batch(work, torch.arange(10), BatchKey(0, 0))
    counts = launch_overhead.counts_of(sampled).tolist()
    nodes = np.cumsum(sampled.num_sampled_nodes[0]).tolist()
    edges = sampled.num_sampled_edges[0]
    assert counts == [0, *nodes, *[0] * 6, 0, edges[0], 0, edges[1], 0, 0]


def test_the_committed_result() -> None:
    result = json.loads((RESULTS / "launch_overhead.json").read_text())
    assert list(result["cases"]) == [case.name for case in launch_overhead.CASES]
    for case in result["cases"].values():
        assert case["sample_ms"] + case["gather_ms"] <= launch_overhead.WANTED_MS
