"""Runs one job in this process, and prints its outcomes as lines of JSON::

    LD_PRELOAD=... python -m tests.driver.worker JOB [--schedules eager,lazy,1] [--plant NAME]

A job is a kind of loader (`loaders.KINDS`) or a check (`checks.CHECKS`).
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import traceback
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from . import plants, standin, start

MARK = "outcome: "


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("job", nargs="?")
    parser.add_argument("--list", action="store_true", help="print what can be run, as JSON")
    parser.add_argument("--schedules", default="eager,lazy,1")
    parser.add_argument("--places", default="", help="only these, separated by ;")
    parser.add_argument("--plant", default="")
    given = parser.parse_args()
    if given.plant:
        plants.leave_out(given.plant)
    start.install()
    from . import loaders

    warnings.simplefilter("ignore")
    if given.list:
        print(json.dumps(known()))
        return
    schedules = given.schedules.split(",")
    if given.plant:
        outcomes = until_found(given.job, schedules)
    elif given.job in loaders.KINDS:
        outcomes = batches_equal(given.job, schedules, given.places)
    else:
        outcomes = checked(given.job, schedules)
    failures = 0
    for what, schedule, problem, numbers in outcomes:
        failures += bool(problem)
        outcome = [given.job, what, schedule, problem, numbers]
        print(MARK + json.dumps(outcome), flush=True)
        if standin.fault():  # torch aborts a process whose device failed as it ends
            break
    sys.stdout.flush()
    sys.exit(1 if failures else 0)


def known() -> dict[str, Any]:
    """Return loaders, checks with their schedules, plants with their jobs, and versions."""
    import cupy
    import torch

    from .checks import CHECKS, SCHEDULES
    from .loaders import KINDS

    return {
        "loaders": list(KINDS),
        "checks": {name: SCHEDULES.get(name, "lazy,2") for name in CHECKS},
        "plants": {name: plant.found_by for name, plant in plants.PLANTS.items()},
        "versions": {
            "Python": sys.version.split()[0],
            "torch": torch.__version__,
            "CuPy": cupy.__version__,
            **{name: version(name) for name in ("torch_geometric", "numba")},
        },
    }


Outcome = tuple[str, str, str, dict[str, float]]
"""What was tried, the schedule, the problem or "", and numbers for the result."""


def until_found(job: str, schedules: list[str]) -> Iterator[Outcome]:
    """Run a job with a plant, under seeds until one finds it, and under the other schedules."""
    from .loaders import KINDS

    found = False
    for schedule in schedules:
        if found and schedule.isdigit():
            continue
        outcomes = (
            batches_equal(job, [schedule], "default;host")
            if job in KINDS
            else checked(job, [schedule])
        )
        for outcome in outcomes:
            yield outcome
            _, _, problem, _ = outcome
            if problem:
                found = True
                break


def batches_equal(kind: str, schedules: list[str], places: str) -> Iterator[Outcome]:
    """Compare an epoch of batches in each place, under each schedule, with the CPU's."""
    from . import batches, counting, loaders

    standin.set_schedule("eager")
    cpu = loaders.on_cpu(kind)
    expected = [batches.epoch(cpu) for _ in range(2)]
    for place in places.split(";") if places else loaders.KINDS[kind].places:
        where = loaders.PLACES[place]
        for schedule in schedules:
            standin.set_schedule(schedule)
            numbers: dict[str, float] = {}
            try:
                loader = loaders.loader(kind, place, device="cuda")
                found = batches.epoch(loader)
                problem = batches.difference(found, expected[0]) or batches.misplaced(
                    found, "cuda:0", "ids" in where
                )
                # The batches of two producers ask for differing numbers of each thing.
                if not problem and schedule == "eager" and "num_workers" not in where:
                    numbers = counting.of_second_epoch(loader)
                elif not problem and place == "persistent":
                    again = batches.epoch(loader)  # with the same threads
                    problem = batches.difference(again, expected[1])
                del loader, found
                gc.collect()
            except Exception as error:
                problem = described(error)
            yield place, schedule, problem or standin.left_out() or standin.fault(), numbers


def checked(name: str, schedules: list[str]) -> Iterator[Outcome]:
    """Run a check under each schedule."""
    from .checks import CHECKS

    for schedule in schedules:
        standin.set_schedule(schedule)
        try:
            for what, problem in CHECKS[name](schedule):
                yield what, schedule, problem or standin.left_out() or standin.fault(), {}
        except Exception as error:
            traceback.print_exc()
            yield "the check itself", schedule, described(error), {}


def described(error: BaseException) -> str:
    lines = str(error).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


if __name__ == "__main__":
    main()
