"""How costs grow with the graph: nodes from 10 thousand to 100 million, mean degrees from 5 to 100.

Each graph is generated into files once. A process of its own opens it ("files"), another one holds
its tensors in memory ("memory") where these fit; both build a loader, load batches of 1,024 seeds
and compute all outputs of a GraphSAGE of two layers by `pyg_direct.inference`. Kernels are compiled
before. An ideal batch is one that only moves the bytes which a batch must touch, at the rate of a
copy in this machine's memory.

    python -m benchmarks scaling --folder /tmp    # needs 10 GB there
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from benchmarks import child, result
from benchmarks.inference import measured
from benchmarks.machine import copy_bandwidth
from benchmarks.statistics import growth
from pyg_direct import NeighborLoader
from pyg_direct.core.units import count_of
from pyg_direct.files.generate import PowerLaw, generate

TITLE = "How costs grow with the graph"
DEGREE = 15  # of all numbers of nodes
NODES = (10_000, 100_000, 1_000_000, 10_000_000, 100_000_000)
DEGREES = {5: (100_000, 1_000_000, 10_000_000), 100: (100_000, 1_000_000)}
WIDTH, CLASSES = 32, 8
FAN_OUT, BATCH_SIZE = [15, 10], 1024
BATCHES, QUICK_BATCHES = 100, 2
MOST_IN_MEMORY = 200_000_000  # edges: two ids of 8 bytes each, and the CSC beside them
MOST_INFERRED = 200_000_000  # edges
QUICK_CASES = ((300, 4500), (900, 13_500), (2000, 10_000))
SMALL = (2000, 20_000)
PLACES = ("memory", "files")
COPIED = 1 << 28  # bytes, to measure the rate of a copy
LINE = 64  # bytes that the processor fetches at least
FITTED = {
    "build_seconds": "seconds to build a loader",
    "batch_ms": "milliseconds a batch",
    "inference_seconds": "seconds of inference",
}
FAR = {"nodes": 10**9, "edges": 10**11}  # of the model, in parts on several machines


def cases() -> list[tuple[int, int]]:
    """Return the numbers of nodes and edges that are measured."""
    graphs = [(nodes, nodes * DEGREE) for nodes in NODES]
    return graphs + [(n, n * degree) for degree, sizes in DEGREES.items() for n in sizes]


def opened(path: str, place: str) -> Data:
    """Return a generated graph, from its files or with its tensors in memory."""
    data: Any = pyg_direct.open(path)
    if place == "files":
        return data
    return Data(x=data.x.clone(), edge_index=data.edge_index.clone(), num_nodes=data.num_nodes)


def run_child(spec: dict[str, Any]) -> None:
    """Measure one graph in one place, and print it; a small graph before it compiles kernels."""
    for name in ("small", "graph"):
        data = opened(spec[name], spec["place"])
        found = loaded(data, spec["batches"] if name == "graph" else 1)
        if spec["edges"] <= MOST_INFERRED:
            torch.manual_seed(0)
            model = GraphSAGE(WIDTH, WIDTH, len(FAN_OUT), CLASSES).eval()
            _, times = measured(partial(pyg_direct.inference, model, data))
            found |= {f"inference_{cost}": value for cost, value in times.items()}
    print(json.dumps(found))


def loaded(data: Data, batches: int) -> dict[str, float]:
    """Build a loader and load batches; return what these took and held."""
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(int(data.num_nodes or 0), (BATCH_SIZE * batches,), generator=generator)

    def build() -> NeighborLoader:
        return NeighborLoader(data, FAN_OUT, seeds, batch_size=BATCH_SIZE, seed=0)

    loader, built = measured(build)
    found = {f"build_{name}": value for name, value in built.items()}
    begin, cpu = time.perf_counter(), time.process_time()
    walls, cpus, nodes, edges = [], [], 0, 0
    for batch in loader:
        now, used = time.perf_counter(), time.process_time()
        walls.append(now - begin)
        cpus.append(used - cpu)
        nodes += int(batch.num_nodes or 0)
        edges += batch.edge_index.size(1)
        begin, cpu = time.perf_counter(), time.process_time()
    return {
        **found,
        "first_batch_ms": 1e3 * walls[0],
        "batch_ms": 1e3 * median(walls[1:] or walls),
        "batch_cpu_ms": 1e3 * median(cpus[1:] or cpus),
        "nodes_a_batch": nodes / len(walls),
        "edges_a_batch": edges / len(walls),
    }


def touched_bytes(nodes: float, edges: float) -> float:
    """Return the bytes that a batch must read and write, in whole lines of the processor's cache.

    A line of pointers a node, one of the neighbours an edge and those of the row a node are read;
    two ids of 8 bytes and an edge id are written an edge, and an id and the row a node.
    """
    row = 4 * WIDTH
    return nodes * (LINE + math.ceil(row / LINE) * LINE + 8 + row) + edges * (LINE + 3 * 8)


def of_degree(rows: Sequence[dict[str, Any]], place: str, cost: str) -> list[dict[str, Any]]:
    """Return the rows of the usual mean degree in a place that have a cost."""
    found = [r for r in rows if r["place"] == place and r["edges"] == DEGREE * r["nodes"]]
    return sorted((row for row in found if cost in row), key=lambda row: row["nodes"])


def plot(found: dict[str, Any], path: Path) -> None:
    """Draw the costs over the nodes, all logarithmic."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, 3, figsize=(12, 4))
    for axes, (cost, title) in zip(panels, FITTED.items(), strict=True):
        for place in PLACES:
            rows = of_degree(found["rows"], place, cost)
            axes.plot([r["nodes"] for r in rows], [r[cost] for r in rows], "o-", label=place)
            if cost == "batch_ms" and place == PLACES[-1]:
                ideal = [r["ideal_ms"] for r in rows]
                axes.plot([r["nodes"] for r in rows], ideal, "k--", label="bytes at the copy rate")
        axes.set(xscale="log", yscale="log", xlabel="nodes", title=title)
        axes.grid(True, which="both", alpha=0.3)
        axes.legend()
    result.save_plot(figure, path)


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    copy = max(found["copy_bytes_a_second"].values())
    lines = [
        "",
        f"{WIDTH} float32 features, batches of {BATCH_SIZE} seeds, fan-out {FAN_OUT}, GraphSAGE",
        f"of {len(FAN_OUT)} layers and {WIDTH} channels. `ideal` is the time of the bytes a batch",
        f"must touch at {copy / 1e9:.1f} GB/s, the rate of a copy here, read and written bytes",
        "together. `peak` is the largest resident memory of the process, pages of files included.",
        "",
    ]
    head = ["nodes", "edges", "in", "build: s", "bytes an edge", "first batch: ms", "batch: ms"]
    head += ["CPU: ms", "ideal: ms", "inference: µs a node", "peak: GB"]
    rows = [
        [
            f"{row['nodes']:,}", f"{row['edges']:,}", row["place"],
            *map(result.number, (
                row["build_seconds"], row["build_peak_bytes"] / row["edges"], row["first_batch_ms"],
                row["batch_ms"], row["batch_cpu_ms"], row["ideal_ms"],
            )),
            result.number(1e6 * row["inference_seconds"] / row["nodes"])
            if "inference_seconds" in row else "",
            f"{row['peak_bytes'] / 1e9:.2f}",
        ]
        for row in found["rows"]
    ]  # fmt: skip
    lines += [*result.table(head, rows), "", "## Growth", ""]
    lines += [f"How many times as much for ten times the nodes, mean degree {DEGREE}:", ""]
    rows = []
    for cost, title in FITTED.items():
        for place in PLACES:
            steps = pairwise(of_degree(found["rows"], place, cost))
            growths = [
                f"{growth((a['nodes'], b['nodes']), (a[cost], b[cost])):.1f} to {b['nodes']:,}"
                for a, b in steps
            ]
            rows.append([title, place, ", ".join(growths)])
    return [*lines, *result.table(["", "in", "times, to nodes"], rows), *_model(found["rows"])]


