"""The chart of the README, from committed results: `python -m benchmarks report` draws it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.cpu.cases import BASELINE, OURS
from benchmarks.cpu.derive import best
from benchmarks.machine import REPOSITORY
from benchmarks.readme import CPU_ROWS, MALLOC
from benchmarks.result import RESULTS, number

CHART = REPOSITORY / "docs" / "images" / "speed.svg"
STEPS = {  # in the result -> in the chart
    "PyG": "PyG",
    "PyG trimmed": "PyG, trim_to_layer",
    "ours, plain": "pyg_direct",
    "ours, accelerated": "pyg_direct, accelerate",
}
LOADERS = {BASELINE: "PyG + torch_sparse", OURS: "pyg_direct"}
# Pixels: on a page of 400 of them the text is 10 high.
WIDTH, MARGIN, TITLE, BAR, GAP, LABEL, FIGURE = 560, 8, 28, 22, 6, 170, 60
# Both colours of text and bars are told from white and from black pages.
STYLE = (
    "text{font:14px sans-serif;fill:#24292f}.title{font-weight:bold}.theirs{fill:#8c959f}"
    ".ours{fill:#0969da}@media(prefers-color-scheme:dark){text{fill:#e6edf3}.ours{fill:#4493f8}}"
)


class Bar(NamedTuple):
    """One contestant."""

    name: str
    milliseconds: float
    ours: bool


class Panel(NamedTuple):
    """Bars of one scale, which begins at 0."""

    title: str
    bars: Sequence[Bar]


def panels(folder: Path = RESULTS) -> list[Panel]:
    """Return what the chart shows: a whole batch, and a whole step of training."""
    cpu = json.loads((folder / "cpu.json").read_text())
    name = next(iter(CPU_ROWS))
    rows = next(graph["rows"] for graph in cpu["graphs"] if graph["case"]["name"] == name)
    loaded = [
        Bar(shown, row["median"], loader == OURS)
        for loader, shown in LOADERS.items()
        if (row := best(rows, "batch_ms", loader, MALLOC)) is not None
    ]
    trained = json.loads((folder / "accelerated_training.json").read_text())["rows"][0]
    steps = [
        Bar(shown, trained[way]["cpu_ms"], way.startswith("ours"))
        for way, shown in STEPS.items()
        if way in trained
    ]
    return [
        Panel(f"Load a batch of 1,024 seeds ({CPU_ROWS[name]}), milliseconds", loaded),
        Panel(f"Train a step of {trained['model']}, loading included, CPU milliseconds", steps),
    ]


def draw(shown: Sequence[Panel]) -> str:
    """Return an SVG with a row for each bar, readable on light and on dark pages."""
    parts, y = [], MARGIN
    for panel in shown:
        parts.append(_text(MARGIN, y + 16, panel.title, "title"))
        y += TITLE
        longest = max(bar.milliseconds for bar in panel.bars)
        for bar in panel.bars:
            width = (WIDTH - 2 * MARGIN - LABEL - FIGURE) * bar.milliseconds / longest
            kind = "ours" if bar.ours else "theirs"
            x, text_y = MARGIN + LABEL, y + 16
            parts.append(_text(MARGIN, text_y, bar.name))
            parts.append(
                f'<rect x="{x}" y="{y}" width="{width:.1f}" height="{BAR}" class="{kind}"/>'
            )
            parts.append(_text(x + width + GAP, text_y, number(bar.milliseconds)))
            y += BAR + GAP
        y += MARGIN
    label = escape("; ".join(panel.title for panel in shown))
    size = f'width="{WIDTH}" height="{y}" viewBox="0 0 {WIDTH} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{label}">'
    return f"{head}<style>{STYLE}</style>{''.join(parts)}</svg>\n"


def _text(x: float, y: float, text: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{named}>{escape(text)}</text>'
