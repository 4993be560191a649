"""Write the reports of committed results, and the tables and the chart of the README, again."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from benchmarks import chart, readme
from benchmarks.result import COMMANDS, RESULTS, markdown


def main(argv: Sequence[str]) -> None:
    """Write the reports of results again: those named; or all, and what the README shows."""
    made = argparse.ArgumentParser(prog="python -m benchmarks report", description=main.__doc__)
    made.add_argument("results", nargs="*", type=Path, help="JSON files")
    named = made.parse_args(argv).results
    for path in named or sorted(RESULTS.glob("*.json")):
        result = json.loads(path.read_text())
        module = COMMANDS[result["benchmark"]].load()
        if hasattr(module, "sections"):
            path.with_suffix(".md").write_text(markdown(result, path.stem))
            if hasattr(module, "plot"):
                module.plot(result, path.with_suffix(".png"))
            print(path.with_suffix(".md"))
    if not named:
        for page in readme.TABLES:
            page.write_text(readme.filled(page))
        chart.CHART.write_text(chart.draw(chart.panels()))
        print(*readme.TABLES, chart.CHART, sep="\n")
