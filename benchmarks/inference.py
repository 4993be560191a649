"""Layer-wise inference of all nodes against PyG's ways, each in a process of its own.

Contestants: `pyg_direct.inference`; the model on the whole graph, as ``model(x, edge_index)``;
``BasicGNN.inference`` with PyG's loader; and batches of nodes with all their neighbours of all hops
from PyG's loader, of which a sample is measured and scaled to all nodes. Rounds are interleaved.

    python -m benchmarks inference --rounds 5
    python -m benchmarks inference --nodes 2400000 --edges 62000000 --rounds 1 \
        --ways pyg_direct.inference BasicGNN.inference  # of the others a batch is too large

`--large` runs ours alone on a graph of 10 million nodes and 150 million edges that lies in files,
in a control group of 6 GB where one can be made, else under a limit of the data segment
(RLIMIT_DATA: anonymous memory counts, maps of files do not). Then it kills such a run ten times,
and compares the file that is there in the end.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GAT, GraphSAGE

import pyg_direct
from benchmarks import child, result
from benchmarks.memory_group import limited
from examples.support.synthetic import power_law_graph

TITLE = "Inference of all nodes"
WAYS = ("pyg_direct.inference", "whole graph", "batches of nodes", "BasicGNN.inference")
OURS = WAYS[0]
REFERENCES = ("whole graph", "BasicGNN.inference")  # the first that is run has the right result
NODES, EDGES, QUICK_SHARE = 200_000, 5_000_000, 200
LAYERS, CHANNELS, CLASSES = 3, 128, 47
LAYER_BATCH, NODE_BATCH, NODE_BATCHES = 4096, 256, 1
LIMIT_BYTES = 6_000_000_000
PROGRAM = [*child.PYTHON, "-m", "benchmarks.inference"]
KILLS, QUICK_KILLS = 10, 1  # of a run over the graph in files


def model_of(name: str, width: int, channels: int = CHANNELS) -> torch.nn.Module:
    """Return a model with the same parameters in every process."""
    torch.manual_seed(0)
    cls, options = (GraphSAGE, {}) if name == "SAGE" else (GAT, {"heads": 4})
    return cls(width, channels, LAYERS, CLASSES, **options).eval()


def run_way(way: str, model: torch.nn.Module, data: Data) -> tuple[torch.Tensor | None, float]:
    """Run a contestant; return its result, and which part of the nodes it computed."""
    if way == OURS:
        return pyg_direct.inference(model, data), 1.0
    with torch.no_grad():
        if way == "whole graph":
            return model(data.x, data.edge_index), 1.0
        if way == "BasicGNN.inference":
            loader = NeighborLoader(data, [-1], batch_size=LAYER_BATCH)
            return model.inference(loader), 1.0
        seeds = torch.randperm(data.num_nodes)[: NODE_BATCH * NODE_BATCHES]
        loader = NeighborLoader(data, [-1] * LAYERS, seeds, batch_size=NODE_BATCH)
        for batch in loader:
            model(batch.x, batch.edge_index)
    return None, len(seeds) / data.num_nodes


class Peak:
    """Anonymous memory of this process: its largest value while the block runs, above the first."""

    def __enter__(self) -> Peak:
        self.first = self.largest = self._now()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.largest = max(self.largest, self._now())

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    @staticmethod
    def _now() -> int:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                return int(line.split()[1]) * 1024
        return 0


def measured(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    """Run `work`, and return its result with seconds, CPU seconds and peak memory."""
    with Peak() as peak:
        begin, cpu = time.perf_counter(), time.process_time()
        found = work()
        times = {
            "seconds": time.perf_counter() - begin,
            "cpu_seconds": time.process_time() - cpu,
        }
    return found, {**times, "peak_bytes": peak.largest - peak.first}


def contestant(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure one contestant in this process, after a small run that compiles what there is."""
    data = torch.load(spec["graph"], weights_only=False)
    model = model_of(spec["model"], data.x.size(1))
    small = Data(x=data.x[:64], edge_index=torch.randint(64, (2, 256)))
    run_way(spec["way"], model, small)
    (rows, part), record = measured(lambda: run_way(spec["way"], model, data))
    record["seconds"] /= part
    record["cpu_seconds"] /= part
    if rows is not None:
        np.save(spec["rows"], rows.numpy())
    return {**record, "part": part}


