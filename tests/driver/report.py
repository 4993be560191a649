"""From the runs of all jobs to RESULT.json, and to RESULT.md, which the documentation shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
JSON, PAGE = HERE / "RESULT.json", HERE / "RESULT.md"
LOADERS, PLANTS = "loaders", "plants"  # parts of the result
PASSED, FOUND, PROBLEMS, COUNTS = "passed", "found by", "problems", "counts of a batch"


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


def result_of(part: str, runs: list[Run]) -> dict[str, Any]:
    """Return what the runs of a part show."""
    if part == PLANTS:
        found = _plants(runs)
        return {FOUND: found, PROBLEMS: list(_plant_problems(found))}
    made: dict[str, Any] = {
        PASSED: {run.job: _passed(run.outcomes) for run in runs},
        PROBLEMS: [
            f"{o.job}, {o.what}, {o.schedule}: {o.problem}"
            for run in runs
            for o in run.outcomes
            if o.problem
        ],
    }
    counts = {run.job: {o.what: o.numbers for o in run.outcomes if o.numbers} for run in runs}
    if part == LOADERS:
        made[COUNTS] = counts
        made[PROBLEMS] += list(_changed_counts(counts))
    return made


def _passed(outcomes: list[Outcome]) -> dict[str, str]:
    """Return the schedules under which each thing was as it must be."""
    passed: dict[str, list[str]] = {outcome.what: [] for outcome in outcomes}
    for outcome in outcomes:
        if not outcome.problem:
            passed[outcome.what].append(outcome.schedule)
    return {what: " ".join(schedules) for what, schedules in passed.items()}


def _plants(runs: list[Run]) -> dict[str, str]:
    """Return the schedules that found each plant."""
    found: dict[str, set[str]] = {run.plant: set() for run in runs}
    for run in runs:
        found[run.plant] |= {o.schedule for o in run.outcomes if o.problem}
    return {plant: " ".join(sorted(schedules)) for plant, schedules in found.items()}


def _plant_problems(plants: Mapping[str, str]) -> Iterator[str]:
    for plant, schedules in plants.items():
        if not any(schedule.isdigit() for schedule in schedules.split()):
            yield f"{plant}: no seed found it, {schedules or 'nor any other schedule'}"


def _changed_counts(counts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    before = known().get("parts", {}).get(LOADERS, {}).get(COUNTS, {})
    for kind, places in counts.items():
        for place, numbers in places.items():
            old = before.get(kind, {}).get(place, numbers)
            for name in sorted(numbers.keys() | old.keys()):
                was, now = old.get(name, 0), numbers.get(name, 0)
                if was != now:
                    yield f"counts: {kind}, {place}: {name}: {was} a batch before, {now} now"


def known() -> dict[str, Any]:
    """Return the last result."""
    found: dict[str, Any] = json.loads(JSON.read_text()) if JSON.exists() else {}
    return found


def write(made: Mapping[str, Any]) -> None:
    """Write the result, with the last one of each part that was not run now, and the page."""
    whole = {**made, "parts": {**known().get("parts", {}), **made["parts"]}}
    JSON.write_text(json.dumps(whole, indent=1) + "\n")
    PAGE.write_text("\n".join(_page(whole)) + "\n")


def _page(made: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    yield f"{versions}. The environment takes {made['gigabytes']} GB."
    yield ""
    yield "| part | date | minutes | runs as they must be | problems |"
    yield "|---|---|---|---|---|"
    for name, part in made["parts"].items():
        things = [s for job in part.get(PASSED, {}).values() for s in job.values()]
        runs = sum(len(schedules.split()) for schedules in things)
        plants = part.get(FOUND, {})
        number = str(runs or f"{sum(map(bool, plants.values()))} of {len(plants)} found")
        yield f"| {name} | {part['date']} | {part['minutes']} | {number} | {len(part[PROBLEMS])} |"
    yield ""
    for name, part in made["parts"].items():
        yield from (f"* Problem of {name}: {problem}" for problem in part[PROBLEMS])
    for name, part in made["parts"].items():
        if PASSED in part:
            yield from ["", f"| {name} | what | schedules |", "|---|---|---|"]
            for job, things in part[PASSED].items():
                yield from _rows(job, things)
        else:
            yield from ["", "| left out | found by schedules |", "|---|---|"]
            for plant, schedules in part[FOUND].items():
                yield f"| {plant} | {schedules.replace(' ', ', ')} |"
    yield ""
    yield from _page_of_counts(made["parts"].get(LOADERS, {}).get(COUNTS, {}))


def _rows(job: str, things: Mapping[str, str]) -> Iterator[str]:
    """Yield a row for all that passed under the same schedules."""
    by_schedules: dict[str, list[str]] = {}
    for what, schedules in things.items():
        by_schedules.setdefault(schedules, []).append(what)
    for schedules, names in by_schedules.items():
        if schedules:
            yield f"| {job} | {'; '.join(names)} | {schedules.replace(' ', ', ')} |"


def _page_of_counts(counts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    yield "| a batch by default | launches | copies | waits of the host | waits of streams |"
    yield "|---|---|---|---|---|"
    for kind, places in counts.items():
        numbers = places.get("default", {})
        sums = [
            sum(n for name, n in numbers.items() if name.startswith(start))
            for start in ("kernel", "copy", "wait of the host", "wait of a stream")
        ]
        yield f"| {kind} | {' | '.join(f'{number:g}' for number in sums)} |"
