"""From the runs of all jobs to RESULT.json, and to RESULT.md, which the documentation shows."""

from __future__ import annotations

import datetime
import json
import subprocess
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from .hot_path import REASONS, unwanted

HERE = Path(__file__).parent
JSON, PAGE = HERE / "RESULT.json", HERE / "RESULT.md"
LOADERS, PLANTS = "loaders", "plants"  # parts of the result
DATE, COMMIT, SECONDS = "date", "commit", "seconds"  # of an entry
PASSED, FOUND, PROBLEMS, COUNTS = "passed", "found by", "problems", "counts"
UNFINISHED = "unfinished"  # why a job was stopped: neither a problem nor something found
BEFORE = "counts before"  # by kind of loader, of the commit that is named there
COLUMNS = {  # of the page: beginnings of the names of what is counted
    "uploads, pinned": ("copy: pinned to device",),
    "uploads, pageable": ("copy: pageable to device", "copy, blocking: pageable to device"),
    "downloads": ("copy: device to p", "copy, blocking: device to p"),
    "waits of the host": ("wait of the host",),
    "waits of streams": ("wait of a stream",),
    "our kernels": ("kernel: ",),
    "torch's kernels": ("torch's kernel",),
}


class Outcome(NamedTuple):
    """One line of a worker."""

    job: str
    what: str
    schedule: str
    problem: str
    numbers: dict[str, float]


class Run(NamedTuple):
    """A process that has ended."""

    job: str
    plant: str
    outcomes: list[Outcome]
    unfinished: str
    seconds: float


def entry_of(part: str, run: Run) -> dict[str, Any]:
    """Return what a run shows: the schedules under which all was well, or that found the plant."""
    when = {
        DATE: datetime.date.today().isoformat(),
        COMMIT: _commit(),
        SECONDS: round(run.seconds),
    } | ({UNFINISHED: run.unfinished} if run.unfinished else {})
    wrong = [o for o in run.outcomes if o.problem]
    if run.plant:
        found = sorted({o.schedule for o in wrong})
        missed = not run.unfinished and not any(schedule.isdigit() for schedule in found)
        return {
            **when,
            FOUND: " ".join(found),
            PROBLEMS: ["no seed finds it"] if missed else [],
        }
    entry: dict[str, Any] = {
        **when,
        PASSED: _passed(run.outcomes),
        PROBLEMS: [f"{o.what}, {o.schedule}: {o.problem}" for o in wrong],
    }
    if part == LOADERS:
        entry[COUNTS] = {o.what: o.numbers for o in run.outcomes if o.numbers}
        entry[PROBLEMS] += _changed_counts(run.job, entry[COUNTS])
        for place, numbers in entry[COUNTS].items():
            entry[PROBLEMS] += [f"{place}: {what}" for what in unwanted(run.job, numbers)]
    return entry


def _commit() -> str:
    """Return the last commit that changed the package, with "+" if it has changed since."""
    root, package = HERE.parents[1], ["--", "pyg_direct", "cuda"]
    last = ["git", "log", "-1", "--format=%h", "--abbrev=8", *package]
    found = subprocess.run(last, cwd=root, capture_output=True, text=True, check=False)
    changed = ["git", "diff", "--quiet", "HEAD", *package]
    is_changed = subprocess.run(changed, cwd=root, check=False).returncode != 0
    return (found.stdout.strip() or "unknown") + ("+" if is_changed else "")


