"""Stage of `benchmarks.gpu`: batches of every kind of loader in every place, against the CPU's.

Each kind is a process of its own, so that one that fails or hangs hides no other::

    python -m benchmarks.gpu.right KIND [--device cpu]   # prints a line of JSON for each place

Kinds and places are those of the tests (`tests/driver/loaders.py`).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.gpu.device import TESTS, Context
from benchmarks.gpu.limited import run_limited
from benchmarks.gpu.marks import NO_OUTCOME

MARGIN_SECONDS = 3
MOST_PROCESSES = 16  # at a time: each has a context of some hundred megabytes on the GPU
CELL = "cell: "  # begins a line with the outcome of one place


def _lists() -> tuple[Any, Any]:
    """Return the modules of the tests: kinds of loaders, and how batches are compared."""
    if str(TESTS) not in sys.path:  # not as `tests.driver`: other packages bring a `tests`
        sys.path.insert(0, str(TESTS))
    from driver import batches, loaders  # type: ignore[import-not-found]

    return loaders, batches


def compare(context: Context) -> None:
    """Compare all kinds, and keep the table of kinds and places: "" or the first difference."""
    loaders, _ = _lists()
    table: dict[str, dict[str, str]] = {}
    with ThreadPoolExecutor(min(MOST_PROCESSES, len(os.sched_getaffinity(0)))) as pool:
        futures = {kind: pool.submit(_cells, context, kind) for kind in loaders.KINDS}
        for kind, future in futures.items():
            table[kind] = future.result()
            context.keep("table", table)
    wrong = {kind: {place: p for place, p in row.items() if p} for kind, row in table.items()}
    context.keep("wrong", {kind: row for kind, row in wrong.items() if row})


def _cells(context: Context, kind: str) -> dict[str, str]:
    """Return a row of the table, from a process of its own."""
    log = context.logs / "right" / f"{re.sub('[^a-z0-9]+', '_', kind.lower())}.txt"
    outcome = run_limited(
        [sys.executable, "-m", "benchmarks.gpu.right", kind],
        context.left() - MARGIN_SECONDS,
        log,
        # With the check at first use one wrong kernel would fail all kinds.
        context.environment(PYG_DIRECT_SELF_CHECK="0", OMP_NUM_THREADS="1"),
        TESTS.parent,
    )
    text = log.read_text(errors="replace")
    return row_of(kind, text, "time limit" if outcome.status is None else str(outcome.status))


def row_of(kind: str, text: str, status: str) -> dict[str, str]:
    """Return the outcome of each place, from what the process of a kind printed.

    Args:
        kind: of loader.
        text: all that it printed.
        status: what it returned, or why it was stopped; places without an outcome have it.
    """
    loaders, _ = _lists()
    lines = (line.removeprefix(CELL) for line in text.splitlines() if line.startswith(CELL))
    found = dict(json.loads(line) for line in lines)
    last = (text.strip().splitlines() or ["nothing was printed"])[-1]
    ended = f"{NO_OUTCOME}: the process ended with {status}: {last}"[:300]
    return {place: found.get(place, ended) for place in loaders.KINDS[kind].places}


def outcomes(kind: str, device: str) -> Iterator[tuple[str, str]]:
    """Yield each place of a kind with "", or with the first tensor and value that differ."""
    loaders, batches = _lists()
    expected = batches.epoch(loaders.on_cpu(kind))
    for place in loaders.KINDS[kind].places:
        try:
            found = batches.epoch(loaders.loader(kind, place, device=device))
            problem = batches.difference(found, expected)
            if not problem and device != "cpu":
                ids_there = "ids" in loaders.PLACES[place]
                problem = batches.misplaced(found, "cuda:0", ids_there)
        except Exception as error:  # the next place may do
            problem = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        yield place, problem


def main(argv: list[str] | None = None) -> None:
    """Print the outcomes of one kind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kind")
    parser.add_argument("--device", default="cuda")
    given = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    for cell in outcomes(given.kind, given.device):
        print(CELL + json.dumps(cell), flush=True)


if __name__ == "__main__":
    main()
