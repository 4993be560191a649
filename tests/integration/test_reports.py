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


@pytest.mark.parametrize("page", readme.TABLES, ids=lambda page: page.name)
def test_tables_follow_from_results(page: Path) -> None:
    assert readme.filled(page) == page.read_text(), "run python -m benchmarks report"


@pytest.mark.parametrize(
    ("page", "name"), [(readme.README, "cpu.json"), (readme.MEASUREMENTS, "others.json")]
)
def test_other_figures_are_found(page: Path, name: str, tmp_path: Path) -> None:
    for path in RESULTS:
        (tmp_path / path.name).write_text(path.read_text())
    changed = json.loads((tmp_path / name).read_text())
    for row in changed["graphs"][0]["rows"]:
        row["median"] *= 2 if row["loader"] == "pyg_direct" else 1
    for row in changed["graphs"][0].get("ratios", ()):
        row["ratio"] *= 2
    (tmp_path / name).write_text(json.dumps(changed))
    assert readme.filled(page, tmp_path) != page.read_text()


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


def test_a_page_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page")
    monkeypatch.setitem(readme.TABLES, page, readme.TABLES[readme.README])
    with pytest.raises(ValueError, match="no place for a table: <!-- epochs -->"):
        readme.filled(page)
