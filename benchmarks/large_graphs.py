"""Graphs of growing size: generated, converted from raw files, opened, sampled and trained on.

Every step is a process of its own, whose time and largest memory are noted; the conversion runs in
a control group of `--memory` bytes where one can be made. The raw edges are in no order, the raw
features are int8. Files of a step are removed when the next one does not need them; the graphs that
fit into memory together are kept to the end, when their batches are loaded in turn.

    python -m benchmarks large_graphs --nodes 1M 11M --folder /tmp
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from benchmarks import batch_costs, child, result
from benchmarks.batch_costs import BATCH_SIZE, BATCHES, FAN_OUT, REPEATS
from benchmarks.inference import measured
from benchmarks.memory_group import limited
from pyg_direct import NeighborLoader
from pyg_direct.core.units import count_of
from pyg_direct.files.generate import PowerLaw, generate

TITLE = "Graphs bigger than memory"
DEGREE, WIDTH, CLASSES = 14.4, 128, 16
SHUFFLED = 64  # blocks of edges that are mixed with each other
BLOCK_EDGES = 1 << 16
PLAIN_TABLE_BYTES = 2 << 30  # of the table of the plain gather, at most
ROWS = 300_000  # that it copies
SIZES = (1_000_000, 11_000_000, 111_000_000)  # nodes
QUICK_SIZES, QUICK_BATCHES = (2000, 5000), 2  # the last is converted without a limit
STEPS = ("generate", "raw", "convert", "use")
FILES = ("edge_index", "x", "y", "train_mask")


def write_raw(graph: Path, folder: Path) -> None:
    """Write a generated graph as ``.npy`` files, its edges in random order."""
    data: Any = pyg_direct.open(graph)
    folder.mkdir()
    for name in FILES[1:]:
        value = data[name].stored if name == "x" else data[name]
        with _new_array(folder / f"{name}.npy", value.numpy().dtype, tuple(value.shape)) as file:
            for rows in value.split(1 << 18):
                file.write(rows.numpy().data)
    csc = data.edge_index.graph.csc
    num_edges = int(csc.edge_base[-1])
    blocks = np.random.default_rng(0).permutation(-(-num_edges // BLOCK_EDGES))
    with _new_array(folder / "edge_index.npy", np.dtype(np.int32), (2, num_edges)) as file:
        for end in (0, 1):
            rng = np.random.default_rng(1)  # the same orders for both ends
            for first in range(0, len(blocks), SHUFFLED):
                parts = [_block(csc, int(b), end) for b in blocks[first : first + SHUFFLED]]
                file.write(rng.permutation(np.concatenate(parts)).data)


def _block(csc: Any, block: int, end: int) -> Any:
    """Return the sources (0) or destinations (1) of a block of edges."""
    first = block * BLOCK_EDGES
    last = min(first + BLOCK_EDGES, len(csc.indices))
    if end == 0:
        return np.asarray(csc.indices[first:last])
    ends = np.array([first, last], csc.indptr.dtype)  # of another dtype, NumPy copies all pointers
    low = int(np.searchsorted(csc.indptr, ends[0], "right")) - 1
    high = int(np.searchsorted(csc.indptr, ends[1], "left"))
    counts = np.diff(np.clip(csc.indptr[low : high + 1], first, last))
    return np.repeat(np.arange(low, high, dtype=np.int32), counts)


def _new_array(path: Path, dtype: np.dtype[Any], shape: tuple[int, ...]) -> BinaryIO:
    file = open(path, "wb")  # noqa: SIM115 - the caller closes it
    description = {"descr": dtype.str, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, description)
    return file


def use(graph: Path, batches: int, train_seconds: float) -> dict[str, Any]:
    """Open a graph, sample and gather batches several times, and train for a while."""
    compile_kernels()
    begin = time.perf_counter()
    data: Any = pyg_direct.open(graph)
    found: dict[str, Any] = {"open_seconds": time.perf_counter() - begin, "batch_size": BATCH_SIZE}
    found |= batch_costs.first_and_again(data, batches)
    table_bytes = data.num_nodes * WIDTH
    found["plain_ns_a_row"] = plain_gather(min(table_bytes, PLAIN_TABLE_BYTES) // WIDTH)
    found["training"], times = measured(lambda: train(data, train_seconds))
    found["training"]["anonymous_bytes"] = times["peak_bytes"]
    return found


def compile_kernels() -> None:
    """Load from a small graph, which compiles kernels, or reads them from the cache."""
    small = Data(x=torch.zeros(9, WIDTH), edge_index=torch.randint(9, (2, 20)))
    list(NeighborLoader(small, FAN_OUT))


def plain_gather(num_rows: int) -> float:
    """Return nanoseconds a row that NumPy takes to copy random rows of bytes within memory."""
    rng = np.random.default_rng(0)
    table = np.ones((num_rows, WIDTH), np.int8)
    ids = rng.integers(num_rows, size=ROWS)
    out = np.empty((ROWS, WIDTH), np.int8)
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        np.take(table, ids, axis=0, out=out, mode="clip")
        times.append(time.perf_counter() - begin)
    return 1e9 * min(times) / ROWS


def train(data: Any, seconds: float) -> dict[str, Any]:
    """Train a GraphSAGE for some time, and test it on nodes that were not trained on."""
    torch.manual_seed(0)
    model = GraphSAGE(WIDTH, 128, len(FAN_OUT), CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    trained = data.train_mask.nonzero().view(-1)
    loader = NeighborLoader(
        data, FAN_OUT, trained, batch_size=BATCH_SIZE, shuffle=True, num_workers=1, seed=0
    )
    batches, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < seconds:
        for batch in loader:
            optimizer.zero_grad()
            loss = cross_entropy(*_outputs(model, batch))
            loss.backward()
            optimizer.step()
            batches += 1
            if time.perf_counter() - begin >= seconds:
                break
    rate = batches / (time.perf_counter() - begin)
    others = torch.randint(data.num_nodes, (4 * BATCH_SIZE,)).unique()
    others = others[~data.train_mask[others]]
    right = 0
    with torch.no_grad():
        for batch in NeighborLoader(data, FAN_OUT, others, batch_size=BATCH_SIZE, seed=0):
            scores, labels = _outputs(model, batch)
            right += int((scores.argmax(1) == labels).sum())
    return {"batches": batches, "batches_a_second": rate, "accuracy": right / len(others)}


def _outputs(model: Any, batch: Any) -> tuple[Any, Any]:
    x = batch.x.float() / 32
    return model(x, batch.edge_index)[: batch.batch_size], batch.y[: batch.batch_size]


def run_step(name: str, spec: dict[str, Any]) -> dict[str, Any]:
    """Do one step in this process; return what it found."""
    folder = Path(spec["folder"])
    found: dict[str, Any] = {}
    if name == "in_turn":
        compile_kernels()
        found["sizes"] = batch_costs.in_turn(spec["graphs"], spec["batches"], spec["rounds"])
    elif name == "generate":
        size = {"num_nodes": spec["nodes"], "num_edges": spec["edges"]}
        generate(PowerLaw(**size, num_features=WIDTH, num_classes=CLASSES), folder / "generated")
    elif name == "raw":
        write_raw(folder / "generated", folder / "raw")
    elif name == "convert":
        from pyg_direct.tools.convert import main as convert

        raw = folder / "raw"
        nodes = [part for n in FILES[1:] for part in ("--node", f"{n}={raw / n}.npy")]
        memory = ["--memory", str(spec["memory_bytes"])]
        convert([str(folder / "graph"), "--edges", f"{raw / 'edge_index'}.npy", *nodes, *memory])
        sizes = [path.stat().st_size for path in (folder / "graph").iterdir()]
        found = {"result_bytes": sum(sizes)}
    else:
        found = use(folder / "graph", spec["batches"], spec["train_seconds"])
    return found


def call(name: str, spec: dict[str, Any], enter: Callable[[int], None] | None) -> dict[str, Any]:
    """Do one step in a process of its own; return what it found, its time and its memory.

    A quick run starts none but for what is limited, as that takes longer than the step.
    """
    if spec["quick"] and enter is None:
        return {**run_step(name, spec), "seconds": 0.0, "cpu_seconds": 0.0, "peak_bytes": 0}
    arguments = ["--step", name, "--spec", json.dumps(spec)]
    command = [*child.PYTHON, "-m", "benchmarks.large_graphs", *arguments]
    begin = time.perf_counter()
    done = child.run(command, spec["quick"], keep_errors=False, enter=enter)
    found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return {
        **found,
        "seconds": time.perf_counter() - begin,
        "cpu_seconds": done.cpu_seconds,
        "peak_bytes": done.peak_bytes,
    }


def size_of(nodes: int, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Do all steps at one size."""
    spec = {
        "folder": str(folder),
        "nodes": nodes,
        "edges": round(nodes * DEGREE),
        "memory_bytes": args.memory,
        "batches": QUICK_BATCHES if args.quick else BATCHES,
        "train_seconds": 0.1 if args.quick else args.train_seconds,
        "quick": args.quick,
    }
    found: dict[str, Any] = {
        "nodes": nodes,
        "edges": spec["edges"],
        "memory_bytes": args.memory,
        "load": os.getloadavg()[0],
    }
    for name in STEPS:
        if name == "convert" and not (args.quick and nodes == QUICK_SIZES[-1]):
            with limited(args.memory) as limit:
                found[name] = {**call(name, spec, limit.enter), "limit": limit.how}
        else:
            found[name] = {**call(name, spec, None), "limit": "not limited"}
        used = {"raw": "generated", "convert": "raw"}.get(name)
        if used is not None:
            shutil.rmtree(folder / used)
        print(f"{nodes:,} nodes, {name}: {found[name]}", flush=True)
    return found


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw the costs over the size, both logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    nodes = [size["nodes"] for size in found["sizes"]]
    figure, axes = plt.subplots(figsize=(7, 5))
    for name, label in (("ns_a_row", "gathered row"), ("ns_an_edge", "sampled edge")):
        for run, style in (("again", "o-"), ("first", "o:")):
            values = [size["use"][run][name] for size in found["sizes"]]
            where = "used before" if run == "again" else "first use"
            axes.plot(nodes, values, style, label=f"{label}, {where}")
    plain = [size["use"]["plain_ns_a_row"] for size in found["sizes"]]
    axes.plot(nodes, plain, "k--", label="copy of a random row in memory (NumPy)")
    axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="nanoseconds")
    axes.grid(True, which="both", alpha=0.3)
    axes.legend()
    result.save_plot(figure, path)


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    statistic = " or ".join(sorted({size["use"]["statistic"] for size in found["sizes"]}))
    lines = [
        "",
        f"Mean degree {DEGREE}, {WIDTH} int8 features. Batches of {BATCH_SIZE} seeds, fan-out",
        f"{FAN_OUT}. The raw edges are int32 in random order. `peak` is the largest resident",
        "memory of the process, `limit` what the conversion was given and could not exceed. Costs",
        f"of pages used before are the {statistic} of {REPEATS} repetitions; the pages may be gone",
        "again where the files are larger than what is free of memory.",
        *_measured_before(found),
        "",
        "## Steps",
        "",
    ]
    head = ["nodes", "edges", "step", "seconds", "CPU seconds", "peak", "limit"]
    rows = [
        [
            f"{size['nodes']:,}", f"{size['edges']:,}", name, f"{size[name]['seconds']:,.0f}",
            f"{size[name]['cpu_seconds']:,.0f}", f"{size[name]['peak_bytes'] / 1e9:.2f} GB",
            f"{size['memory_bytes'] / 1e9:g} GB, {size['convert']['limit']}" * (name == "convert"),
        ]
        for size in found["sizes"] for name in ("generate", "convert")
    ]  # fmt: skip
    lines += [*result.table(head, rows), "", "## Batches", ""]
    head = ["nodes", "opened in", "loader in", "pages", "nodes a batch", "edges a batch"]
    head += ["ns a row", "ns an edge", "plain copy: ns a row", "anonymous memory"]
    rows = [
        [
            f"{size['nodes']:,}", f"{1e3 * size['use']['open_seconds']:.1f} ms",
            f"{1e3 * size['use']['construction_seconds']:.1f} ms",
            "used before" if run == "again" else "first use",
            f"{size['use'][run]['nodes']:,.0f}", f"{size['use'][run]['edges']:,.0f}",
            result.number(size["use"][run]["ns_a_row"]),
            result.number(size["use"][run]["ns_an_edge"]),
            result.number(size["use"]["plain_ns_a_row"]),
            f"{size['use'][run]['anonymous_bytes'] / 1e6:,.0f} MB",
        ]
        for size in found["sizes"] for run in ("first", "again")
    ]  # fmt: skip
    lines += result.table(head, rows)
    if found["in_turn"] is not None:
        lines += batch_costs.sections(found["in_turn"]["sizes"])
    lines += ["", "## Training", ""]
    head = ["nodes", "batches", "batches a second", "accuracy", "anonymous memory"]
    rows = [
        [
            f"{size['nodes']:,}", f"{training['batches']:,}",
            result.number(training["batches_a_second"]), f"{training['accuracy']:.3f}",
            f"{training['anonymous_bytes'] / 1e6:,.0f} MB",
        ]
        for size in found["sizes"] for training in [size["use"]["training"]]
    ]  # fmt: skip
    return [*lines, *result.table(head, rows)]


