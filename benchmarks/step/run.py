"""Training steps and inference on the CPU, with memory given back and with memory kept; and DGL.

Each contestant is a process, and all take turns, round by round, in one run. Those whose name ends
with "kept" keep memory that is freed: ours and PyG by `pyg_direct.keep_memory()`, DGL by glibc's
environment variables. DGL is in an environment of its own, as it needs an old torch.

    python -m benchmarks step --dgl /path/to/python  # its interpreter; left out, it is not measured
    python -m benchmarks step --cases SAGE --threads 2 --rounds 5  # others stay as they are
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import child, result
from benchmarks.step import roofline
from examples.support.synthetic import power_law_graph

TITLE = "Steps and inference on the CPU, against DGL"
FOLDER = Path(__file__).parent
KEPT = ", kept"
# What `keep_memory` sets, for a process that cannot call it.
VARIABLES = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str((1 << 63) - 1)}
NO_DGL = "DGL was not measured: no interpreter was given that has it (`--dgl`)."


class Case(NamedTuple):
    """What the contestants do in a turn."""

    kind: str  # of `ours.KINDS`
    heads: int = 0  # of GAT; 0 for GraphSAGE
    contestants: tuple[str, ...] = ("pyg_direct", "DGL", "PyG")
    bfloat16: bool = False
    warm_up: int = 4
    nodes: int = 200_000
    edges: int = 5_000_000
    node_types: int = 1  # each edge type joins two of them, or one with itself
    fanout: tuple[int, ...] = (15, 10, 5)
    memory_bytes: int | None = None  # of inference by pyg_direct


AGAINST_DGL = ("pyg_direct", "DGL")
CASES = {
    "SAGE": Case("training"),
    "GAT": Case("training", heads=4),
    "SAGE, 4 edge types": Case("training", node_types=2, fanout=(8, 5, 3)),
    "SAGE, 16 edge types": Case("training", node_types=4, fanout=(4, 2, 2)),
    "SAGE, bfloat16": Case("training", contestants=("pyg_direct", "PyG"), bfloat16=True),
    # PyG takes 20 seconds a turn, and 9 GB for GAT; `python -m benchmarks inference` measures it.
    "inference, SAGE": Case("inference", contestants=AGAINST_DGL, warm_up=1),
    "inference, GAT": Case("inference", heads=4, contestants=AGAINST_DGL, warm_up=1),
    "inference within 250 MB, SAGE": Case(
        "inference", contestants=AGAINST_DGL, warm_up=1, memory_bytes=250_000_000
    ),
    "two batches an epoch": Case("short epochs", contestants=("pyg_direct",)),
    "two batches an epoch, 62 M edges": Case(
        "short epochs", contestants=("pyg_direct",), nodes=2_400_000, edges=62_000_000
    ),
}
SIZES = {"batch_size": 1024, "hidden": 128}
QUICK_CASES = ["SAGE", "SAGE, 4 edge types", "inference, GAT"]
QUICK = {"fanout": [3, 2], "batch_size": 16, "hidden": 8}


def sizes_of(case: Case, quick: bool) -> dict[str, Any]:
    """Return the fields of a case and the sizes of its batches and layers."""
    return {**case._asdict(), **(QUICK if quick else SIZES)}


def commands(
    case: Case, threads: int, folder: Path, dgl: str | None, quick: bool
) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command and the environment of each contestant."""
    found = {}
    for name in case.contestants:
        if name == "DGL" and (dgl is None or threads > 1):  # its product crashes with two here
            continue
        for kept in (False, True):
            spec = {
                "contestant": name, "threads": threads, "keep_memory": kept,
                **sizes_of(case, quick),
            }  # fmt: skip
            environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
            if name == "DGL":
                command = [str(dgl), "-W", "ignore", str(FOLDER / "dgl_side.py")]
                environment |= {"PYTHONPATH": str(FOLDER), **(VARIABLES if kept else {})}
            else:
                command = [*child.PYTHON, "-m", "benchmarks.step.ours"]
            found[name + KEPT * kept] = ([*command, str(folder), json.dumps(spec)], environment)
    return found


@contextlib.contextmanager
def contestant(command: list[str], environment: dict[str, str], quick: bool) -> Iterator[Any]:
    """Start a contestant, and end it afterwards."""
    pipe = subprocess.PIPE
    process = child.start(command, quick, stdin=pipe, stdout=pipe, env=environment)
    try:
        yield process
    finally:
        child.end(process)


def answer(process: Any, name: str) -> str:
    """Return the next line of a contestant; libraries may print others before it."""
    for line in process.stdout:
        if line.startswith(("ready", "{")):
            return str(line)
    raise RuntimeError(f"The process of {name} has ended.")


def run_case(
    name: str, threads: int, rounds: int, folder: Path, dgl: str | None, quick: bool
) -> dict[str, Any]:
    """Measure all contestants of a case by turns."""
    samples: dict[str, list[dict[str, float]]] = {}
    with contextlib.ExitStack() as stack:
        processes = {}
        for who, (command, env) in commands(CASES[name], threads, folder, dgl, quick).items():
            processes[who] = stack.enter_context(contestant(command, env, quick))
            answer(processes[who], who)
        for turn in range(rounds):
            order = list(processes)
            for who in order[turn % len(order) :] + order[: turn % len(order)]:
                processes[who].stdin.write("go\n")
                processes[who].stdin.flush()
                samples.setdefault(who, []).append(json.loads(answer(processes[who], who)))
    rows = {
        who: {key: median(sample[key] for sample in found) for key in found[0]}
        | {"cpu_ms_samples": [sample["cpu_ms"] for sample in found]}
        for who, found in samples.items()
    }
    return {"case": name, "threads": threads, "rounds": rounds, "rows": rows}


