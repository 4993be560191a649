"""Everything that has to be seen on a GPU, in one call of less than ten minutes.

    python -m benchmarks gpu                 # on a machine with a GPU
    python -m benchmarks gpu --only gather   # one stage; may be given several times, and may be
                                             # added to the result that an earlier call has left
    python -m benchmarks gpu --quick         # no GPU: toy sizes in the emulator, no results

It compares batches of every kind of loader, wherever its graph and tables may lie, with the CPU's,
runs the GPU tests and compute-sanitizer, measures the link, the gather of plain and of quantized
rows, small batches by one block and by many, the sampling, and whole epochs of training against
PyG's loader and against all data in GPU memory, and judges the numbers by the marks of `gpu_marks`.
Each stage is a process of its own with a time limit, so one that fails or hangs spoils no other.
`gpu.json`, `gpu.md` and `gpu_logs.txt` are written anew after every stage, the plot at the end.

Needs torch, PyG, numba and CuPy. All else is optional (see `needs`): the extras test and bench,
torch-sparse or pyg-lib for PyG's loader. Stages whose needs are not there say so in the result.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import traceback
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.gpu import marks as gpu_marks
from benchmarks.gpu import needs
from benchmarks.gpu.limited import TAIL_CHARACTERS, Outcome, run_limited
from benchmarks.gpu.plan import DRY, FULL, FULL_SECONDS, STAGES, Plan, Stage, chosen, stage_seconds
from benchmarks.gpu.report import TITLE, sections
from benchmarks.result import markdown

__all__ = ["TITLE", "main", "sections"]

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "benchmarks" / "results"
DRY_OUT = REPOSITORY / "build" / "gpu_quick"
LOGS = REPOSITORY / "build" / "gpu_logs"
DRY_NOTE = "DRY RUN in an emulator on the CPU: no number here says anything. Do not commit it."
LOG_BYTES, LOGS_BYTES = 1 << 18, 12 << 20  # of one log at its end, and of all in one file
SAME = ("dry", "plan", "versions", "commit")  # of two calls that make one result
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
        commit: of the code, where no checkout tells.
    """

    def __init__(
        self, out: Path, logs: Path, plan: Plan, dry: bool, seconds: float, commit: str | None
    ) -> None:
        self.out, self.logs, self.plan, self.dry = out, logs, plan, dry
        out.mkdir(parents=True, exist_ok=True)
        self._deadline = time.monotonic() + seconds
        self._begin = time.monotonic()
        environment = machine.environment()
        environment["commit"] = environment["commit"] or commit
        note = {"note": DRY_NOTE} if dry else {}
        self.result: dict[str, Any] = {
            **note, "benchmark": "gpu", "quick": plan == DRY, "dry": dry, **environment,
            "missing": needs.missing(), "plan": plan._asdict(), "stages": {}, "marks": [],
        }  # fmt: skip

    def go_on(self) -> None:
        """Keep the stages of the result that is there, if there is one.

        Raises:
            ValueError: it is of other code, versions or sizes.
        """
        path = self.out / "gpu.json"
        if not path.exists():
            return
        before = json.loads(path.read_text())
        changed = [name for name in SAME if before[name] != self.result[name]]
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
        with tempfile.TemporaryDirectory() as folder:
            for stage in stages:
                left, limit = self._deadline - time.monotonic(), 0.0
                if stage in timed:
                    limit = stage_seconds(timed.index(stage), timed, left)
                print(f"== {stage.name}, at most {limit:.0f} s", flush=True)
                record = self._stage(stage, Path(folder), limit)
                found = {**self.result["stages"], stage.name: record}
                order = [each.name for each in STAGES]
                names = sorted(found, key=lambda n: order.index(n) if n in order else len(order))
                self.result["stages"] = {name: found[name] for name in names}
                self.write()
                print(f"   {record['status']} after {record['seconds']:.1f} s", flush=True)

    def _stage(self, stage: Stage, folder: Path, limit: float) -> dict[str, Any]:
        if self.dry and stage.needs_gpu:
            return {"status": NOT_RUN_DRY, "seconds": 0.0, "results": {}}
        if limit < MIN_SECONDS:
            return {"status": "not run (no time left)", "seconds": 0.0, "results": {}}
        results, config = folder / f"{stage.name}.json", folder / f"{stage.name}_config.json"
        config.write_text(json.dumps({
            "stage": stage.name, "dry": self.dry, "plan": self.plan, "folder": str(folder),
            "out": str(results), "logs": str(self.logs), "deadline": time.monotonic() + limit,
        }))  # fmt: skip
        log = self.logs / f"{stage.name}.log"
        if self.dry and stage.name != DRY_APART:
            outcome = run_here(config, log)
        else:
            command = [sys.executable, "-m", "benchmarks.gpu.stage", str(config)]
            outcome = run_limited(command, limit, log, cwd=REPOSITORY, quick=self.dry)
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
    parser.add_argument(
        "--quick", "--dry", dest="dry", action="store_true", help="toy sizes in the emulator"
    )
    parser.add_argument("--toy", action="store_true", help="toy sizes on a GPU, no results")
    parser.add_argument("--only", action="append", choices=names, help="a stage to run")
    parser.add_argument("--minutes", type=float, default=FULL_SECONDS / 60, help="for everything")
    parser.add_argument("--out", type=Path, help="folder for the result")
    parser.add_argument("--logs", type=Path, default=LOGS, help="folder for what stages print")
    parser.add_argument("--growth-batches", type=int, help="over which memory must not grow")
    parser.add_argument("--commit", help="of the code, where it is no checkout")
    args = parser.parse_args(argv)
    toy = args.dry or args.toy
    out = args.out or (DRY_OUT if toy else RESULTS)
    if toy and out.resolve() == RESULTS.resolve():
        parser.error("toy sizes measure nothing, so they do not go to the folder of the results")
    plan = DRY if toy else FULL
    if args.growth_batches:
        plan = plan._replace(growth_batches=args.growth_batches)
    run = Run(out, args.logs, plan, args.dry, 60 * args.minutes, args.commit)
    if args.only:
        try:
            run.go_on()
        except ValueError as different:
            parser.error(str(different))
    if args.dry:
        print(DRY_NOTE)
    run.stages(chosen(args.only))
    run.finish()
