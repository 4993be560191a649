"""The tables of the README say what the committed results say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import chart, readme, result

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


def test_the_chart_follows_from_results(tmp_path: Path) -> None:
    assert chart.CHART.read_text() == chart.draw(chart.panels()), "run python -m benchmarks report"
    for path in RESULTS:
        (tmp_path / path.name).write_text(path.read_text())
    trained = json.loads((tmp_path / "accelerated_training.json").read_text())
    trained["rows"][0]["PyG"]["cpu_ms"] *= 2
    (tmp_path / "accelerated_training.json").write_text(json.dumps(trained))
    assert chart.CHART.read_text() != chart.draw(chart.panels(tmp_path))


def test_the_longest_bar_fits_the_chart() -> None:
    bars = [chart.Bar("PyG", 1234.5, ours=False), chart.Bar("<ours>", 1.5, ours=True)]
    picture = chart.draw([chart.Panel("A & B", bars)])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', picture)]
    assert max(widths) == chart.WIDTH - 2 * chart.MARGIN - chart.LABEL - chart.FIGURE
    assert widths[1] < 1
    assert all(text in picture for text in ("A &amp; B", "&lt;ours&gt;", "1,234", "1.5"))


def test_a_readme_without_a_place() -> None:
    with pytest.raises(ValueError, match="no place for a table: <!-- speed -->"):
        readme.filled("# README")
