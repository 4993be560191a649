"""Speed and memory of CPU loaders, all in one interleaved run.

Every contestant (a loader with a setting) lives in a process of its own, builds its loader once and
is asked for a round of batches in turn with the others; only one works at a time. Medians over the
rounds are compared.

    python -m benchmarks cpu    # needs 20 GB of memory
    python -m benchmarks cpu --dgl /path/to/python  # with GraphBolt, of that interpreter
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

from benchmarks import machine
from benchmarks.child import end, run, start
from benchmarks.cpu import cases, derive
from benchmarks.cpu.cases import Case, Contestant
from benchmarks.cpu.child import anonymous_bytes
from benchmarks.cpu.contestants import save_graph
from benchmarks.cpu.report import TITLE, plot, sections, text_row
from benchmarks.load import Watch
from benchmarks.result import new_result, parser, write
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph

REPOSITORY = Path(__file__).resolve().parents[2]
COPY_BYTES = 1 << 29
QUICK_COPY_BYTES = 1 << 22
__all__ = ["TITLE", "main", "plot", "sections"]

MEMORY_POLL_SECONDS = 0.05
ERROR_LINES = 20
BUSY_LOAD = 0.5  # load average before the run

Samples = dict[tuple[Contestant, str], list[float]]  # (who, metric) -> one value a round


class Child:
    """A contestant's process.

    Args:
        contestant: whose.
        case: the graph.
        python: the interpreter; None for that of this process.
    """

    def __init__(self, contestant: Contestant, case: Case, python: str | None = None) -> None:
        self.contestant = contestant
        self.failure: str | None = None
        self.base_bytes = 0  # with the graph, before there is a loader
        config = json.dumps({"contestant": contestant, "case": case})
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed by `close`
        self._process = start(
            [python or sys.executable, "-m", "benchmarks.cpu.child", config],
            case.quick,
            cwd=REPOSITORY,
            env={**os.environ, **cases.MALLOC_MODES[contestant.malloc]},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
        )

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Have something done; {} if this contestant cannot, or has failed before."""
        if self.failure is not None:
            return {}
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        self.failure = (reply := json.loads(line) if line else {}).get("error")
        if not line:
            self.failure = self._end()
        if self.failure is not None:
            print(f"{label(self.contestant)} failed in {op}:\n{self.failure}", file=sys.stderr)
            return {}
        return reply

    def _end(self) -> str:
        """Return how the process ended, and the last lines that it wrote to stderr."""
        code = self._process.wait()
        self._errors.seek(0)
        told = self._errors.read().strip().splitlines()[-ERROR_LINES:]
        how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
        return "\n".join([f"the process ended {how}, having said:", *(told or ["nothing"])])

    def anonymous_bytes(self) -> int:
        """Return the memory of the process and its workers."""
        try:
            pids = [child.pid for child in psutil.Process(self._process.pid).children(True)]
        except psutil.NoSuchProcess:
            return 0
        return sum(anonymous_bytes(pid) for pid in [self._process.pid, *pids])

    def close(self) -> None:
        """End the process."""
        end(self._process)
        self._errors.close()


def label(contestant: Contestant) -> str:
    """Return a short name."""
    return f"{contestant.loader}, {contestant.num_workers} workers, malloc {contestant.malloc}"


def run_case(
    case: Case, mallocs: list[str], scratch: Path, live: int, pythons: Mapping[str, str]
) -> dict[str, Any]:
    """Measure all contestants on one graph.

    Args:
        case: the graph and how often to measure.
        mallocs: settings of the allocator.
        scratch: folder for the graph's arrays.
        live: how many contestants may hold the graph in memory at a time.
        pythons: interpreters of loaders that are not installed here.
    """
    print(f"\n{case.name}", flush=True)
    begin = time.perf_counter()
    data = power_law_graph(case.num_nodes, case.num_edges, case.num_features, case.num_classes)
    seconds = time.perf_counter() - begin
    save_graph(data, scratch)
    tensor_bytes = sum(data[name].nbytes for name in ("x", "y", "edge_index"))
    del data
    samples: Samples = defaultdict(list)
    failures: dict[str, str] = {}
    watch = Watch()
    for malloc in mallocs:
        field = cases.contestants(malloc, pythons)
        for first in range(0, len(field), live):
            children = [
                Child(who, case, pythons.get(who.loader)) for who in field[first : first + live]
            ]
            run_group(case, children, scratch, samples, watch)
            failures |= {label(c.contestant): c.failure for c in children if c.failure is not None}
    rows = [
        {"graph": case.name, **who._asdict(), "metric": metric, **spread(values), "samples": values}
        for (who, metric), values in samples.items()
    ]
    for row in rows:
        print(text_row(row), flush=True)
    return {
        "case": case._asdict(),
        "generation_s": seconds,
        "tensor_bytes": tensor_bytes,
        "rows": rows,
        "failures": failures,
        "others_cores": watch.cores,
    }


