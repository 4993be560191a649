"""Which tests execute a line, from one run of the default tests under coverage.

    python -m tests.planted --measure FOLDER   # needs: pip install --group mutation

numba's code is not seen, so faults in kernels are shown to the tests that their lists name.
"""

from __future__ import annotations

import ast
import functools
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.tiers import FOLDER as COSTS
from tests.tiers import read

from .fault import ROOT, Fault, is_of
from .rooms import ROOMS

DATA = "coverage"


def measure(folder: Path) -> None:
    """Run the default tests, and keep which lines each executes and what it takes."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = folder / "coveragerc"
    settings.write_text("[run]\nrelative_files = true\n", encoding="utf-8")
    options = [
        "--cov=pyg_direct",
        "--cov-context=test",
        "--cov-report=",
        f"--cov-config={settings}",
    ]
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n", "auto", *options],
        env={**os.environ, COSTS: str(folder), "COVERAGE_FILE": str(folder / DATA)},
        cwd=ROOT, check=False,
    )  # fmt: skip


class Measured:
    """What `measure` has kept of this tree.

    Args:
        folder: that it was given.
        limit: of the tests that are run for a fault.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self._folder = folder
        self._costs = {name: cost.cpu_seconds for name, cost in read(folder).items()}
        self._limit = limit

    def tests_of(self, fault: Fault, root: Path, names: Sequence[str]) -> list[str]:
        """Return the tests for a fault: those that execute its lines, and others not measured.

        The nearest come first, then those of the room, each the cheapest first; beyond half of the
        limit, some of all prices. Of the full tests, which are not measured, there are those
        nearest and of the room.
        """
        lines = set(lines_of(fault, (root / fault.file).read_text(encoding="utf-8")))
        found = {
            name.rpartition("|")[0]
            for line, tests in _contexts(self._folder, fault.file).items()
            if line in lines
            for name in tests
        }
        tests = [fault.near.split(), ROOMS[fault.room]]
        near, room = ([n for n in names if any(is_of(n, test) for test in t)] for t in tests)
        nearest, of_room = set(near), set(room)
        ordered = sorted(
            (name for name in names if name in found),
            key=lambda name: (name not in nearest, name not in of_room, self._costs[name]),
        )
        first = self._limit // 2
        step = max(1, -(-(len(ordered) - first) // first))
        others = [name for name in [*near, *room] if name not in self._costs]
        return ordered[:first] + ordered[first::step] + others[: self._limit // 4]


@functools.lru_cache(maxsize=1)
def _contexts(folder: Path, file: str) -> dict[int, list[str]]:
    from coverage import CoverageData

    data = CoverageData(str(folder / DATA))  # a fork would erase one of its parent
    data.read()
    found: dict[int, list[str]] = data.contexts_by_lineno(file)
    return found


def lines_of(fault: Fault, text: str) -> Iterator[int]:
    """Yield the lines of the statements in which a fault is, without those inside of blocks."""
    changed = _changed(text.splitlines(), text.replace(fault.old, fault.new).splitlines())
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt | ast.ExceptHandler):
            until = node.end_lineno or node.lineno
            if body := getattr(node, "body", None):
                until = max(node.lineno, body[0].lineno - 1)
            if node.lineno < changed.stop and changed.start <= until:
                yield from range(node.lineno, until + 1)


def _changed(old: list[str], new: list[str]) -> range:
    """Return the lines that are not the same from the begin or the end, one at least."""
    first = len(_same(old, new))
    same = len(_same(old[:first:-1], new[:first:-1]))
    return range(first + 1, len(old) - same + 1)


def _same(old: list[str], new: list[str]) -> list[object]:
    return [*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(old, new, strict=False))]
