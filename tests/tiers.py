"""Which tests run by default, and which are `full`: measured, and written to `full.txt`.

    python -m tests.tiers  # runs both, on an otherwise idle machine; some minutes

A default test takes less than `BORDER_CPU_SECONDS`, starts no process and needs no compiler, so
that the README's command ends in two minutes on two cores and anybody can run it. Everything else
that is not `slow` is `full`, and runs in CI. `full.txt` lists those tests: as a file, as a function
with all its cases, or case by case. A test that is not in the list, such as a new one, is a default
test; while it runs, starting a process or the emulator of CUDA kernels is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_name("full.txt")
FOLDER = "PYG_DIRECT_TIERS"  # of the measurements of a run
BORDER_CPU_SECONDS = 0.2
BORDER_SECONDS = 2.0  # some tests wait
CHEAP = "tests/architecture/"  # default tests whatever they take: every change needs them
EMULATED = {"cuda", "emulated"}  # parts of the names of cases, which need not be listed
# What Python tells audit hooks of, and what `tests/support/emulator` does.
NOT_BY_DEFAULT = {
    "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen", "tests.emulator",
}  # fmt: skip


class Cost(NamedTuple):
    """What a test took, once or at best."""

    cpu_seconds: float  # of the process, and of those that it waited for
    seconds: float
    needs: str  # the first of `NOT_BY_DEFAULT` that happened, or ""

    @property
    def is_full(self) -> bool:
        """Whether the test is none of the default ones."""
        return (
            self.needs != ""
            or self.cpu_seconds >= BORDER_CPU_SECONDS
            or self.seconds >= BORDER_SECONDS
        )


def is_emulated(name: str) -> bool:
    """Whether a test is a case on the emulated device, such as ``a.py::f[cuda-3]``."""
    return not EMULATED.isdisjoint(name.partition("[")[2].removesuffix("]").split("-"))


class Tiers:
    """A plugin of pytest: marks tests, and refuses in default tests what they must not do."""

    def __init__(self) -> None:
        self.listed = set(LIST.read_text(encoding="utf-8").split("\n")) if LIST.exists() else set()
        self.running = ""  # the default test that runs
        self.needs = ""
        folder = os.environ.get(FOLDER)
        worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
        self._log = Path(folder, f"{worker}.jsonl") if folder else None
        sys.addaudithook(self._notice)

    def _notice(self, event: str, arguments: Any) -> None:
        if event in NOT_BY_DEFAULT:
            self.needs = self.needs or event
            if self.running and self._log is None:
                raise RuntimeError(
                    f"{self.running} does what default tests do not: {event}. Add it to "
                    f"{LIST.relative_to(ROOT)}, as `python -m tests.tiers` does."
                )

    def is_full(self, item: pytest.Item) -> bool:
        """Whether a test is a case on the emulated device, or in the list by any of its names."""
        name = item.nodeid
        file, _, test = name.partition("::")
        return is_emulated(name) or not {
            file,
            f"{file}::{test.partition('[')[0]}",
            name,
        }.isdisjoint(self.listed)

    @pytest.hookimpl(tryfirst=True)  # before marks select
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        """Mark the tests of the list."""
        for item in items:
            if self.is_full(item):
                item.add_marker(pytest.mark.full)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        """Watch a test, and measure it where that is asked for."""
        marks = {mark.name for mark in item.iter_markers()}
        self.running = "" if marks & {"full", "slow", "gpu"} else item.nodeid
        self.needs, before = "", _used()
        try:
            return (yield)
        finally:
            self.running = ""
            if self._log is not None:
                used = [after - start for after, start in zip(_used(), before, strict=True)]
                with self._log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps([item.nodeid, *used, self.needs]) + "\n")


def _used() -> tuple[float, float]:
    """Return the CPU-seconds of this process and its children, and the time."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(usage.ru_utime + usage.ru_stime for usage in usages), time.monotonic()


def read(folder: Path) -> dict[str, Cost]:
    """Return what the tests of a run took."""
    return {
        name: Cost(cpu, seconds, needs)
        for path in folder.glob("*.jsonl")
        for name, cpu, seconds, needs in map(json.loads, path.read_text().splitlines())
    }


def best(first: Mapping[str, Cost], second: Mapping[str, Cost]) -> dict[str, Cost]:
    """Return the least of two runs: the first of a process waits for imports and compilers."""
    found = dict(first)
    for name, cost in second.items():
        other = found.get(name, cost)
        found[name] = Cost(*map(min, cost[:2], other[:2]), cost.needs or other.needs)
    return found


def listed(costs: Mapping[str, Cost]) -> list[str]:
    """Return the lines for the full tests: files and functions of which all tests are full.

    Cases on the emulated device are left out, as their names say it.

    Example: of `a.py::f[1]`, `a.py::f[2]` and `a.py::g`, the first two being full: `a.py::f`.
    """
    lines = {
        name
        for name, cost in costs.items()
        if cost.is_full and not (name.startswith(CHEAP) and cost.needs == "")
    }
    for separator in ("[", "::"):  # cases to functions, then functions to files
        groups = defaultdict[str, set[str]](set)
        for name in costs if separator == "[" else {name.partition("[")[0] for name in costs}:
            groups[name.partition(separator)[0]].add(name)
        for group, names in groups.items():
            if names <= lines:
                lines = (lines - names) | {group}
    return sorted(line for line in lines if not is_emulated(line))


def measured(arguments: Iterable[str], marks: str, known: dict[str, Cost]) -> dict[str, Cost]:
    """Run tests, and return what they took."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pytest", "-q", "-n", "auto", "-m", marks, *arguments]
        subprocess.run(command, cwd=ROOT, env={**os.environ, FOLDER: folder}, check=False)
        return best(known, read(Path(folder)))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the tests that are not slow, and write the list."""
    parser = argparse.ArgumentParser("python -m tests.tiers", description=__doc__)
    parser.add_argument("tests", nargs="*", help="files to measure; the rest of the list stays")
    given = parser.parse_args(argv).tests
    costs = measured(given, "not slow", {})
    again = {name.partition("::")[0] for name, cost in costs.items() if cost.is_full}
    costs = measured(sorted(again), "not slow", costs)
    files = {name.partition("::")[0] for name in costs}
    kept = LIST.read_text(encoding="utf-8").splitlines() if given else []
    kept = [line for line in kept if line.partition("::")[0] not in files]
    lines = sorted([*kept, *listed(costs)])
    LIST.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    default = [cost.cpu_seconds for cost in costs.values() if not cost.is_full]
    print(f"{len(default)} of {len(costs)} tests run by default, in {sum(default):.0f} CPU-seconds")
    return 0


if __name__ == "__main__":
    sys.exit(main())
