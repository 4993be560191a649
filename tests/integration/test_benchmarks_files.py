"""The benchmarks of graphs in files run, on toy sizes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import beyond_memory, large_graphs, row_order
from benchmarks.training import narrow


def test_the_benchmark_of_narrow_features_has_each_dtype(tmp_path: Path) -> None:
    narrow.main(["--quick", "--out", str(tmp_path)])
    (row,) = json.loads((tmp_path / "narrow_accuracy.json").read_text())["rows"]
    assert set(row["accuracy"]) == {"float32", "float16", "int8"}
    assert "| generated |" in (tmp_path / "narrow_accuracy.md").read_text()


@pytest.mark.slow
def test_the_benchmark_of_large_graphs_has_two_sizes_and_their_costs(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    large_graphs.main(["--quick", "--out", str(tmp_path), "--folder", str(tmp_path)])
    small, large = json.loads((tmp_path / "large_graphs.json").read_text())["sizes"]
    assert (small["nodes"], large["nodes"]) == (2000, 5000)
    assert small["use"]["again"]["edges"] > 0
    in_turn = json.loads((tmp_path / "large_graphs.json").read_text())["in_turn"]["sizes"]
    assert [size["nodes"] for size in in_turn] == [2000, 5000]
    assert all(size["ns_an_edge"]["n"] == 2 for size in in_turn)
    assert "growth for ten times the nodes" in (tmp_path / "large_graphs.md").read_text()
    assert 0 < small["convert"]["peak_bytes"] < 4 * 10**9
    assert large["convert"]["result_bytes"] > small["convert"]["result_bytes"]
    assert (tmp_path / "large_graphs.png").stat().st_size > 0


@pytest.mark.slow
def test_the_benchmark_beyond_memory_has_equal_batches_in_all_ways(tmp_path: Path) -> None:
    beyond_memory.main(["--quick", "--out", str(tmp_path), "--folder", str(tmp_path)])
    found = json.loads((tmp_path / "beyond_memory.json").read_text())
    assert found["equal"] is True
    assert set(found["ways"]) == set(beyond_memory.QUICK_WAYS)


@pytest.mark.slow
def test_the_benchmark_of_row_orders_has_equal_batches_in_all_orders(tmp_path: Path) -> None:
    row_order.main(["--quick", "--out", str(tmp_path), "--folder", str(tmp_path)])
    found = json.loads((tmp_path / "row_order.json").read_text())
    assert found["equal"] is True
    for ways in found["places"].values():
        assert set(ways) == set(row_order.ORDERS)


def test_the_sizes_of_large_graphs_are_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A default of another kind ended the benchmark before its first graph."""
    asked: list[int] = []

    def size_of(nodes: int, *_: object) -> None:
        asked.append(nodes)
        raise InterruptedError

    monkeypatch.setattr(large_graphs, "size_of", size_of)
    for given in ([], ["--nodes", "2K"]):
        with pytest.raises(InterruptedError):
            large_graphs.main([*given, "--out", str(tmp_path)])
    assert asked == [1_000_000, 2000]
