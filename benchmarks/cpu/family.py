"""How fast PyG's other mini-batch methods are here, against PyG with torch_sparse.

Every case makes a batch with either library in turn, in one process without workers. Takes some
minutes on two cores.

    python -m benchmarks family  # needs torch_sparse
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.loader
from torch_geometric.data import Data

import pyg_direct
from benchmarks import result as results
from benchmarks.graphs import debian_hetero
from examples.support.synthetic import power_law_graph

TITLE = "Speed of the other mini-batch methods"
NUM_NODES, NUM_EDGES, NUM_FEATURES = 200_000, 5_000_000, 100
WALK_LENGTH = 20
BIASED_SHARE = 4  # walks with p and q start at one node of so many
COUNTED_STEPS = 1000
SAMPLERS = {"pyg_direct": pyg_direct, "pyg": torch_geometric.loader}


class Case(NamedTuple):
    """One thing to make, with either library."""

    name: str
    make: dict[str, Callable[[], Any]]
    steps: int = 0  # of all walks of a call, where the case is one of walks
    counts: dict[str, float] | None = None  # see `WalkCounts.of`


def batches(loader: Any) -> Callable[[], Any]:
    """Return a function that makes the next batch, epoch after epoch."""

    def forever() -> Iterator[Any]:
        while True:
            yield from loader

    source = forever()
    return lambda: next(source)


def loader_case(name: str, kind: str, *args: Any, **kwargs: Any) -> Case:
    """Return the case of a loader class that has the same name in both libraries."""
    make = {
        who: batches(getattr(module, kind)(*args, **kwargs)) for who, module in SAMPLERS.items()
    }
    return Case(name, make)


def walk_cases(data: Data) -> Iterator[Case]:
    """Yield walks from all nodes; torch_sparse has uniform ones only."""
    from torch_sparse import SparseTensor  # here, as reports are written without it

    start, walker = torch.arange(data.num_nodes), pyg_direct.RandomWalker(data)
    size = (data.num_nodes, data.num_nodes)
    adj = SparseTensor(row=data.edge_index[0], col=data.edge_index[1], sparse_sizes=size)
    adj.storage.rowptr()
    steps = len(start) * WALK_LENGTH
    make = {
        "pyg_direct": lambda: walker.walk(start, WALK_LENGTH),
        "pyg": lambda: adj.random_walk(start, WALK_LENGTH),
    }
    yield Case(f"{len(start):,} uniform walks of {WALK_LENGTH} steps", make, steps)
    some, counts = start[::BIASED_SHARE], WalkCounts(data)
    for p, q in ((0.25, 0.25), (0.25, 4.0), (4.0, 0.25), (4.0, 4.0)):
        ours = {"pyg_direct": lambda p=p, q=q: walker.walk(some, WALK_LENGTH, p, q)}
        found = counts.of(walker.walk(some, WALK_LENGTH, p, q).numpy(), p, q)
        name = f"{len(some):,} such walks with p={p}, q={q}"
        yield Case(name, ours, len(some) * WALK_LENGTH, found)


class WalkCounts:
    """What the steps of walks with node2vec's law have to read, from the graph and the law alone.

    A step draws points under a line over the list of the node until one is below its neighbour's
    weight (`pyg_direct/kernels/walk.py`). A point above the smallest weight needs to know whether
    an edge leads back to the node before, and searches the neighbour's list for it.
    """

    def __init__(self, data: Data) -> None:
        source, target = data.edge_index.numpy()
        self.num_nodes = data.num_nodes
        self.edges = np.sort(source * self.num_nodes + target)
        self.degree = np.bincount(source, minlength=self.num_nodes)
        self.first = np.concatenate([[0], np.cumsum(self.degree)])

    def of(self, walks: Any, p: float, q: float) -> dict[str, float]:
        """Return the expected draws, searched lists and their reads of a step, over some steps."""
        rng = np.random.default_rng(0)
        walk = rng.integers(len(walks), size=COUNTED_STEPS)
        step = rng.integers(1, WALK_LENGTH, size=COUNTED_STEPS)
        steps = [
            self._step(*walks[w, s - 1 : s + 1], p, q) for w, s in zip(walk, step, strict=True)
        ]
        names = ("draws", "searches", "reads")
        means = np.mean([s for s in steps if s is not None], axis=0).tolist()
        return dict(zip(names, means, strict=True))

    def _step(self, before: int, node: int, p: float, q: float) -> tuple[float, ...] | None:
        place = slice(self.first[node], self.first[node + 1])
        neighbours = self.edges[place] % self.num_nodes
        if len(neighbours) == 0:
            return None
        wanted = neighbours * self.num_nodes + before
        at = np.searchsorted(self.edges, wanted).clip(max=len(self.edges) - 1)
        back = neighbours == before
        weight = np.where(self.edges[at] == wanted, 1.0, 1.0 / q)
        weight[back] = 1.0 / p
        line = max(1.0, 1.0 / q)
        area = line * len(neighbours) + max(0.0, 1.0 / p - line) * back.sum()
        draws = area / weight.sum()
        unsure = (line - min(1.0, 1.0 / q)) / area * draws  # searches of each other neighbour
        reads = np.log2(self.degree[neighbours[~back]] + 1).sum()
        return draws, unsure * (~back).sum(), unsure * reads


def cases(quick: bool) -> Iterator[Case]:
    """Yield all cases, each built when it is asked for."""
    share = 500 if quick else 1
    data = power_law_graph(NUM_NODES // share, NUM_EDGES // share, NUM_FEATURES)
    shuffled = {"batch_size": 256, "shuffle": True}
    yield loader_case("ShaDow, 256 roots, 2 hops of 5", "ShaDowKHopSampler", data, 2, 5, **shuffled)
    yield loader_case(
        "ShaDow, 256 roots, 2 hops of 10", "ShaDowKHopSampler", data, 2, 10, **shuffled
    )
    steps = {"num_steps": 1000, "log": False}
    yield loader_case("SAINT, 6,000 nodes", "GraphSAINTNodeSampler", data, 6000, **steps)
    yield loader_case("SAINT, 20 edges", "GraphSAINTEdgeSampler", data, 20, **steps)
    yield loader_case(
        "SAINT, 6,000 walks of 2", "GraphSAINTRandomWalkSampler", data, 6000, 2, **steps
    )
    yield from walk_cases(data)
    typed = debian_hetero()
    for size in (128, 512):
        yield loader_case(
            f"HGT on debian_hetero, 128 seeds, 3 hops of {size}", "HGTLoader", typed, [size] * 3,
            ("package", typed["package"].train_mask), batch_size=128, shuffle=True,
        )  # fmt: skip


def measure(case: Case, rounds: int) -> dict[str, Any]:
    """Make batches in turn; returns seconds of the wall clock and of all threads, for each."""
    for make in case.make.values():
        make()
    wall: dict[str, list[float]] = {who: [] for who in case.make}
    cpu: dict[str, list[float]] = {who: [] for who in case.make}
    for _ in range(rounds):
        for who, make in case.make.items():
            start, busy = time.perf_counter(), time.process_time()
            make()
            wall[who].append(time.perf_counter() - start)
            cpu[who].append(time.process_time() - busy)
    row = {
        "name": case.name, "steps": case.steps, "counts": case.counts, "rounds": rounds,
        "wall": wall, "cpu": cpu,
    }  # fmt: skip
    print(*cells(row), sep=" | ", flush=True)
    return row


def cells(row: dict[str, Any]) -> list[str]:
    """Return one line of the table: median milliseconds, and ratios of medians."""

    def time_of(kind: str, who: str) -> str:
        return results.number(1000 * median(row[kind][who])) if who in row[kind] else ""

    def ratio(kind: str) -> str:
        if "pyg" not in row[kind]:
            return ""
        return f"{median(row[kind]['pyg']) / median(row[kind]['pyg_direct']):.1f} x"

    rate, counts = "", [""] * 3
    if row["counts"]:
        counts = [results.number(row["counts"][name]) for name in ("draws", "searches", "reads")]
    if row["steps"]:
        wall = row["wall"]["pyg_direct"]
        rate = f"{row['steps'] / median(wall) / 1e6:.1f} M"
        rate += f" (best {row['steps'] / min(wall) / 1e6:.1f} M)"
    times = [time_of(kind, who) for kind in ("wall", "cpu") for who in ("pyg_direct", "pyg")]
    return [row["name"], *times, ratio("wall"), ratio("cpu"), rate, *counts]


HEAD = [
    "",
    "wall, pyg_direct",
    "wall, PyG",
    "CPU, pyg_direct",
    "CPU, PyG",
    "wall",
    "CPU",
    "steps / s",
    "draws / step",
    "lists searched / step",
    "reads of these / step",
]


def sections(result: dict[str, Any]) -> list[str]:
    """Return the lines of the report."""
    return [
        "",
        f"{NUM_NODES:,} nodes, {NUM_EDGES:,} edges, {NUM_FEATURES} features, unless told",
        "otherwise. Median milliseconds of a whole batch (for walks: of one call), made in turn",
        "with either library in one process; CPU time counts all threads. PyG draws with",
        "torch_sparse. Steps a second are those of pyg_direct. The counts at the right are what",
        f"the law of p and q asks for, expected over {COUNTED_STEPS:,} steps of such walks: points",
        "drawn until one is taken, lists of neighbours searched for the way back, and the entries",
        "that a binary search reads in them, most of which are not in a cache.",
        "",
        *results.table(HEAD, [cells(row) for row in result["rows"]]),
        "",
        "PyG's `GraphSAINTEdgeSampler` draws a number for every edge of the graph for each edge of",
        f"a batch: 6,000 would take {6000 * NUM_EDGES * 4 / 1e9:.0f} GB, so the row has 20.",
        "",
        "The machine was shared with other work during the run, so wall-clock times are upper",
        "bounds and their ratios noisy; CPU times depend less on it.",
    ]


def main(argv: list[str] | None = None) -> None:
    """Run all cases and write the result."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", default="", help="cases whose name has this text")
    args = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    known = list(cases(args.quick))
    chosen = [case for case in known if args.only in case.name]
    results.check_some(parser, "--only", chosen, [case.name for case in known])
    result = results.new_result("family", args.quick, rows=[])
    for case in chosen:
        result["rows"].append(measure(case, 2 if args.quick else args.rounds))
        results.write(result, args.out)


if __name__ == "__main__":
    main()