class Contest(NamedTuple):
    """Which contestants run on which graph, and how often."""

    model: str
    nodes: int
    edges: int
    ways: Sequence[str]
    rounds: int

    def run(
        self,
        graph: Path,
        measure: Callable[[dict[str, Any]], dict[str, Any]],
        note: Callable[[dict[str, Any]], None],
    ) -> None:
        """Measure all contestants; `note` is given what is known after each of them.

        Args:
            graph: file of the graph; the results go beside it.
            measure: measures one contestant.
            note: called with the dict that the result keeps.
        """
        reference = next((way for way in REFERENCES if way in self.ways), "")
        records: dict[str, list[dict[str, float]]] = {}
        for _ in range(self.rounds):
            for way in self.ways:
                rows = graph.parent / f"{way}.npy"
                spec = {"way": way, "model": self.model, "graph": str(graph), "rows": str(rows)}
                records.setdefault(way, []).append(measure(spec))
                ways = {}
                for done, found in records.items():
                    ways[done] = {key: median(r[key] for r in found) for key in found[0]}
                    ways[done]["all_seconds"] = [r["seconds"] for r in found]
                    files = (graph.parent / f"{name}.npy" for name in (done, reference))
                    ways[done]["off"] = _difference(*files)
                note({**self._asdict(), "reference": reference, "ways": ways})


def _difference(rows: Path, reference: Path) -> float | None:
    """Return the largest difference of two results, relative to the largest value."""
    if not rows.exists() or not reference.exists():
        return None
    full = np.load(reference)
    return float(np.abs(np.load(rows) - full).max() / np.abs(full).max())


def apart(spec: dict[str, Any]) -> dict[str, Any]:
    """Measure one contestant in a process of its own."""
    return _printed(child.run([*PROGRAM, "--child", json.dumps(spec)], quick=False))


def large_graph(folder: Path, nodes: int, degree: int, width: int) -> None:
    """Write features and edges, sorted by destination, to files."""
    rng = np.random.default_rng(0)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (nodes, width))
    edges = np.lib.format.open_memmap(folder / "edges.npy", "w+", np.int64, (2, nodes * degree))
    step = 100_000
    for first in range(0, nodes, step):
        last = min(first + step, nodes)
        x[first:last] = rng.standard_normal((last - first, width), np.float32)
        count = (last - first) * degree
        place = slice(first * degree, last * degree)
        edges[0, place] = (rng.random(count) ** 2 * nodes).astype(
            np.int64
        )  # some nodes are popular
        # Most lists are short: the square of a uniform draw crowds the first nodes of a step.
        edges[1, place] = np.sort(
            first + (rng.random(count) ** 2 * (last - first)).astype(np.int64)
        )


def large_child(spec: dict[str, Any]) -> None:
    """Run inference over a graph in files under a limit of anonymous memory."""
    folder = Path(spec["folder"])
    data = Data(
        x=torch.from_numpy(np.load(folder / "x.npy", mmap_mode="r+")),
        edge_index=torch.from_numpy(np.load(folder / "edges.npy", mmap_mode="r+")),
    )
    torch.manual_seed(0)
    model = GraphSAGE(data.x.size(1), 64, LAYERS, 32).eval()
    small = Data(x=torch.rand(64, data.x.size(1)), edge_index=torch.randint(64, (2, 256)))
    pyg_direct.inference(model, small)
    _, record = measured(
        lambda: pyg_direct.inference(
            model, data, out=folder / spec["out"], memory_bytes=spec["memory_bytes"], resume=True
        )
    )
    print(json.dumps(record))


def _printed(done: child.Finished) -> dict[str, Any]:
    """Return what this program, run as a child, has printed in the end."""
    found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return found


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    lines = [
        "Each way in a process of its own, rounds interleaved, medians. `peak` is anonymous",
        "memory above what the graph and the model take. Batches of nodes are a sample, scaled to",
        "all nodes. `off` is the largest difference from the whole graph's result (where that is",
        "too large for memory, from that of BasicGNN.inference), in parts of the largest value.",
        "Parts are run one by one, on the commit that each names.",
        "",
    ]
    for contest_ in found["contests"]:
        ours = contest_["ways"][OURS]
        lines += [
            f"## {contest_['model']}, {contest_['nodes']:,} nodes, {contest_['edges']:,} edges",
            "",
            f"Rounds: {contest_['rounds']}. Commit {contest_['commit']}.",
            "",
            "| | seconds | times ours | CPU seconds | times ours | peak | off |",
            "|---|---|---|---|---|---|---|",
        ]
        for way, r in contest_["ways"].items():
            off = "" if r["off"] is None else f"{r['off']:.1e}"
            lines.append(
                f"| {way} | {r['seconds']:,.1f} | {r['seconds'] / ours['seconds']:,.1f} | "
                f"{r['cpu_seconds']:,.1f} | "
                f"{r['cpu_seconds'] / ours['cpu_seconds']:,.1f} | {r['peak_bytes'] / 1e6:,.0f} MB "
                f"| {off} |"
            )
        lines.append("")
    large = found.get("large")
    if large:
        lines += [
            f"## {large['nodes']:,} nodes, {large['edges']:,} edges in files",
            "",
            f"Three layers of GraphSAGE, 64 channels; at most {LIMIT_BYTES / 1e9:.0f} GB by "
            f"{large.get('limit', 'RLIMIT_DATA')}, memory_bytes={large['memory_bytes']:,}: "
            f"{large['seconds']:,.0f} s, {large['cpu_seconds']:,.0f} CPU seconds, "
            f"{large['peak_bytes'] / 1e6:,.0f} MB of anonymous memory at the peak. "
            f"Commit {large['commit']}.",
            "",
        ]
        if "kills" in large:
            end = "the same file" if large["same"] else "another file"
            lines += [f"Killed {large['kills']} times and run again: {end}.", ""]
    return lines


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--large-child", help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--models", nargs="+", default=["SAGE", "GAT"])
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--edges", type=int, default=EDGES)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="contestants")
    parser.add_argument("--large", action="store_true", help="only the graph in files")
    arguments = parser.parse_args(argv)
    if arguments.child:
        print(json.dumps(contestant(json.loads(arguments.child))))
        return
    if arguments.large_child:
        large_child(json.loads(arguments.large_child))
        return
    found = result.new_result("inference", arguments.quick, contests=[])
    stored = arguments.out / "inference.json"
    if stored.exists() and not arguments.quick:  # the parts are run one by one
        old = json.loads(stored.read_text())
        found["contests"], found["large"] = old["contests"], old.get("large")
    os.environ["PYG_DIRECT_DEVICE"] = "cpu"
    with tempfile.TemporaryDirectory() as name:
        if arguments.large or arguments.quick:
            found["large"] = run_large(Path(name), arguments.quick, found["commit"])
        if not arguments.large:
            run_contests(Path(name), arguments, found)
    result.write(found, arguments.out)


