"""The chart of the README, from committed results: `python -m benchmarks report` draws it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple

from benchmarks.cpu.cases import OURS
from benchmarks.cpu.derive import best
from benchmarks.machine import REPOSITORY
from benchmarks.readme import CPU_ROWS, MALLOC, RIVALS
from benchmarks.result import RESULTS, number
from benchmarks.training.end_to_end import ACCELERATED, PYG_LIB, TORCH_SPARSE, best_rows

CHART = REPOSITORY / "docs" / "images" / "speed.svg"
SOURCES = {"batch": "cpu_with_pyg_lib", "epoch": "end_to_end_with_pyg_lib"}
GRAPH = "Debian's packages"  # of the epochs
LOADERS = {**{rival: f"PyG + {name}" for rival, name in RIVALS.items()}, OURS: "pyg_direct"}
EPOCHS = (PYG_LIB, TORCH_SPARSE, OURS, ACCELERATED)
# Pixels: on a page of 400 of them the text is 10 high.
WIDTH, MARGIN, TITLE, BAR, GAP, LABEL, FIGURE = 560, 8, 28, 22, 6, 170, 60
# Colours that a white and a black page both bear, as a page may have a switch of its own.
STYLE = (
    "text{font:14px sans-serif;fill:#7d8590}.title{font-weight:bold}.theirs{fill:#8c959f}"
    ".ours{fill:#2f81f7}"
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
    """Return what the chart shows: a whole batch, and an epoch of training on a real graph."""
    cpu, trained = (json.loads((folder / f"{name}.json").read_text()) for name in SOURCES.values())
    name, (title, _) = next(iter(CPU_ROWS.items()))
    rows = next(graph["rows"] for graph in cpu["graphs"] if graph["case"]["name"] == name)
    loaded = [
        Bar(shown, row["median"], loader == OURS)
        for loader, shown in LOADERS.items()
        if (row := best(rows, "batch_ms", loader, MALLOC)) is not None
    ]
    task = trained["tasks"][0]
    fastest = best_rows(task)
    epochs = [
        Bar(who, 1e3 * fastest[who]["wall_s"]["median"], who in (OURS, ACCELERATED))
        for who in EPOCHS
        if who in fastest
    ]
    return [
        Panel(f"Load a batch of 1,024 seeds ({title}), milliseconds", loaded),
        Panel(f"Train an epoch of {task['name'].split(',')[0]} ({GRAPH}), milliseconds", epochs),
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
