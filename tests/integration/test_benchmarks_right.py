"""The first stage on a GPU, as far as it can be seen without one."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from benchmarks.gpu import marks, right

KIND = "node, fan-out of 40"  # has two places, which the CPU has, too
PLACES = ["default", "host"]


def test_equal_batches_leave_empty_cells() -> None:
    assert list(right.outcomes(KIND, "cpu")) == [(place, "") for place in PLACES]


def test_a_wrong_batch_is_reported_by_its_first_differing_value(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, batches = right._lists()
    epoch, calls = batches.epoch, []

    def wrong_in_the_first_place(loader: Any) -> Any:
        found = epoch(loader)
        calls.append(loader)
        if len(calls) == 2:  # behind the CPU's
            found[1][0]["x"][3, 5] = 1000.0
        return found

    monkeypatch.setattr(batches, "epoch", wrong_in_the_first_place)
    (_, first), (_, second) = right.outcomes(KIND, "cpu")
    assert first.startswith("batch 1: x: ")
    assert "bytes, first at [3, 5]: 1000.0, not " in first
    assert second == ""


def test_a_place_that_raises_stops_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    loaders, _ = right._lists()
    monkeypatch.setitem(loaders.PLACES, "default", {"features": "nowhere"})
    with pytest.raises(ValueError, match="features"):
        loaders.on_cpu(KIND)  # the CPU's own batches are of that place
    monkeypatch.setattr(loaders, "on_cpu", lambda kind: loaders.loader(kind, "host", device="cpu"))
    (_, first), (_, second) = right.outcomes(KIND, "cpu")
    assert first.startswith("ValueError: features must be one of")
    assert second == ""


def test_a_process_that_ends_early_has_cells() -> None:
    text = f"noise\n{right.CELL}{json.dumps(['default', ''])}\nSegmentation fault\n"
    row = right.row_of(KIND, text, "-11")
    assert row["default"] == ""
    assert row["host"] == "no outcome: the process ended with -11: Segmentation fault"
    row = right.row_of(KIND, "", "time limit")
    assert "time limit" in row["default"]


@pytest.mark.parametrize(
    ("cell", "passed", "why"),
    [("", True, "2 of 2 places"), ("batch 0: x: 4 bytes", False, "1 of 2 places")],
)
def test_the_mark_of_right_batches_quotes_the_cell_and_says_why(
    cell: str, passed: bool, why: str
) -> None:
    table = {KIND: {"default": "", "host": cell}}
    (mark,) = [
        mark
        for mark in marks.evaluate({"right": {"table": table}})
        if mark.name == "batches as on the CPU"
    ]
    assert mark.passed is passed
    assert why in mark.why
    assert cell in mark.why


def test_the_place_of_a_number_in_a_tensor() -> None:
    _, batches = right._lists()
    ours, theirs = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[1, 2], [3, 5]])
    assert batches.difference([[{"y": ours}]], [[{"y": theirs}]]) == (
        "batch 0: y: 1 of 32 bytes, first at [1, 1]: 4, not 5"
    )
    scalars = torch.tensor(1.5), torch.tensor(2.5)
    assert "1.5, not 2.5" in batches.difference(*([[{"a": value}]] for value in scalars))
