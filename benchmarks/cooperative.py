"""Batches that ranks make together, beside ranks that each make their own: rows, edges, bytes.

Ranks are processes over gloo on one machine, which have the whole graph in memory: what is counted
holds on several machines, too. Every rank has an epoch of batches of its own, and one of batches
made together, of the same seeds, after a first epoch of each. CPU time is that of all threads of
all ranks, whoever else runs.

    python -m benchmarks cooperative
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

import pyg_direct
from benchmarks import child, result
from benchmarks.labor.graphs import community_graph
from benchmarks.partitions import cpu_seconds
from examples.synthetic import power_law_graph
from pyg_direct.core.units import count_of
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.ops.host.parts import by_greedy_passes
from pyg_direct.tools.plan_ranks import RanksAsked, step_of_ranks

TITLE = "Batches that ranks make together"
GRAPHS = {"power law": ("hash",), "community": ("hash", "ldg")}  # and the owners of their nodes
SAMPLINGS = ("uniform", "labor")
WIDTH, DEGREE = 100, 25  # float32 columns, edges a node
FAN_OUT, BATCH_SIZE, STEPS = [10, 10, 10], 1024, 4  # steps of an epoch
WORLD_SIZES = (2, 4)
ALONE, TOGETHER = "alone", "together"
OWNERS = "owners.pt"


def epoch_of(loader: Any) -> dict[str, float]:
    """Run an epoch with the other ranks; return rows, edges and CPU seconds of a step here."""
    dist.barrier()
    begun, found = cpu_seconds(), np.zeros(3)
    for batch in loader:
        by_hop = np.array(batch.num_sampled_edges)
        # A model of as many layers aggregates the edges of all hops, then of all but the last, ...
        found += batch.num_nodes, by_hop.sum(), np.cumsum(by_hop).sum()
    dist.barrier()
    rows, edges, aggregated = (found / len(loader)).tolist()
    cpu = (cpu_seconds() - begun) / len(loader)
    return {"rows": rows, "edges": edges, "aggregated": aggregated, "cpu": cpu}


def run_rank(spec: dict[str, Any]) -> None:
    """Be one rank; print what its batches had, and what it exchanged."""
    torch.set_num_threads(1)
    ranks, size, folder = spec["world_size"], spec["batch_size"], Path(spec["folder"])
    dist.init_process_group(
        "gloo", f"file://{spec['meeting']}", rank=spec["rank"], world_size=ranks
    )
    data: Any = pyg_direct.open(folder / "whole")
    data.x = data.x.clone()  # in memory
    seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    seeds = seeds[: ranks * size * STEPS]
    options = {"batch_size": size, "seed": 0, "split_by_rank": True}
    owners = torch.load(folder / OWNERS)[str(ranks)] if spec["owners"] != "hash" else "hash"
    common = {"cooperative": True, "owners": owners}
    found: dict[str, Any] = {}
    for sampling in SAMPLINGS:
        ways: dict[str, dict[str, Any]] = {ALONE: {}, TOGETHER: common}
        for way, more in ways.items():
            loader = pyg_direct.NeighborLoader(
                data, FAN_OUT, seeds, sampling=sampling, **options, **more
            )
            epoch_of(loader)
            before = loader.stats().exchange
            counted = epoch_of(loader)
            if before is not None:
                traffic = loader.stats().exchange
                counted |= {
                    name: value / STEPS
                    for name, value in traffic.since(before).as_dict().items()
                    if name in ("loaded_rows", "fetched_rows", "collectives")
                }
                counted["sent"] = sum(traffic.since(before).sent_bytes) / STEPS
            found[f"{sampling}, {way}"] = counted
    print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def clusters(data: Data, ranks: int) -> Tensor:
    """Return a part for each node, of as many as ranks, by linear deterministic greedy passes."""
    return torch.from_numpy(by_greedy_passes(graph_of(data).csc, ranks))


def row_of(every: Sequence[dict[str, Any]], sampling: str) -> dict[str, Any]:
    """Return the figures of a step: sums over ranks, and how uneven these are."""
    alone, together = (
        [of_rank[f"{sampling}, {way}"] for of_rank in every] for way in (ALONE, TOGETHER)
    )
    row: dict[str, Any] = {
        way: {name: sum(of_rank[name] for of_rank in of_way) for name in of_way[0]}
        for way, of_way in ((ALONE, alone), (TOGETHER, together))
    }
    row["collectives"] = together[0]["collectives"]
    edges = [of_rank["edges"] for of_rank in together]
    row["largest"] = max(edges) * len(edges) / sum(edges)
    return row


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = []
    for graph, of_graph in found["graphs"].items():
        for case in of_graph:
            alone, together = case[ALONE], case[TOGETHER]
            pairs = [
                (alone["rows"], together["loaded_rows"]),
                (alone["edges"], together["edges"]),
                (alone["aggregated"], together["aggregated"]),
            ]
            rows.append(
                [graph, str(case["ranks"]), case["owners"], case["sampling"],
                 *(f"{a / 1e3:,.1f} to {b / 1e3:,.1f} ({a / b:.2f}x)" for a, b in pairs),
                 f"{case['planned']['alone'] / 1e3:,.1f} to {case['planned']['common'] / 1e3:,.1f}"
                 if "planned" in case else "",
                 f"{together['fetched_rows'] / 1e3:,.1f}", f"{together['sent'] / 1e6:.1f}",
                 f"{case['collectives']:.1f}", f"{case['largest']:.2f}",
                 *(f"{1e3 * way['cpu'] / case['ranks']:.0f}" for way in (alone, together))]
            )  # fmt: skip
    head = ["graph", "ranks", "owners", "sampling", "rows loaded", "edges sampled",
            "edges aggregated", "rows planned", "rows fetched", "MB sent", "collectives",
            "largest rank", "alone, ms", "together, ms"]  # fmt: skip
    return [
        "",
        f"{found['nodes']:,} nodes, {found['edges']:,} edges drawn, {WIDTH} float32 columns;",
        f"{found['batch_size']:,} random seeds of each rank in a step, fan-out "
        f"{'/'.join(map(str, FAN_OUT))}. Owners by hash, or by",
        "linear deterministic greedy passes over the edges (`ldg`). All figures are of one step,",
        f"means of {STEPS}, and sums over the ranks. Rows and edges in thousands: with batches of",
        "their own, and together. Edges are sampled once, and aggregated by each of three layers",
        "that reads them. Rows planned: what `pyg-direct plan --ranks` counts, alone and distinct",
        "rows of all. Rows fetched came from other ranks, before the first layer; MB sent are of",
        "these, of ids, keys and bits, not of what layers of a model exchange. Largest rank: its",
        "edges over the mean. CPU milliseconds of a rank for its batch, of all its threads.",
        "",
        *result.table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="200k")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    os.environ["PYG_DIRECT_DEVICE"] = "cpu"
    if args.child:
        run_rank(json.loads(args.child))
        return
    nodes, size, sizes = int(args.nodes), BATCH_SIZE, list(WORLD_SIZES)
    if args.quick:
        nodes, size, sizes = 2000, 16, sizes[:1]
    found = result.new_result(
        "cooperative", args.quick, nodes=nodes, edges=nodes * DEGREE, batch_size=size, graphs={},
        unit="a step, all ranks",
    )  # fmt: skip
    for name, all_owners in GRAPHS.items():
        if name == "community":
            data = community_graph(nodes, nodes * DEGREE, WIDTH)
        else:
            data = power_law_graph(nodes, nodes * DEGREE, WIDTH, 10)
            data.edge_index = coalesce(data.edge_index, num_nodes=nodes)  # LABOR wants it
        with tempfile.TemporaryDirectory() as folder:
            pyg_direct.save(data, Path(folder) / "whole")
            torch.save({str(ranks): clusters(data, ranks) for ranks in sizes}, f"{folder}/{OWNERS}")
            found["graphs"][name] = []
            for ranks in sizes:
                asked = RanksAsked(ranks, FAN_OUT, size, {None: 4 * WIDTH})
                plan = step_of_ranks(data, asked)
                for owners in all_owners:
                    spec = {"folder": folder, "batch_size": size, "owners": owners}
                    module = "benchmarks.cooperative"
                    every = child.results_of_ranks(module, spec, ranks, args.quick)
                    for sampling in SAMPLINGS:
                        case = {"ranks": ranks, "owners": owners, "sampling": sampling}
                        if sampling == SAMPLINGS[0]:  # what a plan samples by
                            case["planned"] = {"alone": plan.alone.rows, "common": plan.common}
                        found["graphs"][name].append(case | row_of(every, sampling))
                        print(*sections(found)[-1:], sep="\n", flush=True)
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
