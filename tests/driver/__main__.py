"""Runs everything over the stand-in, each job in a process of its own::

    python -m tests.driver               all
    python -m tests.driver plants node   some parts of the result, loaders, checks or plants

Each job is written to RESULT.json and RESULT.md of this folder as it ends.

It makes the environments in PYG_DIRECT_DRIVER_FOLDER (7 GB for each CUDA, once), or takes the one
of `--python`, for the one CUDA of `--cuda`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

from . import environment, report
from .report import Outcome, Run

MARK = "outcome: "
LIMIT_SECONDS = 3600  # of a job, which takes half a minute on an idle machine
SCHEDULES = "eager,lazy,2,4,5,6"
FEW_SCHEDULES = "eager,lazy,2"
PLANT_SCHEDULES = "2,4,5,6,lazy,eager"  # a device that fails ends the process
# Every array in an allocation of its own, so that a kernel that leaves one fails at once.
EXACT = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
WITH_EXACT_BOUNDS = ("node", "temporal", "weighted", "heterogeneous", "link", "node, disjoint")
VARIABLES = {"out_of_memory": EXACT}  # of checks


class Job(NamedTuple):
    """One process."""

    name: str  # of a kind of loader, or of a check
    schedules: str
    cuda: int = 12
    cupy: str = ""  # its version, where it is not that of the environment
    variables: Mapping[str, str] = {}
    plant: str = ""


class Launcher:
    """Starts processes over the stand-in."""

    def __init__(self, place: environment.Environment) -> None:
        self._place, self._preload = place, place.build()

    def ask(self) -> dict[str, Any]:
        """Return loaders, checks, plants with their jobs, and versions."""
        job = Job("", "")
        return json.loads(self._start(["--list"], job).stdout.splitlines()[-1])

    def run(self, job: Job) -> Run:
        """Run a job to its end, or to its limit."""
        begin, unfinished = time.monotonic(), ""
        arguments = [job.name, "--schedules", job.schedules]
        if job.plant:
            arguments += ["--plant", job.plant]
        try:
            done = self._start(arguments, job)
            output, status, errors = done.stdout, done.returncode, done.stderr
        except subprocess.TimeoutExpired as late:
            output = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            status, errors = 0, ""
            load = f"with a load of {os.getloadavg()[0]:.0f} on {os.cpu_count()} cores"
            unfinished = f"it was stopped after {LIMIT_SECONDS} s, {load}"
        lines = [line for line in output.splitlines() if line.startswith(MARK)]
        outcomes = [Outcome(*json.loads(line.removeprefix(MARK))) for line in lines]
        silent = status != 0 and not any(o.problem for o in outcomes)
        if silent or not (outcomes or unfinished):
            last = " / ".join(errors.strip().splitlines()[-3:])
            problem = f"the process ended with {status}: {last}"
            under_way = job.schedules.split(",")[len({o.schedule for o in outcomes}) :][:1]
            outcomes.append(Outcome(job.name, "the process", "".join(under_way), problem, {}))
        return Run(job.name, job.plant, outcomes, unfinished, time.monotonic() - begin)

    def _start(self, arguments: list[str], job: Job) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self._place.python), "-m", "tests.driver.worker", *arguments],
            env=self._place.variables(self._preload, job.cupy) | job.variables,
            cwd=environment.ROOT,
            capture_output=True,
            text=True,
            timeout=LIMIT_SECONDS,
            check=False,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tests.driver",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("jobs", nargs="*", help="loaders, checks, plants, parts of the result")
    parser.add_argument("--folder", type=Path, default=environment.default_folder())
    parser.add_argument("--cuda", type=int, choices=list(environment.CUPY), help="only this one")
    parser.add_argument("--python", type=Path, help="of an environment that is there already")
    parser.add_argument("--processes", type=int, default=2)
    given = parser.parse_args()
    if given.python and not given.cuda:
        parser.error("--python is an environment for one CUDA: pass --cuda, too")
    before = report.known()
    facts = {name: before.get(name, {}) for name in ("versions", "gigabytes", report.BEFORE)}
    launchers = {}
    for cuda in [given.cuda] if given.cuda else environment.CUPY:
        place = environment.Environment(given.folder, cuda, given.python)
        place.make()
        launchers[cuda] = Launcher(place)
        known = launchers[cuda].ask()
        facts["versions"][f"CUDA {cuda}"] = known["versions"]
        facts["gigabytes"][f"CUDA {cuda}"] = round(place.gigabytes(), 1)
    names, failed = set(given.jobs), False
    parts = _parts(known)
    report.forget_others({p: {j.plant or j.name for j in jobs} for p, jobs in parts.items()})
    with ThreadPoolExecutor(given.processes) as pool:
        for part, jobs in parts.items():
            chosen = [
                job
                for job in jobs
                if job.cuda in launchers and (not names or names & {part, job.name, job.plant})
            ]
            runs = [pool.submit(launchers[job.cuda].run, job) for job in chosen]
            for future in as_completed(runs):
                run = future.result()
                entry = report.entry_of(part, run)
                report.write(facts, part, run.plant or run.job, entry)
                failed = failed or bool(entry[report.PROBLEMS] or run.unfinished)
                _show(part, run, entry)
    sys.exit(1 if failed else 0)


def _parts(known: Mapping[str, Any]) -> dict[str, list[Job]]:
    """Return the jobs of each part of the result."""
    _, other = environment.CUPY[12]
    return {
        report.LOADERS: [Job(name, SCHEDULES) for name in known["loaders"]],
        "exact bounds": [Job(n, FEW_SCHEDULES, variables=EXACT) for n in WITH_EXACT_BOUNDS],
        f"CuPy {other}": [Job(n, FEW_SCHEDULES, cupy=other) for n in known["loaders"]],
        "checks": [
            Job(name, schedules, variables=VARIABLES.get(name, {}))
            for name, schedules in known["checks"].items()
        ],
        "CUDA 13": [Job(name, FEW_SCHEDULES, cuda=13) for name in known["loaders"]],
        "CUDA 13, checks": [
            Job(name, schedules, cuda=13, variables=VARIABLES.get(name, {}))
            for name, schedules in known["checks"].items()
        ],
        report.PLANTS: [
            Job(job, PLANT_SCHEDULES, plant=plant) for plant, job in known["plants"].items()
        ],
    }


def _show(part: str, run: Run, entry: Mapping[str, Any]) -> None:
    """Print what came of a run."""
    title = f"{part}: {run.plant + ': ' if run.plant else ''}{run.job}"
    lines = [f"{title}: {len(run.outcomes)} runs, {run.seconds:.0f} s", *entry[report.PROBLEMS]]
    lines[0] += f", {run.unfinished}" if run.unfinished else ""
    if run.plant:
        lines[0] += f", found by {entry[report.FOUND] or 'none'}"
    print("\n    ".join(lines), file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
