"""How `benchmarks.gpu.marks` judges a run, on made-up runs."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.gpu import checks as gpu_checks
from benchmarks.gpu import marks as gpu_marks
from benchmarks.gpu.plan import STAGES
from benchmarks.statistics import spread


def rate(value: float) -> dict[str, Any]:
    return {"bytes_per_second": spread([value])}


def ms(value: float, **more: Any) -> dict[str, Any]:
    return {"ms": spread([value]), **more}


def measured() -> dict[str, dict[str, Any]]:
    """Return a made-up run in which every mark is passed."""
    counts = {"passed": 9, "failed": 0, "error": 0, "skipped": 0}
    return {
        "right": {"table": {"node": {"host": "", "device": ""}}},
        "tests": {"counts": counts, "outcome": {"status": 0}},
        "sanitizer": {tool: {"status": 0} for tool in gpu_checks.TOOLS},
        "gather": {
            "link": {"stream_kernel": [rate(20e9), rate(50e9)], "copy_engine": rate(40e9)},
            "by_row": [
                {"row_bytes": 100, "base": 0, **rate(5e9)},
                {"row_bytes": 400, "base": 64, **rate(46e9)},
                {"row_bytes": 512, "base": 0, **rate(49e9)},
            ],
        },
        "ours": {
            "host": {"trained": ms(5.0, cores=0.7), "alone": ms(4.0), "useful_bytes": 200e6},
            "auto": {"trained": ms(3.0, cores=0.9), "alone": ms(2.0), "useful_bytes": 0.0},
        },
        "in_memory": {"loader": {"trained": ms(4.6)}},
        "pyg": {"alone": [ms(90.0, workers=4), ms(60.0, workers=8)]},
        "growth": {"growth": {"batches": 10_000, "bytes": {"host": 1e6, "reserved": 30e6},
                              "of": {"host": 5e9, "reserved": 2e9}}},
    }  # fmt: skip


def mark(stages: dict[str, Any], name: str) -> gpu_marks.Mark:
    return next(mark for mark in gpu_marks.evaluate(stages) if mark.name == name)


def test_good_measurements_pass_all_marks() -> None:
    marks = gpu_marks.evaluate(measured())
    assert {mark.passed for mark in marks} == {True}
    values = {mark.name: mark.value for mark in marks}
    assert values["gather over the link"] == pytest.approx(0.92)
    assert values["loader against PyG's best"] == pytest.approx(15)
    assert values["end to end"] == pytest.approx(5.0 / 4.6)  # the link would take 4 ms
    assert values["CPU cores"] == 0.7
    assert values["memory growth"] == 30e6
    assert gpu_marks.table(marks).count("pass  ") == len(marks)


def change(stages: dict[str, Any], *path: Any) -> dict[str, Any]:
    """Set the place that `path` leads to, to its last entry."""
    found: Any = stages
    for key in path[:-2]:
        found = found[key]
    found[path[-2]] = path[-1]
    return stages


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("GPU tests", ("tests", "counts", "failed", 1)),
        ("GPU tests", ("tests", "counts", "skipped", 1)),
        ("GPU tests", ("tests", "counts", "passed", 0)),
        ("GPU tests", ("tests", "outcome", "status", None)),
        ("compute-sanitizer", ("sanitizer", "racecheck", {"status": 9})),
        ("compute-sanitizer", ("sanitizer", "racecheck", {"status": None})),
        ("gather over the link", ("gather", "by_row", 2, "bytes_per_second", spread([44e9]))),
        # A copy engine that is faster is the limit, too.
        ("gather over the link", ("gather", "link", "copy_engine", rate(52e9))),
        ("loader against PyG's best", ("pyg", "alone", 1, ms(39.0, workers=8))),
        ("loader against PyG's best", ("ours", "auto", "alone", ms(6.1))),
        ("end to end", ("ours", "host", "trained", ms(5.1, cores=0.7))),
        ("CPU cores", ("ours", "host", "trained", "cores", 1.0)),
        ("memory growth", ("growth", "growth", "bytes", "host", 17e6)),
        ("memory growth", ("growth", "growth", "bytes", "reserved", 37e6)),
    ],
)
def test_a_bad_measurement_fails_its_mark_alone(name: str, path: tuple[Any, ...]) -> None:
    marks = gpu_marks.evaluate(change(measured(), *path))
    assert {mark.name for mark in marks if mark.passed is False} == {name}
    assert f"FAIL  {name}" in gpu_marks.table(marks)


def test_the_slower_limit_counts() -> None:
    """With twice the bytes, the link takes 8 ms, and 8.7 ms a batch are within 10 % of it."""
    stages = change(measured(), "ours", "host", "useful_bytes", 400e6)
    stages = change(stages, "ours", "host", "trained", ms(8.7, cores=0.7))
    found = mark(stages, "end to end")
    assert found.passed is True
    assert found.value == pytest.approx(8.7 / 8)
    assert "the link's limit" in found.why


def test_too_few_batches_to_tell() -> None:
    stages = change(measured(), "growth", "growth", "batches", 1000)
    assert mark(stages, "memory growth").passed is None
    assert "too few" in mark(stages, "memory growth").why
    stages = change(stages, "growth", "growth", "bytes", "host", 1e9)
    assert mark(stages, "memory growth").passed is False


def test_marks_without_a_measurement_are_neither_passed_nor_failed() -> None:
    for marks in (gpu_marks.evaluate({}), gpu_marks.evaluate({stage.name: {} for stage in STAGES})):
        assert {(mark.value, mark.passed) for mark in marks} == {(None, None)}
        assert all(mark.why.startswith("not measured: ") for mark in marks)
    for stage in measured():
        stages = measured()
        stages[stage] = {}
        assert any(mark.passed is None for mark in gpu_marks.evaluate(stages)), stage
    assert {mark.why for mark in gpu_marks.evaluate(measured(), dry=True)} == {"not run (dry)"}