def write_graph(folder: Path, case: Case, quick: bool) -> None:
    """Write the arrays of a graph, for interpreters of all kinds.

    Of T node types each has the nodes whose ids have one remainder modulo T.
    """
    nodes, edges = (300, 2000) if quick else (case.nodes, case.edges)
    data = power_law_graph(nodes, edges, 12 if quick else 100, 47)
    row, col = data.edge_index.numpy()
    count = case.node_types
    for t in range(count):
        for name in ("x", "y"):
            np.save(folder / f"{name}_{t}.npy", data[name].numpy()[t::count])
        for other in range(count):
            joins = (row % count == t) & (col % count == other)
            of_types = np.stack([row[joins] // count, col[joins] // count])
            np.save(folder / f"edge_index_{t}_{other}.npy", of_types)


def sections(found: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    lines = [
        "",
        "Medians of interleaved rounds, each contestant in a process of its own. *Kept*: memory "
        "that is freed stays with the process, by `pyg_direct.keep_memory()`, for DGL by glibc's "
        "environment variables. CPU time of the process, with what the system does for it; page "
        "faults of a turn; the peak is that of the whole process, with the graph; anonymous is the "
        "most memory of no file that the first turns had above what there was before. Training is "
        "a step with loading, of an accelerated model for pyg_direct; inference computes all "
        "nodes, DGL and PyG on the whole graph at once.",
    ]
    if not any("DGL" in case["rows"] for case in found["cases"]):
        lines += ["", NO_DGL]
    for case in found["cases"]:
        lines += ["", f"## {case['case']}, {case['threads']} threads, {case['rounds']} rounds", ""]
        if (commit := case.get("commit", found["commit"])) != found["commit"]:
            lines += [f"Measured before, at commit {commit}.", ""]
        head = ["", "CPU ms", "wall ms", "of it loading", "system ms", "page faults"]
        head += ["peak MB", "anonymous MB"]
        rows = []
        for who, row in case["rows"].items():
            loading = row.get("loading_cpu_ms")
            cells = [row["cpu_ms"], row["wall_ms"], loading, row["system_ms"], row["faults"]]
            texts = ["" if cell is None else result.number(cell) for cell in cells]
            for name in ("peak_bytes", "anonymous_bytes"):
                texts.append(result.number(row[name] / 1e6) if name in row else "")
            rows.append([who, *texts])
        lines += [*result.table(head, rows), *ratios(case["rows"])]
        if "roofline" in case:
            lines += ["", roofline.text(case["roofline"], case["rows"]["pyg_direct" + KEPT])]
    return lines


def ratios(rows: dict[str, Any]) -> list[str]:
    """Return a line about CPU times: DGL's and PyG's divided by ours, where they are there."""
    ours = rows["pyg_direct" + KEPT]["cpu_ms"]
    found = [f"without `keep_memory` {rows['pyg_direct']['cpu_ms'] / ours:.2f}"]
    for name in ("DGL", "DGL" + KEPT, "PyG", "PyG" + KEPT):
        if name in rows:
            found.append(f"{name} {rows[name]['cpu_ms'] / ours:.2f}")
    return ["", f"CPU time divided by that of pyg_direct{KEPT}: {'; '.join(found)}."]


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the results."""
    options = result.parser(__doc__)
    options.add_argument("--dgl", help="interpreter of an environment with DGL")
    options.add_argument("--cases", nargs="*", choices=CASES)
    options.add_argument("--threads", type=int, nargs="*", default=[1, 2])
    options.add_argument("--rounds", type=int, default=9)
    args = options.parse_args(argv)
    found = result.new_result("step", args.quick, cases=[])
    path = args.out / "step.json"
    if path.exists() and not args.quick:  # a case at a time, as each takes minutes
        found["cases"] = json.loads(path.read_text())["cases"]
    for name in args.cases or (QUICK_CASES if args.quick else CASES):
        with tempfile.TemporaryDirectory() as scratch:
            folder = Path(scratch)
            write_graph(folder, CASES[name], args.quick)
            for threads in [1] if args.quick else args.threads:
                rounds = 1 if args.quick else args.rounds
                case = run_case(name, threads, rounds, folder, args.dgl, args.quick)
                if name == "SAGE":
                    sizes = sizes_of(CASES[name], args.quick)
                    case["roofline"] = roofline.of(folder, sizes, threads)
                place = name, threads
                kept = [c for c in found["cases"] if (c["case"], c["threads"]) != place]
                order = list(CASES)
                kept.append({**case, "load": os.getloadavg()[0], "commit": found["commit"]})
                kept.sort(key=lambda c: (order.index(c["case"]), c["threads"]))
                found["cases"] = kept
                print(result.write(found, args.out), flush=True)


if __name__ == "__main__":
    main()
