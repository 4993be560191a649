"""CPU time of loading over parts that two ranks exchange, beside loading a graph that each has.

In each round every way has one epoch of the same batches, in both ranks at once, after a first one
that warms it up. CPU time is that of all threads of both processes, whoever else runs. The
transport alone is as many collectives with as many bytes, from a group of its own, by nothing but
`all_to_all_single`; it follows the parted way in the same round.

    python -m benchmarks partitions
"""

from __future__ import annotations

import json
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

import pyg_direct
from benchmarks import child, result
from benchmarks.labor.graphs import community_graph
from benchmarks.statistics import spread
from examples.support.synthetic import power_law_graph
from pyg_direct.core.units import count_of

TITLE = "Loading over parts that two ranks exchange"
RANKS, WIDTH, DEGREE = 2, 100, 25
GRAPHS = ("community", "power law")
ORDERS = ("by part", "global")
ROUNDS = 5
BOUND = 1.3  # of the replicated loader, beside the transport


class Case(NamedTuple):
    """A setting of the loaders."""

    batch_size: int
    fanouts: Sequence[int]
    batches: int  # of a rank in an epoch

    @property
    def name(self) -> str:
        """How a report calls it."""
        return f"{self.batch_size:,}, {'/'.join(map(str, self.fanouts))}"


CASES = (Case(256, [10, 10], 48), Case(1024, [15, 10, 5], 16))
SHORT = Case(256, [10, 10], 8)  # whose collectives are counted
QUICK = Case(32, [4, 3], 4)