def run_group(
    case: Case, children: list[Child], scratch: Path, samples: Samples, watch: Watch
) -> None:
    """Measure contestants that live at the same time, one working at a time, and end them."""
    try:
        for child in children:
            child.base_bytes = child.ask("load", folder=str(scratch)).get("base_bytes", 0)
        for _ in range(case.constructions):
            for child in children:
                fields = ("seconds", "peak_extra_bytes")
                keep(samples, child, child.ask("construct"), "construct_", fields)
        for child in children:
            measure_memory(child, case, samples)
        watch.begin()
        for turn in range(case.rounds):
            # Begin with another one each time, so that none always follows the same one.
            for child in children[turn % len(children) :] + children[: turn % len(children)]:
                rounds = {"count": case.batches, "warmup": case.warmup}
                fields = ("ms", "cpu_ms", "nodes", "edges")
                keep(samples, child, child.ask("batches", **rounds), "batch_", fields)
                keep(samples, child, child.ask("sampling", **rounds), "sampling_", fields[:2])
            watch.round()
    finally:
        for child in children:
            child.close()


def keep(
    samples: Samples, child: Child, reply: dict[str, Any], prefix: str, fields: tuple[str, ...]
) -> None:
    """Add what a contestant answered to the samples."""
    for field in fields:
        if field in reply:
            samples[child.contestant, prefix + field].append(reply[field])


def measure_memory(child: Child, case: Case, samples: Samples) -> None:
    """Watch the memory of a contestant and its workers over a round that is not timed."""
    base, peak, done = child.base_bytes, 0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not done.wait(MEMORY_POLL_SECONDS):
            peak = max(peak, child.anonymous_bytes())

    watcher = threading.Thread(target=watch)
    watcher.start()
    child.ask("batches", count=2 * case.batches, warmup=0)
    done.set()
    watcher.join()
    if child.failure is not None:
        return
    peak = max(peak, child.anonymous_bytes())
    samples[child.contestant, "iterating_extra_bytes"].append(peak - base)


def first_batches(repeats: int) -> list[dict[str, Any]]:
    """Time the first import to the first batch: new machine code, cached machine code, PyG."""
    rivals = (cases.PYG_LIB, cases.TORCH_SPARSE)
    runs = [(cases.OURS, "cold"), (cases.OURS, "warm"), *((rival, "none") for rival in rivals)]
    samples: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for _ in range(repeats):
        with tempfile.TemporaryDirectory() as cache:  # the first run fills it for the second
            for loader, state in runs:
                if not cases.available(loader):
                    continue
                command = [sys.executable, "-m", "benchmarks.cpu.first_batch", loader]
                environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
                done = run(command, quick=False, cwd=REPOSITORY, env=environment)
                for field, value in json.loads(done.output).items():
                    samples[loader, state, field].append(value)
    return [
        {"loader": loader, "kernel_cache": state, "metric": field, **spread(values)}
        for (loader, state, field), values in samples.items()
    ]


def main(argv: list[str] | None = None) -> None:
    """Run everything and write the results."""
    arguments = parser(__doc__)
    modes = list(cases.MALLOC_MODES)
    arguments.add_argument("--cases", nargs="*", type=int, help="numbers of the graphs, from 0")
    arguments.add_argument("--rounds", type=int, help="instead of each graph's own number")
    arguments.add_argument("--malloc", nargs="*", choices=modes, help="settings of the allocator")
    arguments.add_argument("--first-batches", type=int, help="fresh processes of each kind")
    arguments.add_argument("--live", type=int, default=4, help="contestants in memory at a time")
    arguments.add_argument("--scratch", type=Path, help="folder with 3 GB of room")
    arguments.add_argument(
        "--dgl", metavar="PYTHON", help="an interpreter with DGL, PyG and psutil, for GraphBolt"
    )
    args = arguments.parse_args(argv)
    chosen = cases.QUICK_CASES if args.quick else cases.CASES
    chosen = [chosen[number] for number in args.cases] if args.cases else chosen
    if args.rounds:
        chosen = [case._replace(rounds=args.rounds) for case in chosen]
    mallocs = args.malloc or (["kept"] if args.quick else modes)
    pythons = {} if args.dgl is None else {cases.GRAPHBOLT: args.dgl}
    fresh = (0 if args.quick else 3) if args.first_batches is None else args.first_batches
    result = new_result(
        "cpu",
        args.quick,
        not_installed=[
            name for name in cases.LOADERS if name not in pythons and not cases.available(name)
        ],
        copy_bytes_per_s=machine.copy_bandwidth(QUICK_COPY_BYTES if args.quick else COPY_BYTES),
        graphs=[],
    )
    if os.getloadavg()[0] > BUSY_LOAD:
        print("WARNING: other programs are running; torch's threads then wait for each other")
    if result["not_installed"]:
        print("not installed, so not measured:", ", ".join(result["not_installed"]))
    for case in chosen:
        with tempfile.TemporaryDirectory(dir=args.scratch) as scratch:
            graph = run_case(case, mallocs, Path(scratch), args.live, pythons)
        graph["ratios"] = derive.ratios(graph["rows"])
        graph["limit"] = derive.limit(graph, result["copy_bytes_per_s"])
        result["graphs"].append(graph)
    result["first_batch"] = first_batches(fresh)
    path = write(result, args.out)
    plot(result, path.with_suffix(".png"))
    print("\n" + path.with_suffix(".md").read_text())