def _model(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return what the largest graph says of one that no machine here holds."""
    *_, largest = [{}, *of_degree(rows, "files", "batch_ms")]
    if not largest:
        return []
    nodes, edges = FAR.values()
    gigabytes = (nodes * (8 + 4 * WIDTH) + 4 * edges) / 1e9
    return [
        "",
        f"A model, not measured: {nodes:,} nodes and {edges:,} edges are {gigabytes:,.0f} GB in",
        f"parts, 4 bytes an edge. A batch over files of {largest['nodes']:,} nodes took",
        f"{largest['batch_ms'] / largest['ideal_ms']:.1f} times the ideal; its bytes do not depend",
        "on the number of nodes, but for fewer nodes that are drawn twice.",
    ]


def rows_of(
    case: tuple[int, int], folder: Path | None, quick: bool, copy_rate: float
) -> list[dict[str, Any]]:
    """Generate a graph, and measure it in each place, in processes of their own."""
    nodes, edges = case
    rows = []
    with tempfile.TemporaryDirectory(dir=folder) as name:
        paths = {"graph": f"{name}/graph", "small": f"{name}/small"}
        for path, size in zip(paths.values(), (case, SMALL), strict=True):
            generate(PowerLaw(*size, WIDTH, CLASSES, dtype="float32"), path)
        for place in PLACES:
            if place == "memory" and edges > MOST_IN_MEMORY:
                continue
            batches = QUICK_BATCHES if quick else BATCHES
            spec = {**paths, "place": place, "edges": edges, "batches": batches}
            command = [*child.PYTHON, "-m", "benchmarks.scaling", "--child", json.dumps(spec)]
            done = child.run(command, quick)
            row: dict[str, Any] = json.loads(done.output.splitlines()[-1])
            row |= {"nodes": nodes, "edges": edges, "place": place, "peak_bytes": done.peak_bytes}
            touched = touched_bytes(row["nodes_a_batch"], row["edges_a_batch"])
            rows.append({**row, "touched_bytes": touched, "ideal_ms": 1e3 * touched / copy_rate})
            print(
                f"{nodes:,} nodes, {edges:,} edges, {place}: {row['batch_ms']:.3g} ms", flush=True
            )
    return rows


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the result after each graph."""
    parser = result.parser(__doc__)
    parser.add_argument("--most-nodes", type=count_of, default=NODES[-1], help="of a graph")
    parser.add_argument("--folder", type=Path, help="for the files")
    args = child.arguments(parser, argv, run_child)
    if args is None:
        return
    found = result.new_result("scaling", args.quick, rows=[])
    found["copy_bytes_a_second"] = copy_bandwidth(1 << 20 if args.quick else COPIED)
    rate = max(found["copy_bytes_a_second"].values())
    for case in QUICK_CASES if args.quick else cases():
        if case[0] <= args.most_nodes:
            found["rows"] += rows_of(case, args.folder, args.quick, rate)
            path = result.write(found, args.out)
            plot(found, path.with_suffix(".png"))
    print(path)


if __name__ == "__main__":
    main()
