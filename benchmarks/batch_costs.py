"""What batches of graphs in files cost: at first use and after, and of several sizes in turn.

One loader makes all batches of a graph, so that the first touch of its memory is in its first
epoch alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pyg_direct
from benchmarks import result
from benchmarks.inference import measured
from benchmarks.statistics import growth, spread
from pyg_direct import NeighborLoader
from pyg_direct.ops.host_memory import available_bytes

FAN_OUT, BATCH_SIZE, BATCHES = [15, 10], 1024, 20
REPEATS = 5  # epochs whose pages are in memory, of which the medians count
ROUNDS, WARM_ROUNDS = 15, 2  # of sizes in turn; those that bring pages and buffers do not count
COSTS = {"ns_a_row": "ns a row", "ns_an_edge": "ns an edge"}


def loader_over(data: Any, batches: int) -> Any:
    """Return a loader of so many batches from random seeds."""
    generator = torch.Generator().manual_seed(0)
    seeds = torch.randint(data.num_nodes, (BATCH_SIZE * batches,), generator=generator)
    return NeighborLoader(data, FAN_OUT, seeds, batch_size=BATCH_SIZE, seed=0)


def epoch(loader: Any) -> dict[str, float]:
    """Load all batches once, and return what one of them held and cost."""
    _, times = measured(lambda: sum(batch.num_nodes for batch in loader))
    stats = loader.stats().epochs[-1]
    return {
        "nodes": stats.nodes / stats.batches,
        "edges": stats.edges / stats.batches,
        "ns_a_row": 1e9 * stats.seconds["gathering"] / stats.nodes,
        "ns_an_edge": 1e9 * stats.seconds["sampling"] / stats.edges,
        "batches_a_second": stats.batches / times["seconds"],
        "anonymous_bytes": times["peak_bytes"],
    }


def first_and_again(data: Any, batches: int) -> dict[str, Any]:
    """Return the costs of the first epoch, and the medians of those after it."""
    begin = time.perf_counter()
    loader = loader_over(data, batches)
    built = time.perf_counter() - begin
    first, *others = (epoch(loader) for _ in range(1 + REPEATS))
    again = {name: float(np.median([other[name] for other in others])) for name in first}
    found = {"first": first, "again": again, "statistic": "median"}
    return {"construction_seconds": built, **found}


def in_turn(graphs: Sequence[str], batches: int, rounds: int) -> list[dict[str, Any]]:
    """Load from several graphs in turn; return the spread of the costs of each."""
    loaders = [loader_over(pyg_direct.open(graph), batches) for graph in graphs]
    found: list[list[dict[str, float]]] = [[] for _ in graphs]
    for _ in range(WARM_ROUNDS + rounds):
        for loader, epochs in zip(loaders, found, strict=True):
            epochs.append(epoch(loader))
    return [
        {
            "nodes": loader.data.num_nodes,
            **{name: spread([e[name] for e in epochs[WARM_ROUNDS:]]) for name in COSTS},
        }
        for loader, epochs in zip(loaders, found, strict=True)
    ]


def sections(sizes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the part of the report about sizes in turn."""
    rounds = sizes[0]["ns_a_row"]["n"]
    lines = [
        "",
        "## Sizes in turn",
        "",
        f"Batches loaded in turn in one process, {rounds} rounds with all pages in memory: medians",
        "and quartiles.",
        "",
    ]
    rows = [
        [f"{size['nodes']:,}", *(result.quartiles(size[cost]) for cost in COSTS)] for size in sizes
    ]
    rows += [
        [
            f"growth for ten times the nodes, to {large['nodes']:,}",
            *(
                result.number(growth(nodes, (small[cost]["median"], large[cost]["median"])))
                for cost in COSTS
            ),
        ]
        for small, large in pairwise(sizes)
        for nodes in [(small["nodes"], large["nodes"])]
    ]
    return [*lines, *result.table(["nodes", *COSTS.values()], rows)]


def fit_in_memory(graphs: Sequence[Path]) -> bool:
    """Tell whether all of some graphs stay in memory together."""
    sizes = (path.stat().st_size for graph in graphs for path in graph.iterdir())
    return sum(sizes) < available_bytes() // 2
