"""The tables of the README say what the committed results say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import readme, result

RESULTS = sorted(result.RESULTS.glob("*.json"))


def test_every_report_has_a_result() -> None:
    reports = {path.stem for path in result.RESULTS.glob("*.md")}
    assert reports <= {path.stem for path in RESULTS}


def test_tables_of_the_readme_follow_from_results() -> None:
    text = readme.README.read_text()
    assert readme.filled(text) == text, "run python -m benchmarks report"


def test_other_figures_are_found(tmp_path: Path) -> None:
    for path in RESULTS:
        (tmp_path / path.name).write_text(path.read_text())
    changed = json.loads((tmp_path / "cpu.json").read_text())
    for row in changed["graphs"][0]["rows"]:
        row["median"] *= 2 if row["loader"] == "pyg_direct" else 1
    (tmp_path / "cpu.json").write_text(json.dumps(changed))
    text = readme.README.read_text()
    assert readme.filled(text, tmp_path) != text


def test_a_readme_without_a_place() -> None:
    with pytest.raises(ValueError, match="no place for a table: <!-- speed -->"):
        readme.filled("# README")
