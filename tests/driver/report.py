"""From the runs of all jobs to RESULT.json, and to RESULT.md, which the documentation shows."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
JSON, PAGE = HERE / "RESULT.json", HERE / "RESULT.md"
LOADERS, PLANTS = "loaders", "plants"  # parts of the result
DATE, PASSED, FOUND, PROBLEMS, COUNTS = "date", "passed", "found by", "problems", "counts"


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
    seconds: float


def entry_of(part: str, run: Run) -> dict[str, Any]:
    """Return what a run shows: the schedules under which all was well, or that found the plant."""
    today = datetime.date.today().isoformat()
    wrong = [o for o in run.outcomes if o.problem]
    if run.plant:
        found = sorted({o.schedule for o in wrong if o.schedule})  # not one that took too long
        by_seed = any(schedule.isdigit() for schedule in found)
        return {
            DATE: today,
            FOUND: " ".join(found),
            PROBLEMS: [] if by_seed else ["no seed finds it"],
        }
    entry: dict[str, Any] = {
        DATE: today,
        PASSED: _passed(run.outcomes),
        PROBLEMS: [f"{o.what}, {o.schedule}: {o.problem}" for o in wrong],
    }
    if part == LOADERS:
        entry[COUNTS] = {o.what: o.numbers for o in run.outcomes if o.numbers}
        entry[PROBLEMS] += _changed_counts(run.job, entry[COUNTS])
    return entry


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


def _page(facts: Mapping[str, Any], parts: Mapping[str, Any]) -> Iterator[str]:
    yield "Written by `python -m tests.driver`."
    yield ""
    yield ", ".join(f"{name} {version}" for name, version in facts["versions"].items()) + "."
    yield f"The environment takes {facts['gigabytes']} GB."
    yield ""
    yield "| part | last run | jobs | runs as they must be | problems |"
    yield "|---|---|---|---|---|"
    for part, entries in parts.items():
        things = [s for e in entries.values() for s in e.get(PASSED, {}).values()]
        runs = sum(len(schedules.split()) for schedules in things)
        found = sum(bool(e.get(FOUND)) for e in entries.values())
        problems = sum(len(e[PROBLEMS]) for e in entries.values())
        date = max(e[DATE] for e in entries.values())
        number = f"{found} found" if part == PLANTS else str(runs)
        yield f"| {part} | {date} | {len(entries)} | {number} | {problems} |"
    problems = [
        f"* Problem of {part}: {name}: {problem}"
        for part, entries in parts.items()
        for name, entry in entries.items()
        for problem in entry[PROBLEMS]
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
    yield from _page_of_counts(parts.get(LOADERS, {}))


def _rows(job: str, things: Mapping[str, str]) -> Iterator[str]:
    """Yield a row for all that passed under the same schedules."""
    by_schedules: dict[str, list[str]] = {}
    for what, schedules in things.items():
        by_schedules.setdefault(schedules, []).append(what)
    for schedules, names in by_schedules.items():
        if schedules:
            yield f"| {job} | {'; '.join(names)} | {schedules.replace(' ', ', ')} |"


def _page_of_counts(entries: Mapping[str, Any]) -> Iterator[str]:
    yield "| a batch by default | launches | copies | waits of the host | waits of streams |"
    yield "|---|---|---|---|---|"
    for kind, entry in entries.items():
        numbers = entry[COUNTS].get("default", {})
        sums = [
            sum(n for name, n in numbers.items() if name.startswith(start))
            for start in ("kernel", "copy", "wait of the host", "wait of a stream")
        ]
        yield f"| {kind} | {' | '.join(f'{number:g}' for number in sums)} |"