def run_large(folder: Path, quick: bool, commit: str | None) -> dict[str, Any]:
    """Run ours on the graph in files, and return what the result keeps of it."""
    nodes, degree = (10_000, 5) if quick else (10_000_000, 15)
    large_graph(folder, nodes, degree, 64)
    memory_bytes = 3_000_000_000
    spec = {"folder": str(folder), "memory_bytes": memory_bytes, "out": "out.npy"}
    command = [*PROGRAM, "--large-child", json.dumps(spec)]
    with limited(LIMIT_BYTES) as limit:
        record = _printed(child.run(command, quick, enter=limit.enter))
        record |= killed(folder, spec, record["seconds"] / LAYERS, limit.enter, quick)
    size = {"nodes": nodes, "edges": nodes * degree}
    return {**size, "memory_bytes": memory_bytes, "limit": limit.how, "commit": commit, **record}


def killed(
    folder: Path,
    spec: dict[str, Any],
    layer_seconds: float,
    enter: Callable[[int], None],
    quick: bool,
) -> dict[str, Any]:
    """Kill runs that go on with each other's work, each further on; compare what they have made."""
    command = [*PROGRAM, "--large-child", json.dumps({**spec, "out": "resumed.npy"})]
    kills, wanted = 0, QUICK_KILLS if quick else KILLS
    partial = folder / "resumed.npy.partial"
    for kill in range(wanted):
        process = child.start(command, quick, stdout=subprocess.DEVNULL, enter=enter)
        layers, within = divmod(kill * LAYERS / wanted, 1)
        while process.poll() is None and not _has_begun(partial, int(layers)):
            time.sleep(0.002)
        time.sleep(0 if quick else within * layer_seconds)
        process.kill()
        kills += process.wait() == -signal.SIGKILL
    child.run(command, quick, enter=enter)
    same = filecmp.cmp(folder / "out.npy", folder / "resumed.npy", shallow=False)
    return {"kills": kills, "same": same}


def _has_begun(partial: Path, layers: int) -> bool:
    """Whether the runs so far have finished some layers, and have begun the next one."""
    return len(list(partial.glob("*.npy"))) > layers


def run_contests(folder: Path, arguments: argparse.Namespace, found: dict[str, Any]) -> None:
    """Run the contestants on each model; writes `found` after each of them."""
    share, rounds, measure = 1, arguments.rounds, apart
    if arguments.quick:  # a process for each takes longer than what it measures
        share, rounds, measure = QUICK_SHARE, 1, contestant
    data = power_law_graph(arguments.nodes // share, arguments.edges // share, num_features=128)
    data = Data(x=data.x, edge_index=data.edge_index)
    torch.save(data, folder / "graph.pt")
    size = data.num_nodes, data.num_edges
    del data  # the children have it; together they may not fit
    for model in arguments.models:
        contest = Contest(model, *size, arguments.ways, rounds)
        others = [c for c in found["contests"] if (c["model"], c["nodes"]) != (model, size[0])]

        def note(known: dict[str, Any], others: list[dict[str, Any]] = others) -> None:
            known["commit"] = found["commit"]
            found["contests"] = sorted([*others, known], key=itemgetter("nodes"))
            result.write(found, arguments.out)

        contest.run(folder / "graph.pt", measure, note)


if __name__ == "__main__":
    main()
