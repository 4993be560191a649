"""Rows that ranks load in common, beside ranks that each load their own: rows, bytes, CPU time.

Ranks are processes over gloo on one machine, which have the whole graph in memory: what is counted
holds on several machines, too, but the CPU time is what sharing rows costs and no disk is saved.
Every rank has an epoch alone and one in common of the same batches, in turn, after a first epoch
of each. CPU time is that of all threads of all ranks, whoever else runs.

    python -m benchmarks shared_rows
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import pyg_direct
from benchmarks import child, result
from benchmarks.labor.graphs import community_graph
from benchmarks.partitions import epoch_of
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph
from pyg_direct.core.units import count_of
from pyg_direct.tools.plan_orders import Batching
from pyg_direct.tools.plan_ranks import RanksAsked, step_of_ranks

TITLE = "Rows that ranks load in common"
GRAPHS = ("community", "power law")
WIDTH, DEGREE = 100, 25  # float32 columns, edges a node
FAN_OUT, BATCH_SIZE, BATCHES = [10, 10, 10], 1024, 8  # batches of a rank in an epoch
WORLD_SIZES = (2, 4)
ROUNDS = 3
WAYS = ("alone", "in common")


def run_rank(spec: dict[str, Any]) -> None:
    """Be one rank; print what it took and what it exchanged."""
    torch.set_num_threads(1)
    ranks, size = spec["world_size"], spec["batch_size"]
    dist.init_process_group(
        "gloo", f"file://{spec['meeting']}", rank=spec["rank"], world_size=ranks
    )
    data: Any = pyg_direct.open(spec["folder"])
    data.x = data.x.clone()  # in memory
    seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    seeds = seeds[: ranks * size * BATCHES]
    options = {"batch_size": size, "seed": 0, "split_by_rank": True}
    loaders = {
        way: pyg_direct.NeighborLoader(data, FAN_OUT, seeds, share_rows=way != "alone", **options)
        for way in WAYS
    }
    for loader in loaders.values():
        epoch_of(loader)
    found: dict[str, Any] = {way: [] for way in WAYS}
    dist.barrier()
    common = loaders["in common"]
    before = common.stats().exchange
    for _ in range(spec["rounds"]):
        for way, loader in loaders.items():
            found[way].append(epoch_of(loader)["cpu"])
            dist.barrier()
    assert before is not None
    found["traffic"] = common.stats().exchange.since(before).as_dict()
    print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def row_of(every: Sequence[dict[str, Any]], rounds: int, plan: Any) -> dict[str, Any]:
    """Return the figures of a graph and a number of ranks; rows and bytes are those of a step."""
    ranks, steps = len(every), rounds * BATCHES
    traffic = [of_rank["traffic"] for of_rank in every]
    row: dict[str, Any] = {
        name: sum(of_rank[name] for of_rank in traffic) / steps
        for name in ("rows", "loaded_rows", "fetched_rows")
    }
    row["sent_bytes"] = sum(sum(of_rank["sent_bytes"]) for of_rank in traffic) / steps / ranks
    row["collectives"] = traffic[0]["collectives"] / steps
    row["planned"] = {"rows": plan.alone.rows, "loaded_rows": plan.common}
    for way in WAYS:
        rounds_of = zip(*(of_rank[way] for of_rank in every), strict=True)
        row[way] = spread([sum(taken) / ranks for taken in rounds_of])
    return row


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = []
    for name, of_sizes in found["graphs"].items():
        for ranks, row in of_sizes.items():
            ms = [result.quartiles(row[way], 1e3) for way in WAYS]
            planned = row["planned"]
            rows.append(
                [name, ranks, f"{row['rows']:,.0f}", f"{planned['rows']:,.0f}",
                 f"{planned['loaded_rows']:,.0f}", f"{row['loaded_rows']:,.0f}",
                 f"{row['rows'] / row['loaded_rows']:.2f}", f"{row['sent_bytes'] / 1e6:.1f}",
                 f"{row['collectives']:.1f}", *ms]
            )  # fmt: skip
    head = ["graph", "ranks", "rows alone", "planned", "planned in common", "rows in common",
            "times less", "MB sent", "collectives", "alone, ms", "in common, ms"]  # fmt: skip
    return [
        "",
        f"{found['nodes']:,} nodes, {found['edges']:,} edges drawn, {WIDTH} float32 columns;",
        f"batches of {found['batch_size']:,} random seeds, fan-out "
        f"{'/'.join(map(str, FAN_OUT))}; owners by hash.",
        "Rows of a step, of all ranks; `planned` is what `pyg-direct plan --ranks` counts. Up to",
        "four batches of a rank are made together, which share rows as well, so that a step loads",
        "its share of theirs. MB that each rank sends, and collectives that it takes",
        "part in, for each step. CPU milliseconds a batch, of all threads: median (quartiles) of",
        f"{found['rounds']} epochs of {BATCHES} steps. All ranks have the graph in memory.",
        "",
        *result.table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="200k")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = child.arguments(parser, argv, run_rank)
    if args is None:
        return
    nodes, size, rounds = (int(args.nodes), BATCH_SIZE, args.rounds)
    sizes: Sequence[int] = WORLD_SIZES
    if args.quick:
        nodes, size, rounds, sizes = 2000, 16, 1, WORLD_SIZES[:1]
    found = result.new_result(
        "shared_rows", args.quick, nodes=nodes, edges=nodes * DEGREE, batch_size=size,
        rounds=rounds, graphs={}, unit="CPU seconds a batch, of all ranks",
    )  # fmt: skip
    for name in GRAPHS[:1] if args.quick else GRAPHS:
        with tempfile.TemporaryDirectory() as folder:
            if name == "community":
                data = community_graph(nodes, nodes * DEGREE, WIDTH)
            else:
                data = power_law_graph(nodes, nodes * DEGREE, WIDTH, 10)
            pyg_direct.save(data, Path(folder) / "whole")
            found["graphs"][name] = {}
            for ranks in sizes:
                asked = RanksAsked(ranks, Batching(FAN_OUT, size), {None: 4 * WIDTH})
                plan = step_of_ranks(data, asked)
                spec = {"folder": f"{folder}/whole", "rounds": rounds, "batch_size": size}
                every = child.results_of_ranks("benchmarks.shared_rows", spec, ranks, args.quick)
                found["graphs"][name][str(ranks)] = row_of(every, rounds, plan)
                print(*sections(found)[-2:], sep="\n", flush=True)
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
