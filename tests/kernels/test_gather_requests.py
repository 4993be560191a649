"""The benchmark of read requests runs, and gives its committed result."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gather_requests
from benchmarks.result import RESULTS


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_runs_at_toy_size(tmp_path: Path) -> None:
    gather_requests.main(["--quick", "--out", str(tmp_path)])
    assert (tmp_path / "requests.png").stat().st_size > 1000
    cases = json.loads((tmp_path / "requests.json").read_text())["cases"]
    assert len(cases) == len(gather_requests.CASES)
    assert (tmp_path / "requests.md").read_text().count("\n| ") == len(cases) + 2


def test_the_committed_result() -> None:
    cases = json.loads((RESULTS / "requests.json").read_text())["cases"]
    assert [(c["row_bytes"], c["base"]) for c in cases] == [c[:2] for c in gather_requests.CASES]
    for case in cases:
        bound = case["bound"]["requests_per_row"]
        assert case["ours"]["requests_per_row"] == pytest.approx(bound, rel=0.002), case
        assert case["naive"]["requests_per_row"] > 0.999 * bound


def test_costs_by_hand() -> None:
    """One instruction: bytes 120-135 touch two lines, one sector in each; another reads nothing."""
    addresses = np.array([[120, 124, 128, 132], [-1, -1, -1, -1]])
    assert gather_requests.cost(addresses) == (2.0, 64.0)
    assert gather_requests.cost(np.array([[0, 100, -1, -1]])) == (1.0, 128.0)
    assert gather_requests.bound(np.array([1]), 400, 64) == (4.0, 32.0 * 13)
