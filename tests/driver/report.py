"""From the runs of all jobs to RESULT.json, and to RESULT.md, which the documentation shows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
JSON, PAGE = HERE / "RESULT.json", HERE / "RESULT.md"
COUNTS, PLANTS, PROBLEMS = "counts of a batch", "plants", "problems"
EAGER = "eager"


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


def result(found: Mapping[str, list[Run]]) -> dict[str, Any]:
    """Return what the runs of each part show."""
    made: dict[str, Any] = {PROBLEMS: []}
    for part, runs in found.items():
        if part == PLANTS:
            made[part] = _plants(runs)
            continue
        made[part] = {run.job: _passed(run.outcomes) for run in runs}
        made[PROBLEMS] += [
            f"{part}: {o.job}, {o.what}, {o.schedule}: {o.problem}"
            for run in runs
            for o in run.outcomes
            if o.problem
        ]
    made[COUNTS] = {
        run.job: {o.what: o.numbers for o in run.outcomes if o.numbers}
        for run in found.get("loaders", [])
    }
    made[PROBLEMS] += list(_plant_problems(made.get(PLANTS, {})))
    made[PROBLEMS] += list(_changed_counts(made[COUNTS]))
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
            yield f"plants: {plant}: no seed found it ({schedules or 'nor any other schedule'})"


def _changed_counts(counts: Mapping[str, Mapping[str, Mapping[str, float]]]) -> Iterator[str]:
    before = json.loads(JSON.read_text())[COUNTS] if JSON.exists() else {}
    for kind, places in counts.items():
        for place, numbers in places.items():
            known = before.get(kind, {}).get(place, numbers)
            for name in sorted(numbers.keys() | known.keys()):
                was, now = known.get(name, 0), numbers.get(name, 0)
                if was != now:
                    yield f"counts: {kind}, {place}: {name}: {was} a batch before, {now} now"


def write(made: Mapping[str, Any]) -> None:
    """Write the result, and the page."""
    JSON.write_text(json.dumps(made, indent=1) + "\n")
    PAGE.write_text("\n".join(_page(made)) + "\n")


def _page(made: Mapping[str, Any]) -> Iterator[str]:
    versions = ", ".join(f"{name} {version}" for name, version in made["versions"].items())
    runs = sum(
        len(schedules.split())
        for part, jobs in made.items()
        if isinstance(jobs, dict) and part not in (COUNTS, PLANTS, "versions")
        for things in jobs.values()
        for schedules in things.values()
    )
    yield f"Run on {made['date']}: {versions}. {made['minutes']} minutes, {made['gigabytes']} GB."
    yield ""
    yield f"{runs} runs were as they must be, {len(made[PROBLEMS])} problems."
    yield from (f"* {problem}" for problem in made[PROBLEMS])
    yield ""
    yield "| loader | in these places | schedules |"
    yield "|---|---|---|"
    for kind, places in made["loaders"].items():
        by_schedules: dict[str, list[str]] = {}
        for place, schedules in places.items():
            by_schedules.setdefault(schedules, []).append(place)
        for schedules, names in by_schedules.items():
            yield f"| {kind} | {'; '.join(names)} | {schedules.replace(' ', ', ')} |"
    yield ""
    yield "| left out | found by schedules |"
    yield "|---|---|"
    for plant, schedules in made[PLANTS].items():
        yield f"| {plant} | {schedules.replace(' ', ', ')} |"
    yield ""
    yield from _page_of_counts(made[COUNTS])


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