def cpu_seconds() -> float:
    """Return the CPU time of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def epoch_of(loader: Any) -> dict[str, float]:
    """Run an epoch with the other rank, and return what it took in this process."""
    dist.barrier()
    cpu, wall = cpu_seconds(), time.perf_counter()
    batches = sum(1 for _ in loader)
    taken = {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - wall}
    return {name: seconds / batches for name, seconds in taken.items()}


def transport(group: Any, collectives: int, sent: int, batches: int) -> dict[str, float]:
    """Exchange as many bytes in as many collectives, every other one of 16 bytes, and no more."""
    of_all = torch.tensor([collectives, sent])
    dist.all_reduce(of_all)  # both have to exchange the same
    collectives, sent = (of_all // RANKS).tolist()
    size = sent // max(1, collectives // 2)
    small, large = torch.zeros(2 * RANKS, dtype=torch.int64), torch.zeros(size, dtype=torch.uint8)
    back = [torch.empty_like(small), torch.empty_like(large)]
    sizes = [0 if rank == dist.get_rank() else size for rank in range(RANKS)]
    dist.barrier()
    cpu, wall = cpu_seconds(), time.perf_counter()
    for _ in range(collectives // 2):
        dist.all_to_all_single(back[0], small, group=group)
        dist.all_to_all_single(back[1], large, sizes, sizes, group=group)
    taken = {"cpu": cpu_seconds() - cpu, "wall": time.perf_counter() - wall}
    return {name: seconds / batches for name, seconds in taken.items()}


def seeds_of(data: Any, case: Case) -> Tensor:
    """Return the seeds of an epoch of `case.batches` batches for each rank."""
    generator = torch.Generator().manual_seed(1)
    order = torch.randperm(data.num_nodes, generator=generator)
    return order[: RANKS * case.batches * case.batch_size]


def measure_order(
    whole: Any, parts: Any, case: Case, order: str, rounds: int, group: Any
) -> dict[str, Any]:
    """Return what each way took a batch in this process, round by round, and the traffic."""
    seeds = seeds_of(parts, case)
    options = {"batch_size": case.batch_size, "seed": 0, "split_by_rank": True}
    asked: dict[str, Any] = {"order": "parts"} if order == "by part" else {"shuffle": True}
    found: dict[str, Any] = {"replicated": [], "parts": [], "transport": []}
    for _ in range(rounds):
        ours = pyg_direct.NeighborLoader(parts, case.fanouts, seeds, **asked, **options)
        next(iter(ours))
        # The same seeds in each batch, or the same number of rows would not be needed.
        sampler = list(ours.sampler)
        same = pyg_direct.NeighborLoader(whole, case.fanouts, seeds, sampler=sampler, **options)
        next(iter(same))
        found["replicated"].append(epoch_of(same))
        for _ in range(2):  # the first one warms up
            before = ours.stats().exchange
            taken = epoch_of(ours)
        found["parts"].append(taken)
        traffic = ours.stats().exchange.since(before)
        found["traffic"] = traffic.as_dict()
        del ours
        sent, collectives = sum(traffic.sent_bytes), traffic.collectives
        found["transport"].append(transport(group, collectives, sent, case.batches))
    return found


def run_rank(spec: dict[str, Any]) -> None:
    """Be one rank; print what it measured of each case and order."""
    torch.set_num_threads(1)
    folder, rank = Path(spec["folder"]), spec["rank"]
    dist.init_process_group("gloo", f"file://{spec['meeting']}", rank=rank, world_size=RANKS)
    group = dist.new_group(range(RANKS), backend="gloo")
    whole, parts = (pyg_direct.open(folder / name) for name in ("whole", "parts"))
    found = {}
    for name, case, rounds in spec["cases"]:
        of_case = Case(*case)
        found[name] = {
            order: measure_order(whole, parts, of_case, order, rounds, group) for order in ORDERS
        }
    print(json.dumps(found), flush=True)
    dist.barrier()
    os._exit(0)


def row_of(every: Sequence[dict[str, Any]], case: Case) -> dict[str, Any]:
    """Return the figures of a case and an order, over the ranks."""
    row: dict[str, Any] = {"batches": case.batches}
    for way in ("replicated", "parts", "transport"):
        rounds = zip(*(of_rank[way] for of_rank in every), strict=True)
        # A batch of each rank costs what all ranks take for it.
        row[way] = spread([sum(t["cpu"] for t in taken) / RANKS for taken in rounds])
    traffic = [of_rank["traffic"] for of_rank in every]
    batches = RANKS * case.batches
    row["collectives"] = traffic[0]["collectives"] / case.batches
    row["sent_bytes"] = sum(sum(t["sent_bytes"]) for t in traffic) / batches
    for kind in ("row", "request"):
        all_of, remote = (sum(t[f"{name}{kind}s"] for t in traffic) for name in ("", "remote_"))
        row[f"remote_{kind}_share"] = remote / max(1, all_of)
    bound = BOUND * row["replicated"]["median"] + row["transport"]["median"]
    row["of_bound"] = row["parts"]["median"] / bound
    return row


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = []
    for name, cases in found["graphs"].items():
        for case, orders in cases.items():
            for order, row in orders.items():
                ms = [result.quartiles(row[way], 1e3) for way in ("replicated", "parts")]
                transport = result.quartiles(row["transport"], 1e3)
                ratio = row["parts"]["median"] / row["replicated"]["median"]
                rows.append(
                    [name, case, str(row["batches"]), order, *ms, transport, f"{ratio:.1f}",
                     f"{row['of_bound']:.2f}", f"{row['collectives']:.1f}",
                     f"{row['sent_bytes'] / 1e6:.2f}", f"{row['remote_row_share']:.0%}",
                     f"{row['remote_request_share']:.0%}"]
                )  # fmt: skip
    head = ["graph", "batch, fan-out", "batches", "seeds", "whole graph, ms", "in parts, ms",
            "transport, ms", "ratio", "of bound", "collectives", "MB", "remote rows",
            "remote frontier"]  # fmt: skip
    return [
        "",
        f"{found['nodes']:,} nodes, {found['edges']:,} edges drawn, {WIDTH} float32 features, in",
        "two parts by `ldg`; two processes over gloo on one machine. CPU milliseconds a batch, of",
        f"all threads of both ranks: median (quartiles) of {found['rounds']} rounds. `ratio` is in",
        f"parts over whole graph; `of bound` is in parts over {BOUND} times the whole graph and",
        "the transport. Collectives of a rank, and bytes that leave it, for each of its batches;",
        "`batches` of a rank make an epoch.",
        "",
        *result.table(head, rows),
    ]


def make_graph(name: str, folder: Path, nodes: int) -> None:
    """Write a graph, whole and in parts."""
    if name == "community":
        data = community_graph(nodes, nodes * DEGREE, WIDTH)
    else:
        data = power_law_graph(nodes, nodes * DEGREE, WIDTH, 10)
    pyg_direct.save(data, folder / "whole")
    pyg_direct.partition(folder / "whole", folder / "parts", RANKS, "ldg")


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="200k")
    parser.add_argument("--graph", choices=GRAPHS, action="append", help="all unless given")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    args = child.arguments(parser, argv, run_rank)
    if args is None:
        return
    nodes, rounds = (2000, 1) if args.quick else (int(args.nodes), args.rounds)
    cases = {case.name: case for case in ([QUICK] if args.quick else CASES)}
    if not args.quick:
        cases[f"{SHORT.name}, short epoch"] = SHORT
    found = result.new_result(
        "partitions", args.quick, nodes=nodes, edges=nodes * DEGREE, rounds=rounds, graphs={},
        unit="CPU seconds a batch, of all ranks",
    )  # fmt: skip
    spec = {"cases": [(name, case, rounds) for name, case in cases.items()]}
    for name in args.graph or GRAPHS:
        with tempfile.TemporaryDirectory() as folder:
            make_graph(name, Path(folder), nodes)
            every = child.results_of_ranks(
                "benchmarks.partitions", {**spec, "folder": folder}, RANKS, args.quick
            )
        found["graphs"][name] = {
            case_name: {
                order: row_of([of_rank[case_name][order] for of_rank in every], case)
                for order in ORDERS
            }
            for case_name, case in cases.items()
        }
        print(*sections(found)[-2:], sep="\n", flush=True)
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