def _where(found: dict[str, Any]) -> list[str]:
    """Return the processor and the commit of a result."""
    return [found["machine"]["cpu_model"], found["commit"]]


def _sizes_of(stored: dict[str, Any]) -> dict[str, Any]:
    """Return the sizes of an earlier result, each with where it was measured."""
    sizes = [{"measured": _where(stored), **size} for size in stored["sizes"]]
    return {"sizes": sizes, "in_turn": stored.get("in_turn")}


def _measured_before(found: dict[str, Any]) -> list[str]:
    """Return lines about the parts that are from another machine or commit."""
    parts = [(f"{size['nodes']:,} nodes", size["measured"]) for size in found["sizes"]]
    if found["in_turn"] is not None:
        parts.append(("Sizes in turn", found["in_turn"]["measured"]))
    return [
        f"{part}: measured in another run, on {where[0]}, commit {where[1]}."
        for part, where in parts
        if where != _where(found)
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark; sizes that were measured before are kept."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, nargs="+", default=SIZES)
    parser.add_argument("--memory", type=count_of, default="6G", help="of the conversion")
    parser.add_argument("--train-seconds", type=float, default=60.0)
    parser.add_argument("--folder", type=Path, help="for the files, 52 GB at 111M nodes")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--spec", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    os.environ["PYG_DIRECT_DEVICE"] = "cpu"
    if args.step:
        print(json.dumps(run_step(args.step, json.loads(args.spec))))
        return
    found = result.new_result("large_graphs", args.quick, sizes=[], in_turn=None)
    stored = args.out / "large_graphs.json"
    if stored.exists() and not args.quick:
        found |= _sizes_of(json.loads(stored.read_text()))
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        graphs: list[Path] = []
        for nodes in sorted(QUICK_SIZES if args.quick else args.nodes):
            folder = Path(name) / str(nodes)
            folder.mkdir()
            size = {**size_of(nodes, folder, args), "measured": _where(found)}
            others = [other for other in found["sizes"] if other["nodes"] != nodes]
            found["sizes"] = sorted([*others, size], key=lambda size: size["nodes"])
            plot(found, result.write(found, args.out).with_suffix(".png"))
            if batch_costs.fit_in_memory([*graphs, folder / "graph"]):
                graphs.append(folder / "graph")
            else:
                shutil.rmtree(folder)
        if len(graphs) > 1:
            spec = {
                "folder": name, "graphs": list(map(str, graphs)), "quick": args.quick,
                "batches": QUICK_BATCHES if args.quick else BATCHES,
                "rounds": 2 if args.quick else batch_costs.ROUNDS,
            }  # fmt: skip
            found["in_turn"] = {**call("in_turn", spec, None), "measured": _where(found)}
            print(result.write(found, args.out))


if __name__ == "__main__":
    main()