def _passed(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the schedules under which each thing was as it must be."""
    passed: dict[str, list[str]] = {outcome.what: [] for outcome in outcomes}
    for outcome in outcomes:
        if not outcome.problem:
            passed[outcome.what].append(outcome.schedule)
    return {what: " ".join(schedules) for what, schedules in passed.items()}


def _changed_counts(kind: str, places: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield what a batch asks of the driver otherwise than in the last result."""
    before = known()["parts"].get(LOADERS, {}).get(kind, {}).get(COUNTS, {})
    for place, numbers in places.items():
        old = before.get(place, numbers)
        for name in sorted(numbers.keys() | old.keys()):
            was, now = old.get(name, 0), numbers.get(name, 0)
            if was != now:
                yield f"{place}: {name}: {was} a batch before, {now} now"


def known() -> dict[str, Any]:
    """Return the last result."""
    found: dict[str, Any] = json.loads(JSON.read_text()) if JSON.exists() else {"parts": {}}
    return found


def write(facts: Mapping[str, Any], part: str, name: str, entry: Mapping[str, Any]) -> None:
    """Put an entry into the result, and write it and the page.

    Args:
        facts: of all: versions, gigabytes.
        part: of the result.
        name: of the job or plant.
        entry: from `entry_of`.
    """
    parts = known()["parts"]
    parts.setdefault(part, {})[name] = entry
    JSON.write_text(json.dumps({**facts, "parts": parts}, indent=1) + "\n")
    PAGE.write_text("\n".join(_page(facts, parts)) + "\n")


def forget_others(names: Mapping[str, Collection[str]]) -> None:
    """Drop entries of jobs and plants that there are no more.

    Args:
        names: of all that there are, by part of the result.
    """
    result = known()
    result["parts"] = {
        part: {name: entry for name, entry in entries.items() if name in names.get(part, ())}
        for part, entries in result["parts"].items()
    }
    JSON.write_text(json.dumps(result, indent=1) + "\n")


def _page(facts: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[str]:
    yield "Written by `python -m tests.driver`."
    yield ""
    for cuda, versions in facts["versions"].items():
        named = ", ".join(f"{name} {version}" for name, version in versions.items())
        yield f"* {cuda}: {named}; the environment takes {facts['gigabytes'][cuda]} GB."
    yield ""
    yield "| part | last run | commit | jobs | minutes | runs as they must be | problems |"
    yield "|---|---|---|---|---|---|---|"
    for part, entries in parts.items():
        things = [s for e in entries.values() for s in e.get(PASSED, {}).values()]
        runs = sum(len(schedules.split()) for schedules in things)
        found = sum(bool(e.get(FOUND)) for e in entries.values())
        problems = sum(len(e[PROBLEMS]) for e in entries.values())
        date = max(e[DATE] for e in entries.values())
        commits = ", ".join(dict.fromkeys(e[COMMIT] for e in entries.values()))
        minutes = sum(e[SECONDS] for e in entries.values()) / 60
        number = f"{found} of {len(entries)} found" if part == PLANTS else str(runs)
        cells = (part, date, commits, len(entries), f"{minutes:.0f}", number, problems)
        yield f"| {' | '.join(map(str, cells))} |"
    problems = [
        f"* Problem of {part}: {name}: {problem}"
        for part, entries in parts.items()
        for name, entry in entries.items()
        for problem in entry[PROBLEMS]
    ]
    problems += [
        f"* Unfinished in {part}: {name}: {entry[UNFINISHED]}"
        for part, entries in parts.items()
        for name, entry in entries.items()
        if UNFINISHED in entry
    ]
    if problems:
        yield from ["", *problems]
    for part, entries in parts.items():
        yield ""
        if part == PLANTS:
            yield from ["| left out | found by schedules |", "|---|---|"]
            yield from (f"| {n} | {e[FOUND].replace(' ', ', ')} |" for n, e in entries.items())
        else:
            yield from [f"| {part} | what | schedules |", "|---|---|---|"]
            for name, entry in entries.items():
                yield from _rows(name, entry[PASSED])
    yield ""
    yield from _page_of_counts(parts.get(LOADERS, {}), facts[BEFORE])


def _rows(job: str, things: Mapping[str, str]) -> Iterator[str]:
    """Yield a row for all that passed under the same schedules."""
    by_schedules: dict[str, list[str]] = {}
    for what, schedules in things.items():
        by_schedules.setdefault(schedules, []).append(what)
    for schedules, names in by_schedules.items():
        if schedules:
            yield f"| {job} | {'; '.join(names)} | {schedules.replace(' ', ', ')} |"


def _page_of_counts(entries: Mapping[str, Any], before: Mapping[str, Any]) -> Iterator[str]:
    """Yield what a batch asks for, and what it asked for before where that was another number."""
    if before:
        yield f"Before: {before['what']}."
        yield ""
    yield f"| a batch by default, before → now | {' | '.join(COLUMNS)} |"
    yield "|---|" + "---|" * len(COLUMNS)
    for kind, entry in entries.items():
        numbers = entry[COUNTS].get("default", {})
        old = before.get("counts", {}).get(kind, numbers)
        cells = []
        for starts in COLUMNS.values():
            was, now = (
                sum(n for name, n in counted.items() if name.startswith(starts))
                for counted in (old, numbers)
            )
            cells.append(f"{was:g} → {now:g}" if was != now else f"{now:g}")
        yield f"| {kind} | {' | '.join(cells)} |"
    yield ""
    for kind, reason in REASONS.items():
        yield f"* {kind}: {reason}."
