"""The tables of the README say what the committed results say."""

from __future__ import annotations

import json
import re
import subprocess
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
    ("page", "name"),
    [
        (readme.README, "end_to_end_with_pyg_lib.json"),
        (readme.MEASUREMENTS, "cpu_with_pyg_lib.json"),
        (readme.MEASUREMENTS, "others.json"),
    ],
)
def test_other_figures_are_found(page: Path, name: str, tmp_path: Path) -> None:
    for path in RESULTS:
        (tmp_path / path.name).write_text(path.read_text())
    changed = json.loads((tmp_path / name).read_text())
    for row in changed.get("tasks", [{"rows": ()}])[0]["rows"]:
        row["wall_s"]["median"] *= 2 if row["contestant"] == "pyg_direct" else 1
    for graph in changed.get("graphs", ()):
        for row in graph["rows"]:
            row["median"] *= 2 if row["loader"] == "pyg_direct" else 1
        for row in graph["ratios"]:
            row["ratio"] *= 2
    (tmp_path / name).write_text(json.dumps(changed))
    assert readme.filled(page, tmp_path) != page.read_text()


def test_the_chart_follows_from_results(tmp_path: Path) -> None:
    assert chart.CHART.read_text() == chart.draw(chart.panels()), "run python -m benchmarks report"
    for path in RESULTS:
        (tmp_path / path.name).write_text(path.read_text())
    name = f"{chart.SOURCES['epoch']}.json"
    trained = json.loads((tmp_path / name).read_text())
    for row in trained["tasks"][0]["rows"]:
        row["wall_s"]["median"] *= 2 if row["contestant"] == "PyG + pyg-lib" else 1
    (tmp_path / name).write_text(json.dumps(trained))
    assert chart.CHART.read_text() != chart.draw(chart.panels(tmp_path))


def test_the_longest_bar_fits_the_chart() -> None:
    bars = [chart.Bar("PyG", 1234.5, ours=False), chart.Bar("<ours>", 1.5, ours=True)]
    picture = chart.draw([chart.Panel("A & B", bars)])
    widths = [float(width) for width in re.findall(r'<rect [^>]*width="([0-9.]+)"', picture)]
    assert max(widths) == chart.WIDTH - 2 * chart.MARGIN - chart.LABEL - chart.FIGURE
    assert widths[1] < 1
    assert all(text in picture for text in ("A &amp; B", "&lt;ours&gt;", "1,234", "1.5"))


def test_the_backend_that_pyg_recommends_leads() -> None:
    for panel in chart.panels():
        assert [bar.name for bar in panel.bars][:2] == ["PyG + pyg-lib", "PyG + torch_sparse"]
    head = readme.speed(result.RESULTS)[0]
    assert head.index("than pyg-lib") < head.index("than torch_sparse")


def test_the_worst_case_stands_beside_the_best() -> None:
    *_, last = readme.epochs(result.RESULTS)
    found = re.search(r"from ([\d.]+) x \(.*\) to ([\d.]+) x \(", last)
    assert found is not None
    assert float(found[1]) < 1 < float(found[2])


def test_readme_and_measurements_tell_the_same_of_whole_epochs() -> None:
    def rows(lines: list[str]) -> list[list[str]]:
        return [[cell.strip() for cell in row.split("|")[1:-1]] for row in lines if "| Gra" in row]

    told, measured = rows(readme.epochs(result.RESULTS)), rows(readme.end_to_end(result.RESULTS))
    assert told == [[*row[:4], row[-1]] for row in measured]
    assert len(told) >= 2


def test_every_result_has_its_pages_version_and_age() -> None:
    rows = [line.split(" | ") for line in readme.sources(result.RESULTS)[2:]]
    assert [row[0] for row in rows] == [f"| `{path.stem}`" for path in sorted(RESULTS)]
    (old,) = [row for row in rows if "`cpu_with_pyg_lib`" in row[0]]
    (new,) = [row for row in rows if "`end_to_end`" in row[0]]
    assert old[1:4] == ["this page", "0.2.0", str(len(readme.releases()) - 1)]
    assert new[1:4] == ["README, this page", "0.3.0.dev0", "0"]


@pytest.mark.parametrize(
    ("version", "releases"), [("0.3.0.dev0", "0"), ("0.2.0", "1"), ("0.1.0", "2"), ("", "")]
)
def test_age_of_a_version(version: str, releases: str) -> None:
    assert readme.age(version, ["0.2.0", "0.1.0"]) == releases


def test_titles_and_figures_fit_the_chart() -> None:
    for panel in chart.panels():
        assert len(panel.title) * 7.5 < chart.WIDTH - 2 * chart.MARGIN  # 14 px, bold
        assert max(len(bar.name) for bar in panel.bars) * 7.5 < chart.LABEL
    assert "prefers-color-scheme" not in chart.draw(chart.panels())


# Results of code that was not committed as it was measured. None may join them.
CHANGED = {"gpu_second_run"}


def git(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=result.RESULTS, capture_output=True, text=True, check=False)


def test_each_result_was_measured_by_a_commit_of_this_history() -> None:
    if git("rev-parse", "--is-shallow-repository").stdout.strip() != "false":
        pytest.skip("no whole history is at hand")
    commits = {path.stem: json.loads(path.read_text())["commit"] for path in RESULTS}
    changed = {name for name, commit in commits.items() if commit.endswith("+")}
    lost = {
        name
        for name, commit in commits.items()
        if git("merge-base", "--is-ancestor", commit.rstrip("+"), "HEAD").returncode != 0
    }
    assert (lost, changed) == (set(), CHANGED)


def test_a_page_without_a_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page")
    monkeypatch.setitem(readme.TABLES, page, readme.TABLES[readme.README])
    with pytest.raises(ValueError, match="no place for a table: <!-- epochs -->"):
        readme.filled(page)
