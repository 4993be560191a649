"""Rows that a cache on the GPU leaves to be read from host memory, by policy and size.

Batches are sampled on the CPU, and what a cache would hold of them is counted: no GPU takes part.
The policies are those of `cache_policy=`. Belady's cache, which knows all batches to come and keeps
the rows that are needed soonest, is the bound of caches that change.

    python -m benchmarks cache_policies
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from benchmarks.labor.graphs import (
    PRODUCTS_NODES,
    PRODUCTS_SEEDS,
    PRODUCTS_VISITED,
    graph,
    products_like,
)
from benchmarks.labor.sizes import endless, loader_of
from benchmarks.result import new_result, number, parser, save_plot, table, write
from pyg_direct.core.types import SeedVisits
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.graph.visits import expected_visits, out_degrees
from pyg_direct.ops.host.hottest import PRESAMPLED_BATCHES, SLOT_BYTES
from pyg_direct.tools.plan import MACHINES, Question, plan_of, presampled_visits
from pyg_direct.tools.plan_orders import Batching, cached_rows

TITLE = "Rows left to host memory by a cache on the GPU"
GRAPHS = ("power law", "community", "products", "debian")
PART = 10  # of ogbn-products that "products" is
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5)  # rows that a cache holds, of all
POLICIES = ("presample", "degree", "visits")
ROW_BYTES = 128  # of a row: one read
NEVER = np.iinfo(np.int64).max
Trace = Sequence[np.ndarray]
"""The ids of batches, one after another; those of a batch are distinct."""


def trace_of(data: Data, size: int, fanouts: list[int], count: int, seed: int) -> list[np.ndarray]:
    """Sample batches, and return their ids."""
    loader = loader_of(data, size, fanouts, seed=seed)
    return [batch.n_id.numpy() for batch in islice(endless(loader), count)]


def visits_of(data: Data, size: int, fanouts: list[int]) -> dict[str, np.ndarray]:
    """Return what each policy goes by, [nodes]."""
    csc = graph_of(data).csc
    counted = np.zeros(data.num_nodes)
    for ids in trace_of(data, size, fanouts, PRESAMPLED_BATCHES, seed=1):
        counted[ids] += 1
    every = [SeedVisits(np.full(data.num_nodes, min(1.0, size / data.num_nodes)))]
    return {
        "presample": counted,
        "degree": out_degrees(csc)[0],
        "visits": expected_visits(csc, every, np.array(fanouts)[:, None])[0],
    }


def static_misses(trace: Trace, visits: np.ndarray, held: int) -> int:
    """Return how many rows a cache of the most visited rows lacks; it holds no unvisited ones."""
    order = np.argsort(-visits, kind="stable")[:held]
    cached = np.zeros(len(visits), bool)
    cached[order[visits[order] > 0]] = True
    return sum(int((~cached[ids]).sum()) for ids in trace)


def belady_misses(trace: Trace, nodes: int, held: int) -> int:
    """Return how many rows a cache lacks that keeps, after each batch, those needed soonest.

    Example: batches [0, 1], [2], [0] and one row held: 0 is kept, and 3 rows are read.
    """
    following = np.full(nodes, NEVER)
    needed = []  # for each batch, when each of its rows is needed next
    for i in range(len(trace) - 1, -1, -1):
        needed.append(following[trace[i]])
        following[trace[i]] = i
    next_use, cached, misses = np.full(nodes, NEVER), np.zeros(nodes, bool), 0
    for ids, uses in zip(trace, reversed(needed), strict=True):
        misses += int((~cached[ids]).sum())
        next_use[ids], cached[ids] = uses, True
        candidates = np.flatnonzero(cached)
        wanted = candidates[next_use[candidates] < NEVER]
        if len(wanted) > held:
            wanted = wanted[np.argpartition(next_use[wanted], held - 1)[:held]] if held else []
        cached[:] = False
        cached[wanted] = True
    return misses


def measure(data: Data, size: int, fanouts: list[int], count: int) -> dict[str, Any]:
    """Return the shares of rows that are read from host memory, by policy and size of the cache."""
    bare = Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    trace, visits = trace_of(bare, size, fanouts, count, seed=0), visits_of(bare, size, fanouts)
    read, nodes = sum(map(len, trace)), data.num_nodes
    left: dict[str, list[float]] = {name: [] for name in (*POLICIES, "Belady")}
    counted = np.sort(visits["presample"])[::-1]
    promised = []
    for share in SHARES:
        held = int(share * nodes)
        for name in POLICIES:
            left[name].append(static_misses(trace, visits[name], held) / read)
        left["Belady"].append(belady_misses(trace, nodes, held) / read)
        promised.append(1 - counted[:held].sum() / counted.sum())
    degree = np.bincount(bare.edge_index[0].numpy(), minlength=nodes)
    return {
        "nodes": nodes,
        "edges": data.num_edges,
        "batch_size": size,
        "fanouts": fanouts,
        "degree": {
            "mean": degree.mean(),
            "median": np.median(degree),
            "largest": int(degree.max()),
        },
        "rows_per_batch": read / count,
        "left": left,
        "promised": promised,
        "planned": planned(bare, size, fanouts),
    }


def planned(data: Data, size: int, fanouts: list[int]) -> dict[str, list[float]]:
    """Return the shares of rows that `pyg-direct plan` says are left, by policy."""
    batching = Batching(fanouts, size)
    question = Question(batching, {None: ROW_BYTES}, next(iter(MACHINES.values())))
    plan = plan_of(data, question)
    degrees = torch.bincount(data.edge_index[0], minlength=plan.num_nodes).double()
    every = {
        "presample": presampled_visits(data, batching),
        "degree": {None: degrees},
        "visits": plan.visits,
    }
    rooms = [SLOT_BYTES * plan.num_nodes + ROW_BYTES * int(s * plan.num_nodes) for s in SHARES]
    ids, row_bytes = plan.batches.node_ids, question.row_bytes
    return {
        policy: [1 - cached_rows(ids, visits, row_bytes, room).hits for room in rooms]
        for policy, visits in every.items()
    }


def sections(result: dict[str, Any]) -> list[str]:
    """Return the body of the report."""
    lines = [
        "",
        f"{result['batches']} batches are counted.",
        "Rows read from host memory, in percent of all rows of the batches, where a cache holds",
        "so many of the rows of the graph, by the values of `cache_policy=`. `promised` is what",
        f"the {PRESAMPLED_BATCHES} batches of `presample` say of themselves, too little as they",
        "met rows by chance; the last rows are what `pyg-direct plan` says, from 16 other batches.",
    ]
    head = ["policy", *(f"{share:.0%} cached" for share in SHARES)]
    for name, found in result["graphs"].items():
        rows = [[k, *(f"{100 * v:.1f}" for v in values)] for k, values in found["left"].items()]
        rows.append(["promised", *(f"{100 * value:.1f}" for value in found["promised"])])
        for policy, values in found["planned"].items():
            rows.append([f"{policy}, planned", *(f"{100 * value:.1f}" for value in values)])
        differences = (
            abs(plan - counted)
            for policy, values in found["planned"].items()
            for plan, counted in zip(values, found["left"][policy], strict=True)
        )
        degree = found["degree"]
        lines += [
            "",
            f"## {name}",
            "",
            f"Batches of {found['batch_size']} seeds, fan-outs {found['fanouts']}: "
            f"{number(found['rows_per_batch'])} rows a batch of",
            f"{found['nodes']:,}; {found['edges']:,} edges, degrees of {degree['mean']:.1f} on "
            f"average, {degree['median']:.0f} in the middle, {degree['largest']:,} at most.",
        ]
        if name == "products":
            share = found["rows_per_batch"] / found["nodes"]
            lines += [
                f"A part of 1 : {PART} of ogbn-products, in nodes, edges and seeds, with its pairs",
                f"of linked nodes for a node. Batches visit {share:.1%} of the nodes, there "
                f"{PRODUCTS_VISITED / PRODUCTS_NODES:.1%}",
                f"({PRODUCTS_VISITED:,} around {PRODUCTS_SEEDS:,} seeds). Degrees are log-normal; "
                "the share",
                "of edges within communities was set by these visits.",
            ]
        lines += [
            f"Planned and counted shares differ by {100 * max(differences):.2f} points at most.",
            "",
        ]
        lines += table(head, rows)
    return lines


def plot(result: dict[str, Any], path: Path) -> None:
    """Draw the rows that are left against the size of the cache, a line for each policy."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    figure, every = plt.subplots(1, len(result["graphs"]), figsize=(16, 3.6), sharey=True)
    for axis, (name, found) in zip(every, result["graphs"].items(), strict=True):
        for policy, values in found["left"].items():
            axis.plot(
                [100 * s for s in SHARES], [100 * v for v in values], "o-", ms=3, label=policy
            )
        axis.set(title=name, xscale="log", xlabel="rows in the cache, %", ylim=(0, 100))
    every[0].set_ylabel("rows read from host memory, %")
    every[-1].legend(frameon=False)
    save_plot(figure, path)


def main(argv: list[str] | None = None) -> None:
    """Count, and write the results."""
    arguments = parser(__doc__)
    args = arguments.parse_args(argv)
    names = GRAPHS[:3] if args.quick else GRAPHS
    size, fanouts, count = (32, [3, 3], 8) if args.quick else (256, [10, 10], 200)
    result = new_result("cache_policies", args.quick, batches=count, graphs={})
    torch.set_num_threads(1)
    for name in names:
        if name == "products":
            part = 1000 if args.quick else PART
            data, seeds = products_like(PRODUCTS_NODES // part), PRODUCTS_SEEDS // part
            found = measure(data, seeds, [10, 10, 10], count)
        else:
            found = measure(graph(name, None, args.quick), size, fanouts, count)
        result["graphs"][name] = found
        print(name, found, flush=True)
    path = write(result, args.out)
    plot(result, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
