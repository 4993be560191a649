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
    assert (tmp_path / "requests.md").read_text().count("\n| ") == len(cases) + 2 + 4


def test_the_committed_result() -> None:
    result = json.loads((RESULTS / "requests.json").read_text())
    cases, large = result["cases"], result["large"]
    found, by_id = large["as_found"], large["sorted"]
    assert large["table_bytes"] == 16_000_000_000
    assert by_id["requests"] == found["requests"]
    # Nearly each row is on a page of its own, until the ids are sorted.
    assert found["pages"] > 0.95 * large["picked"]
    assert by_id["pages"] < found["pages"] / 5
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


def test_ids_of_a_simulated_batch() -> None:
    """They are distinct nodes in the order of discovery, popular ones first."""
    ids = gather_requests.batch_ids(100_000, 3000)
    assert len(np.unique(ids)) == len(ids) == 3000
    assert 0 <= ids.min() < ids.max() < 100_000
    assert 0.3 < (np.diff(ids) > 0).mean() < 0.7
