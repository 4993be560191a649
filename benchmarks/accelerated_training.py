"""What `pyg_direct.accelerate` makes of the time to train, and of the accuracy.

One process measures in turn, round by round: the time until PyG's loader and until ours gives a
batch, and the time of a step (forward, backward, optimizer) on the same batch of the plain model,
of the model trimmed by PyG (`trim_to_layer`) and of the accelerated one. "PyG as users write it" is
PyG's loader and the plain step, and so on. Writes `results/accelerated_training.json` and `.md`.

    python -m benchmarks.accelerated_training --root FOLDER  # holds amazon/ and citation_full/
"""

# Annotations are not postponed here: torch 2.4's fx cannot write those of a model that
# `to_hetero` gets.

import copy
import json
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
import torch_geometric.loader
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GAT, GCN, GIN, GraphSAGE, SAGEConv, to_hetero

import pyg_direct
from benchmarks.result import new_result, parser, write
from benchmarks.statistics import compare
from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph, random_split

TITLE = "Training steps of accelerated models"
MODELS = {"GraphSAGE": GraphSAGE, "GCN": GCN, "GIN": GIN, "GAT": GAT}
CLASSES = 47
REAL = ("amazon_photo", "dblp_citation")
PARTS = ("generated", "real", "accuracy")
PARTS_HELP = "others stay as they are, as each takes minutes"
WAYS = ("PyG", "PyG trimmed", "ours, plain", "ours, accelerated")


