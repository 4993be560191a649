"""Batches of one shape: how much padding they have, and steps of a compiled model.

    python -m benchmarks static_shapes  # needs a C++ compiler, as torch.compile does

CPU seconds of one thread. What compiling takes is in the first steps; compiled code of earlier runs
is not used.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.utils import counters
from torch_geometric.data import Data
from torch_geometric.nn import GAT, GCN, GraphSAGE

import pyg_direct
from benchmarks.result import new_result, number, parser, quartiles, table, write
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph

TITLE = "Batches of one shape"
WIDTH, CLASSES, FIRST_STEPS = 64, 16, 20
MODELS = {"SAGE": GraphSAGE, "GCN": GCN, "GAT": GAT}
ONE_SHAPE = "compiled, one shape"
WAYS = ("eager", "accelerated", "compiled", ONE_SHAPE)


class Case(NamedTuple):
    """A graph, and batches over it."""

    nodes: int
    edges: int
    fanouts: tuple[int, ...]
    batch_size: int
    batches: int  # whose padding is counted


PADDED = (
    Case(2_700, 10_000, (10, 10), 128, 100),
    Case(200_000, 2_000_000, (10, 5), 64, 200),
    Case(200_000, 2_000_000, (10, 5), 1024, 200),
    Case(200_000, 5_000_000, (15, 10, 5), 1024, 60),
)
QUICK = (Case(500, 3_000, (3, 2), 64, 4),)
TRAINED = Case(200_000, 2_000_000, (10, 5), 512, 200)


def graph_of(case: Case) -> Data:
    """Return a graph of a power law without self-loops, which some layers count anew each time."""
    data = power_law_graph(case.nodes, case.edges, WIDTH, CLASSES)
    data.edge_index = data.edge_index[:, data.edge_index[0] != data.edge_index[1]].contiguous()
    return data


def loader_of(data: Data, case: Case, **options: Any) -> Any:
    """Return a loader whose batches all have as many seeds."""
    return pyg_direct.NeighborLoader(
        data, list(case.fanouts), batch_size=case.batch_size, shuffle=True, drop_last=True,
        seed=0, **options,
    )  # fmt: skip


def endless(loader: Any) -> Iterator[Any]:
    """Yield batches of one epoch after another."""
    while True:
        yield from loader


def padding(data: Data, case: Case) -> dict[str, Any]:
    """Return how much of the batches is padding, and how many are larger than was measured."""
    loader = loader_of(data, case, static_shapes=True)
    sizes = [
        (int(batch.num_real_nodes), int(batch.num_real_edges))
        for batch in islice(endless(loader), case.batches)
    ]
    stats, shape = loader.stats(), loader.static_shapes
    return {
        "case": case._asdict(),
        "shape": shape,
        "padded_nodes": stats.padded_nodes / stats.nodes,
        "padded_edges": stats.padded_edges / stats.edges,
        "larger": sum(n + 2 > shape["nodes"] or e > shape["edges"] for n, e in sizes),
    }


def step_of(model: Callable[..., Tensor], optimizer: torch.optim.Optimizer) -> Callable[[Any], Any]:
    """Return a function that trains a model on a batch."""

    def step(batch: Any) -> float:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


def train(data: Data, case: Case, name: str, way: str, steps: int) -> dict[str, Any]:
    """Train a model, and return the seconds of its steps, its losses and its compiled graphs."""
    torch.manual_seed(0)
    model = MODELS[name](WIDTH, WIDTH, 2, CLASSES)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    loader = loader_of(data, case, static_shapes=way == ONE_SHAPE)
    called: Any = model
    if way == "accelerated":
        called = pyg_direct.accelerate(model, loader)
    elif way != "eager":
        called = torch.compile(model, dynamic=False if way == ONE_SHAPE else None)
    step, seconds, losses, graphs = step_of(called, optimizer), [], [], []
    torch.compiler.reset()
    counters.clear()
    for batch in islice(endless(loader), steps):
        begin = time.thread_time()
        losses.append(step(batch))
        seconds.append(time.thread_time() - begin)
        graphs.append(counters["stats"]["unique_graphs"])
    return {"seconds": seconds, "losses": losses, "graphs": graphs}


def training(data: Data, case: Case, name: str, steps: int, rounds: int) -> dict[str, Any]:
    """Train a model in all ways, round by round, and compare them."""
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(rounds):
        for way in WAYS:
            runs[way].append(train(data, case, name, way, steps))
    first, expected = min(FIRST_STEPS, steps // 2), runs["eager"][0]["losses"]
    return {
        way: {
            "milliseconds": spread([1e3 * s for run in found for s in run["seconds"][first:]]),
            "first_seconds": median(sum(run["seconds"][:first]) for run in found),
            "graphs": found[0]["graphs"][0],
            "graphs_later": found[0]["graphs"][-1] - found[0]["graphs"][0],
            "loss_difference": max(
                abs(a - b) for a, b in zip(found[0]["losses"], expected, strict=True)
            ),
        }
        for way, found in runs.items()
    }


def sections(result: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    rows = [
        (
            f"{row['case']['nodes']:,} nodes, {row['case']['edges']:,} edges",
            "/".join(map(str, row["case"]["fanouts"])),
            f"{row['case']['batch_size']:,}",
            f"{row['shape']['nodes']:,} and {row['shape']['edges']:,}",
            f"{100 * row['padded_nodes']:.1f} %",
            f"{100 * row['padded_edges']:.1f} %",
            f"{row['larger']} of {row['case']['batches']}",
        )
        for row in result["padding"]
    ]
    lines = [
        "",
        "## Padding",
        "",
        "What `static_shapes=True` adds to a batch, and how many batches did not fit.",
        "",
        *table(("graph", "fan-out", "seeds", "nodes and edges", "nodes", "edges", "larger"), rows),
        "",
        "## Steps on a CPU",
        "",
        f"CPU milliseconds of one thread: medians and quartiles of the steps after the first "
        f"{result['first_steps']}; a batch has {result['trained']['batch_size']} seeds and fan-out "
        f"{'/'.join(map(str, result['trained']['fanouts']))}. *Graphs* is what was compiled in the "
        f"first step, and what in all later ones.",
        "",
    ]
    steps = [
        (
            name,
            way,
            quartiles(row["milliseconds"]),
            number(row["first_seconds"]),
            f"{row['graphs']} and {row['graphs_later']}" if row["graphs"] else "",
        )
        for name, ways in result["steps"].items()
        for way, row in ways.items()
    ]
    head = ("model", "way", "a step", f"seconds of the first {result['first_steps']}", "graphs")
    return [*lines, *table(head, steps)]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print and write the result."""
    args = parser(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True
    steps, rounds = (4, 1) if args.quick else (200, 2)
    trained = QUICK[0] if args.quick else TRAINED
    result = new_result(
        "static_shapes", args.quick, trained=trained._asdict(), padding=[], steps={}
    )
    result["first_steps"] = min(FIRST_STEPS, steps // 2)
    for case in QUICK if args.quick else PADDED:
        result["padding"].append(padding(graph_of(case), case))
        write(result, args.out)
    data = graph_of(trained)
    for name in list(MODELS)[:1] if args.quick else MODELS:
        result["steps"][name] = training(data, trained, name, steps, rounds)
        write(result, args.out)
    print("\n".join(sections(result)))


if __name__ == "__main__":
    main()
