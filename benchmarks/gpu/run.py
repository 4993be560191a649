"""Everything that has to be seen on a GPU, in two calls of some six minutes each.

    python -m benchmarks gpu right           # on a machine with a GPU: is it right, and the link
    python -m benchmarks gpu speed           # the rest, added to the result of the first call
    python -m benchmarks gpu                 # both in one call
    python -m benchmarks gpu --only gather   # one stage; may be given several times, and is added
                                             # to the result that an earlier call has left
    python -m benchmarks gpu --quick         # no GPU: toy sizes in the emulator, no results

It compares batches of every kind of loader, wherever its graph and tables may lie, with the CPU's,
runs the GPU tests and compute-sanitizer, measures the link, the gather of plain and of quantized
rows, small batches by one block and by many, the sampling, and whole epochs of training against
PyG's loader and against all data in GPU memory, and judges the numbers by the marks of `gpu_marks`.
Each stage is a process of its own with a time limit, so one that fails or hangs spoils no other;
those that measure nothing run side by side. Results of two states of the sources, or of two GPUs,
are never in one file.
`gpu.json`, `gpu.md` and `gpu_logs.txt` are written anew after every stage, the plot at the end.

Needs torch, PyG, numba and CuPy. All else is optional (see `needs`): the extras test and bench,
torch-sparse or pyg-lib for PyG's loader. Stages whose needs are not there say so in the result.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu import marks as gpu_marks
from benchmarks.gpu import needs
from benchmarks.gpu.limited import TAIL_CHARACTERS, Outcome, run_limited
from benchmarks.gpu.needs import BUILT
from benchmarks.gpu.plan import (
    CALLS,
    DRY,
    FULL,
    STAGES,
    Plan,
    Stage,
    chosen,
    group_seconds,
    groups_of,
    seconds_of,
)
from benchmarks.gpu.report import TITLE, sections
from benchmarks.result import markdown

__all__ = ["TITLE", "main", "sections"]

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
DRY_OUT = REPOSITORY / "build" / "gpu_quick"
LOGS = REPOSITORY / "build" / "gpu_logs"
DRY_NOTE = "DRY RUN in an emulator on the CPU: no number here says anything. Do not commit it."
LOG_BYTES, LOGS_BYTES = 1 << 18, 12 << 20  # of one log at its end, and of all in one file
SAME = ("dry", "plan", "versions", "sources", "gpus")  # of two calls that make one result
SOURCES = (*machine.SOURCES, "tests/driver", "tests/support")
DRY_APART = "info"  # the stage that is a process of its own in a dry run, too
NOT_RUN_DRY = "not run (dry)"
MIN_SECONDS = 3.0  # less is not worth starting a stage for


class Run:
    """One call of the program.

    Args:
        out: folder for the result.
        logs: folder for what stages and tools print.
        plan: sizes.
        dry: use the emulator.
        seconds: for everything.
        archives: sources that the stage `build` builds for PyG's own loader.
    """

    def __init__(
        self,
        out: Path,
        logs: Path,
        plan: Plan,
        dry: bool,
        seconds: float,
        archives: Sequence[Path] = (),
    ) -> None:
        self.out, self.logs, self.plan, self.dry = out, logs, plan, dry
        self._archives = [str(path.resolve()) for path in archives]
        out.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + seconds
        self._begin = time.monotonic()
        environment = {**machine.environment(SOURCES), "gpus": gpu_names()}
        note = {"note": DRY_NOTE} if dry else {}
        self.result: dict[str, Any] = {
            **note, "benchmark": "gpu", "quick": plan == DRY, "dry": dry, **environment,
            "missing": needs.missing(), "plan": plan._asdict(), "stages": {}, "marks": [],
        }  # fmt: skip

    def go_on(self) -> None:
        """Keep the stages of the result that is there, if there is one.

        Raises:
            ValueError: it is of other sources, versions, GPUs or sizes.
        """
        path = self.out / "gpu.json"
        if not path.exists():
            return
        before = json.loads(path.read_text())
        changed = [name for name in SAME if before.get(name) != self.result[name]]
        if changed:
            raise ValueError(
                f"{path} is of another call, whose {' and '.join(changed)} differ. Name another "
                f"folder: --out."
            )
        self.result["stages"] = before["stages"]

    def stages(self, stages: tuple[Stage, ...]) -> None:
        """Run some stages, and write the result after each."""
        # Stages that do nothing in a dry run leave their time to the others.
        timed = tuple(stage for stage in stages if not (self.dry and stage.needs_gpu))
        for stage in stages:
            if stage not in timed:
                self._keep(stage, {"status": NOT_RUN_DRY, "seconds": 0.0, "results": {}})
        groups = groups_of(timed, side_by_side=not self.dry)
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(len(stages)) as pool:
            for number, group in enumerate(groups):
                limit = group_seconds(number, groups, self._deadline - time.monotonic())
                names = " | ".join(stage.name for stage in group)
                print(f"== {names}, at most {limit:.0f} s", flush=True)
                run = partial(self._stage, folder=Path(folder), limit=limit)
                for stage, record in zip(group, pool.map(run, group), strict=True):
                    self._keep(stage, record)

    def _keep(self, stage: Stage, record: dict[str, Any]) -> None:
        """Put a stage into the result, in the order of a whole call."""
        shown = json.loads(without_paths(json.dumps(record)))
        found = {**self.result["stages"], stage.name: shown}
        order = [each.name for each in STAGES]
        names = sorted(found, key=lambda n: order.index(n) if n in order else len(order))
        self.result["stages"] = {name: found[name] for name in names}
        self.write()
        print(f"   {stage.name}: {record['status']} after {record['seconds']:.1f} s", flush=True)

    def _stage(self, stage: Stage, folder: Path, limit: float) -> dict[str, Any]:
        graph = self.result["stages"].get("graph", {"status": "ok"})
        if stage.needs_graph and graph["status"] != "ok":
            return {"status": "not run (there is no graph)", "seconds": 0.0, "results": {}}
        if limit < MIN_SECONDS:
            return {"status": "not run (no time left)", "seconds": 0.0, "results": {}}
        results, config = folder / f"{stage.name}.json", folder / f"{stage.name}_config.json"
        config.write_text(json.dumps({
            "stage": stage.name, "dry": self.dry, "plan": self.plan, "folder": str(folder),
            "out": str(results), "logs": str(self.logs), "deadline": time.monotonic() + limit,
            "archives": self._archives,
        }))  # fmt: skip
        log = self.logs / f"{stage.name}.log"
        if self.dry and stage.name != DRY_APART:
            outcome = run_here(config, log)
        else:
            command = [sys.executable, "-m", "benchmarks.gpu.stage", str(config)]
            found = environment(folder)
            outcome = run_limited(command, limit, log, **found, cwd=REPOSITORY, quick=self.dry)
        record: dict[str, Any] = {
            "status": "ok" if outcome.ok else "failed",
            "seconds": outcome.seconds,
            "limit_seconds": limit,
            # Also of a stage that failed: what it has measured until then.
            "results": json.loads(results.read_text()) if results.exists() else {},
        }
        if outcome.status is None:
            record["status"] = "stopped at its time limit"
        elif "not_run" in record["results"]:
            record["status"] = f"not run ({record['results']['not_run']})"
        if not outcome.ok:
            record["error"] = outcome.tail
            print(outcome.tail, flush=True)
        return record

    def write(self) -> None:
        """Write the result as it is now."""
        measured = {name: record["results"] for name, record in self.result["stages"].items()}
        marks = gpu_marks.evaluate(measured, self.dry)
        self.result["marks"] = [mark._asdict() for mark in marks]
        self.result["seconds"] = time.monotonic() - self._begin
        path = self.out / "gpu.json"
        part = path.with_suffix(".part")
        part.write_text(json.dumps(self.result, indent=1) + "\n")
        part.replace(path)
        path.with_suffix(".md").write_text(markdown(self.result, path.stem))
        (self.out / "gpu_logs.txt").write_text(packed(self.logs))

    def finish(self) -> None:
        """Draw the plot and print the marks."""
        try:
            from benchmarks.gpu import plot as gpu_plot

            gpu_plot.plot(self.result, self.out / "gpu.png")
        except Exception as error:  # the numbers are there all the same
            print(f"no plot: {type(error).__name__}: {error}")
        marks = [gpu_marks.Mark(**mark) for mark in self.result["marks"]]
        print(gpu_marks.table(marks))
        print(f"{self.result['seconds']:.0f} s; written to {self.out / 'gpu.json'}")


def environment(folder: Path) -> dict[str, Any]:
    """Return arguments of `run_limited` with which a stage finds what was built."""
    built = folder / BUILT
    if not built.exists():
        return {}
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(built))))
    return {"env": {**os.environ, "PYTHONPATH": path}}


def gpu_names() -> list[str]:
    """Return the GPUs of the machine, as the driver's own program names them."""
    command = ["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return []
    return done.stdout.strip().splitlines()


def without_paths(text: str) -> str:
    """Return a text in which folders of this machine have names that mean the same elsewhere.

    Example: `/home/me/checkout/benchmarks` becomes `./benchmarks`, and `/home/me/.cupy` `~/.cupy`.
    """
    folders = {str(REPOSITORY): ".", str(Path.home()): "~"}
    if sys.prefix != sys.base_prefix:
        folders[sys.prefix] = "$VIRTUAL_ENV"
    for folder in sorted(folders, key=len, reverse=True):  # one may lie in another
        text = re.sub(rf"{re.escape(folder)}(?![\w.-])", folders[folder], text)
    return text


def packed(logs: Path) -> str:
    """Return the ends of all files in a folder in one text: one file is easily carried away."""
    parts = [
        f"==== {path.relative_to(logs)}\n{path.read_text(errors='replace')[-LOG_BYTES:]}\n"
        for path in sorted(logs.rglob("*.*"))
    ]
    return "".join(parts)[-LOGS_BYTES:]


def run_here(config: Path, log: Path) -> Outcome:
    """Run a stage in this process, as in a dry run, where starting processes would take longest."""
    from benchmarks.gpu import stage

    log.parent.mkdir(parents=True, exist_ok=True)
    begin, status = time.monotonic(), 0
    with log.open("w") as output, redirect_stdout(output), redirect_stderr(output):
        try:
            stage.main([str(config)])
        except Exception:
            traceback.print_exc()
            status = 1
    return Outcome(status, time.monotonic() - begin, log.read_text()[-TAIL_CHARACTERS:])


def main(argv: list[str] | None = None) -> None:
    """Run the stages."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    names = [stage.name for stage in STAGES]
    parser.add_argument("call", nargs="?", choices=list(CALLS), help="one of the two; else both")
    parser.add_argument(
        "--quick", "--dry", dest="dry", action="store_true", help="toy sizes in the emulator"
    )
    parser.add_argument("--toy", action="store_true", help="toy sizes on a GPU, no results")
    parser.add_argument("--only", action="append", choices=names, help="a stage to run")
    parser.add_argument("--minutes", type=float, help="for everything")
    parser.add_argument("--out", type=Path, help="folder for the result")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder for what stages print")
    parser.add_argument("--growth-batches", type=int, help="over which memory must not grow")
    parser.add_argument(
        "--build", type=Path, nargs="+", default=(), metavar="ARCHIVE",
        help="sources of torch_scatter and torch_sparse, built beside another stage",
    )  # fmt: skip
    args = parser.parse_args(argv)
    toy = args.dry or args.toy
    out = args.out or (DRY_OUT if toy else RESULTS)
    if toy and out.resolve() == RESULTS.resolve():
        parser.error("toy sizes measure nothing, so they do not go to the folder of the results")
    plan = DRY if toy else FULL
    if args.growth_batches:
        plan = plan._replace(growth_batches=args.growth_batches)
    stages = chosen(args.only, args.call)
    seconds = 60 * args.minutes if args.minutes else float(seconds_of(stages))
    run = Run(out, args.logs, plan, args.dry, seconds, args.build)
    if args.only or args.call:
        try:
            run.go_on()
        except ValueError as different:
            parser.error(str(different))
    if args.dry:
        print(DRY_NOTE)
    run.stages(stages)
    run.finish()