class HeteroSage(nn.Module):
    """What `to_hetero` makes heterogeneous."""

    def __init__(self, hidden: int, out: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            [SAGEConv((-1, -1), hidden), SAGEConv((-1, -1), hidden), SAGEConv((-1, -1), out)]
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        for conv in self.convs[:-1]:
            x = conv(x, edge_index).relu()
        out: Tensor = self.convs[-1](x, edge_index)
        return out


def two_types(data: Data) -> HeteroData:
    """Return the graph with its even and its odd nodes as two types, and four edge types."""
    hetero, names = HeteroData(), ("even", "odd")
    row, col = data.edge_index
    for i, name in enumerate(names):
        hetero[name].x, hetero[name].y = data.x[i::2].contiguous(), data.y[i::2].contiguous()
    for i, source in enumerate(names):
        for j, destination in enumerate(names):
            mask = (row % 2 == i) & (col % 2 == j)
            hetero[source, "to", destination].edge_index = torch.stack(
                [row[mask] // 2, col[mask] // 2]
            )
    return hetero


class Steps:
    """The ways to make one training step on a batch."""

    def __init__(self, name: str, data: Any, hidden: int, layers: int, loader: Any) -> None:
        torch.manual_seed(0)
        self.typed = isinstance(data, HeteroData)
        classes = int((data["even"] if self.typed else data).y.max()) + 1
        if self.typed:
            model = to_hetero(HeteroSage(hidden, classes), data.metadata())
            batch = next(iter(loader))
            with torch.no_grad():
                model(batch.x_dict, batch.edge_index_dict)  # gives the parameters their sizes
        else:
            model = MODELS[name](data.num_features, hidden, layers, classes)
        twins = [model, copy.deepcopy(model), copy.deepcopy(model)]
        self.models = dict(zip(("plain", "trimmed", "accelerated"), twins, strict=True))
        self.models["accelerated"] = pyg_direct.accelerate(twins[2], loader)
        self.optimizers = {k: torch.optim.Adam(m.parameters()) for k, m in self.models.items()}

    def run(self, kind: str, batch: Any) -> Tensor:
        """Make a step, and return the seeds' outputs."""
        model, optimizer = self.models[kind], self.optimizers[kind]
        optimizer.zero_grad()
        if self.typed:
            edges = batch.edge_index_dict
            if kind != "accelerated":
                edges = {key: edge_index.as_tensor() for key, edge_index in edges.items()}
            seeds = batch["even"]
            out = model(batch.x_dict, edges)["even"][: seeds.batch_size]
            y = seeds.y[: seeds.batch_size]
        else:
            edges, options = batch.edge_index, {}
            if kind != "accelerated":
                edges = edges.as_tensor()
            if kind == "trimmed":
                options["num_sampled_nodes_per_hop"] = batch.num_sampled_nodes
                options["num_sampled_edges_per_hop"] = batch.num_sampled_edges
            out = model(batch.x, edges, **options)[: batch.batch_size]
            y = batch.y[: batch.batch_size]
        F.cross_entropy(out, y).backward()
        optimizer.step()
        return out.detach()


def timed(function: Callable[[], Any]) -> tuple[Any, float, float]:
    """Return (result, wall seconds, CPU seconds of the process)."""
    wall, cpu = time.perf_counter(), time.process_time()
    result = function()
    return result, time.perf_counter() - wall, time.process_time() - cpu


def measure(
    graph: str, name: str, data: Any, fanout: list[int], batch_size: int, rounds: int, hidden: int
) -> dict[str, Any]:
    """Measure one model on one graph."""
    options = {"batch_size": batch_size, "shuffle": True}
    if isinstance(data, HeteroData):
        options["input_nodes"] = "even"
    ours = pyg_direct.NeighborLoader(data, fanout, seed=0, **options)
    theirs = torch_geometric.loader.NeighborLoader(data, fanout, **options)
    steps = Steps(name, data, hidden, len(fanout), ours)
    kinds = [k for k in steps.models if not (k == "trimmed" and steps.typed)]
    samples: dict[str, list[tuple[float, float]]] = defaultdict(list)
    difference = 0.0
    batches, others = iter(ours), iter(theirs)
    for turn in range(-1, rounds):  # the first round is not counted
        batch, *load = timed(lambda: next(batches))
        _, *other_load = timed(lambda: next(others))
        order = kinds[turn % len(kinds) :] + kinds[: turn % len(kinds)]
        found, outputs = {}, {}
        for kind in order:
            outputs[kind], *found[kind] = timed(partial(steps.run, kind, batch))
        if turn < 0:  # afterwards the parameters differ by rounding, which training amplifies
            difference = float((outputs["plain"] - outputs["accelerated"]).abs().max())
            continue
        ways = {
            "PyG": (other_load, "plain"),
            "PyG trimmed": (other_load, "trimmed"),
            "ours, plain": (load, "plain"),
            "ours, accelerated": (load, "accelerated"),
        }
        for way, (loading, kind) in ways.items():
            if kind in found:
                samples[way].append((loading[0] + found[kind][0], loading[1] + found[kind][1]))
    row: dict[str, Any] = {
        "graph": graph,
        "model": name,
        "rounds": rounds,
        "batch_size": batch_size,
        "fanout": fanout,
        "hidden": hidden,
        "difference": difference,
    }
    row["forms"] = sorted(set(steps.models["accelerated"].acceleration.forms().values()))
    for way, values in samples.items():
        row[way] = {
            "wall_ms": 1e3 * float(np.median([v[0] for v in values])),
            "cpu_ms": 1e3 * float(np.median([v[1] for v in values])),
            "wall_ms_samples": [1e3 * v[0] for v in values],
            "cpu_ms_samples": [1e3 * v[1] for v in values],
        }
    print(text_row(row), flush=True)
    return row


def text_row(row: dict[str, Any]) -> str:
    """Return a row of the table."""
    ours = row["ours, accelerated"]
    cells = [row["graph"], row["model"], ", ".join(row["forms"])]
    for way in WAYS:
        cells.append(f"{row[way]['wall_ms']:.0f} ({row[way]['cpu_ms']:.0f})" if way in row else "-")
    for way in WAYS[:2]:
        if way not in row:
            cells.append("-")
            continue
        each = zip(row[way]["wall_ms_samples"], ours["wall_ms_samples"], strict=True)
        wall = float(np.median([other / own for other, own in each]))
        cells.append(f"{wall:.1f} ({row[way]['cpu_ms'] / ours['cpu_ms']:.1f})")
    return "| " + " | ".join([*cells, f"{row['difference']:.0e}"]) + " |"


def accuracy(root: Path | None, seeds: int, epochs: int) -> dict[str, Any]:
    """Train GraphSAGE plain and accelerated on amazon_photo, and compare on the test nodes."""
    scores: dict[str, list[float]] = {"plain": [], "accelerated": []}
    for seed in range(seeds):
        for kind in scores:
            torch.manual_seed(seed)
            data = random_split(load_dataset("amazon_photo", root), 0.1, 0.1, 0)
            loader = pyg_direct.NeighborLoader(
                data, [10, 10], data.train_mask, batch_size=128, shuffle=True, seed=seed
            )
            model: Any = GraphSAGE(data.num_features, 64, 2, int(data.y.max()) + 1, dropout=0.5)
            plain = model
            if kind == "accelerated":
                model = pyg_direct.accelerate(model, loader)
            optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
            for _ in range(epochs):
                for batch in loader:
                    optimizer.zero_grad()
                    out = model(batch.x, batch.edge_index)[: batch.batch_size]
                    F.cross_entropy(out, batch.y[: batch.batch_size]).backward()
                    optimizer.step()
            plain.eval()
            with torch.no_grad():
                guess = plain(data.x, data.edge_index).argmax(dim=-1)
            hits = (guess == data.y)[data.test_mask]
            scores[kind].append(float(hits.float().mean()))
    return {"dataset": "amazon_photo", "scores": scores, **compare(scores, "accelerated", "plain")}


def sections(result: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    lines = [
        "",
        "Median milliseconds a batch (loading, forward, backward, optimizer): wall time, in "
        "brackets CPU time of the process. All in one process, one after the other on the same "
        f"batches, {result['threads']} threads. Ratios of wall times are medians over the "
        "rounds. Where other programs ran (see the load), wall times are long and uneven, and "
        "ratios and CPU times tell more. PyG's sampler gives no counts by hop "
        "without pyg-lib, so *PyG trimmed* is PyG's loading time and the trimmed step on our "
        "batch. The last column is the largest difference of an output from the plain model's.",
        "",
        "| graph | model | layers run as | " + " | ".join(WAYS)
        + " | PyG / accelerated | PyG trimmed / accelerated | difference |",
        "|---" * 10 + "|",
        *(text_row(row) for row in result["rows"]),
    ]  # fmt: skip
    if result.get("accuracy"):
        found = result["accuracy"]
        lines += [
            "",
            f"Accuracy on {found['dataset']}, GraphSAGE with dropout, "
            f"{len(found['scores']['plain'])} seeds: plain {found['mean']['plain']:.4f} "
            f"(deviation {found['std']['plain']:.4f}), "
            f"accelerated {found['mean']['accelerated']:.4f} "
            f"({found['std']['accelerated']:.4f}), p = {found['p_value']:.2f}.",
        ]
    return lines


def main(argv: list[str] | None = None) -> None:
    """Measure, and write the results."""
    options = parser(__doc__)
    options.add_argument("--root", type=Path, help="of amazon/, citation_full/")
    options.add_argument("--rounds", type=int, default=3)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--parts", nargs="*", choices=PARTS, default=PARTS, help=PARTS_HELP)
    args = options.parse_args(argv)
    result = new_result("accelerated_training", args.quick, threads=torch.get_num_threads())
    path = args.out / "accelerated_training.json"
    known: dict[str, Any] = {"rows": []}
    if path.exists() and not args.quick and len(args.parts) < len(PARTS):
        known = json.loads(path.read_text())
    generated: list[dict[str, Any]] = []
    real: list[dict[str, Any]] = []
    for row in known["rows"]:
        (real if row["graph"] in REAL else generated).append(row)
    if "generated" in args.parts:
        generated = large_rows(args.quick, args.rounds)
    if "real" in args.parts and not args.quick:
        real = [
            measure(name, model, load_dataset(name, args.root), [10, 10], 256, 5 * args.rounds, 64)
            for name in REAL
            for model in MODELS
        ]
    result["rows"] = generated + real
    result["accuracy"] = known.get("accuracy")
    if "accuracy" in args.parts and not args.quick:
        result["accuracy"] = accuracy(args.root, args.seeds, 20)
    print(write(result, args.out))


def large_rows(quick: bool, rounds: int) -> list[dict[str, Any]]:
    """Measure all models on a generated graph."""
    if quick:
        sizes, fanout, batch_size, hidden = (300, 2000, 12, CLASSES), [3, 2], 16, 8
    else:
        sizes, fanout, batch_size, hidden = (
            (200_000, 5_000_000, 100, CLASSES),
            [15, 10, 5],
            1024,
            128,
        )
    data = power_law_graph(*sizes)
    graph = f"{sizes[0]:,} nodes, {sizes[1]:,} edges"
    rows = [measure(graph, m, data, fanout, batch_size, rounds, hidden) for m in MODELS]
    fanout = [5, 4, 3] if not quick else [2, 2, 2]
    typed = two_types(data)
    rows.append(measure(graph, "to_hetero(SAGE)", typed, fanout, batch_size, rounds, hidden))
    return rows


if __name__ == "__main__":
    main()
