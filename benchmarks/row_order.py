"""Rows in files in the order of ids against `save(row_order=)`, beyond memory and within.

The same graph, whose ids say nothing of degrees, saved in each order; batches are the same bits.
The orders are that of ids, by "visits", and by `expected_visits` of the loader whose batches are
measured, with its own seeds and fan-outs. Each run is a process of its own: one epoch unmeasured,
then epochs whose bytes read from the disk and time are counted. Beyond memory it is in a control
group that has room for what the process itself needs, the neighbour lists, and a quarter of the
rows; the system's cache is emptied of the graph before. Within memory the cache has all of it.
Rounds are interleaved.

    python -m benchmarks row_order --folder /tmp
"""

from __future__ import annotations

import contextlib
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch_geometric.data import Data

import pyg_direct
from benchmarks import child, result
from benchmarks.beyond_memory import forget
from benchmarks.memory_group import limited
from benchmarks.statistics import spread
from pyg_direct.core.units import count_of, size_text

TITLE = "Rows in files by expected visits"
WIDTH, DEGREE, SKEW = 128, 10, 3  # float32 rows of 512 bytes; ends are random numbers to the power
FAN_OUT, BATCH_SIZE, SEED_SHARE = [10, 5], 512, 100  # one node in so many is a seed
SHARE = 4  # the group has room for the table divided by this
ORDERS = ("ids", "visits", "loader")


def make_graphs(folder: Path, nodes: int) -> None:
    """Save a graph of power-law degrees once for each order."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randperm(nodes, generator=generator)
    ends = (torch.rand(2, nodes * DEGREE, generator=generator) ** SKEW * nodes).long()
    x = torch.empty(nodes, WIDTH).normal_(generator=generator)
    data = Data(x=x, edge_index=ids[ends])
    visits = pyg_direct.expected_visits(loader_of(data))
    for name, order in zip(ORDERS, (None, "visits", visits), strict=True):
        pyg_direct.save(data, folder / name, row_order=order)


def loader_of(data: Any, num_workers: int = 0) -> pyg_direct.NeighborLoader:
    """Return the loader that is measured."""
    seeds = torch.randperm(data.num_nodes, generator=torch.Generator().manual_seed(1))
    seeds = seeds[: max(BATCH_SIZE, data.num_nodes // SEED_SHARE)]
    options = {"batch_size": BATCH_SIZE, "seed": 0, "num_workers": num_workers}
    return pyg_direct.NeighborLoader(data, FAN_OUT, seeds, **options)


def run_child(spec: dict[str, Any]) -> None:
    """Load some epochs; print seconds and bytes read by all but the first, and memory."""
    opened: Any = pyg_direct.open(spec["path"])
    loader = loader_of(opened)
    sums = [float(batch.x.double().sum()) for batch in loader]
    begin, read = time.perf_counter(), read_bytes()
    for _ in range(spec["epochs"]):
        for batch in loader:
            sums.append(float(batch.x[0, 0]))
    found = {
        "seconds": (time.perf_counter() - begin) / spec["epochs"],
        "bytes": (read_bytes() - read) / spec["epochs"],
        "anonymous": field("/proc/self/status", "RssAnon") * 1024,
        "sum": sum(sums),
    }
    print(json.dumps(found), flush=True)


def read_bytes() -> int:
    """Return how many bytes this process has had read from a disk."""
    return field("/proc/self/io", "read_bytes")


def field(path: str, name: str) -> int:
    """Return a number of a file of the proc file system."""
    lines = Path(path).read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{name}:")).split()[1])


def call(
    spec: dict[str, Any],
    quick: bool,
    limit_bytes: int | None,
    module: str = "benchmarks.row_order",
) -> tuple[Any, str]:
    """Run a child in a group of this size, or in none; return what it found, and how."""
    for path in Path(spec["path"]).iterdir():
        if limit_bytes is None:
            path.read_bytes()  # so that all of it is in memory
        else:
            forget(path)
    command = [*child.PYTHON, "-m", module, "--child", json.dumps(spec)]
    with contextlib.nullcontext() if limit_bytes is None else limited(limit_bytes) as limit:
        done = child.run(command, quick, enter=None if limit is None else limit.enter)
    return json.loads(done.output.splitlines()[-1]), "" if limit is None else limit.how


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = [
        [
            place, order, result.quartiles(row["seconds"]),
            size_text(int(row["bytes"]["median"])), result.number(row["time_ratio"]),
            "-" if row["bytes_ratio"] is None else result.number(row["bytes_ratio"]),
        ]
        for place, ways in found["places"].items()
        for order, row in ways.items()
    ]  # fmt: skip
    head = ["memory", "order", "seconds an epoch", "bytes read", "time / ids", "bytes / ids"]
    return [
        "",
        f"{found['nodes']:,} nodes, {DEGREE} edges a node of power-law degrees, ids shuffled;",
        f"{WIDTH} float32 features, {size_text(found['table_bytes'])}. Beyond memory: room for a",
        f"quarter of the rows, by {found['limit']}. One node in {SEED_SHARE} is a",
        f"seed; batches of {BATCH_SIZE}, fan-out {FAN_OUT}. Batches were "
        f"{'equal' if found['equal'] else 'NOT EQUAL'}. Medians of {found['rounds']} rounds.",
        "",
        *result.table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="2M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the files, 3 GB at 2M nodes")
    args = child.arguments(parser, argv, run_child)
    if args is None:
        return
    nodes = 5000 if args.quick else int(args.nodes)
    rounds, epochs = (1, 1) if args.quick else (args.rounds, 3)
    table_bytes = 4 * WIDTH * nodes
    found = result.new_result(
        "row_order", args.quick, nodes=nodes, table_bytes=table_bytes, rounds=rounds,
    )  # fmt: skip
    rows: dict[str, dict[str, list[Any]]] = {
        place: {order: [] for order in ORDERS} for place in ("within", "beyond")
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        make_graphs(Path(name), nodes)
        spec = {"epochs": epochs}
        for _ in range(rounds):
            for order in ORDERS:
                path = {"path": str(Path(name, order))}
                row, _ = call({**spec, **path}, args.quick, None)
                rows["within"][order].append(row)
                print("within", order, row, flush=True)
            needed = max(r["anonymous"] for of in rows["within"].values() for r in of)
            limit = needed + 12 * nodes * DEGREE + table_bytes // SHARE
            for order in ORDERS:
                path = {"path": str(Path(name, order))}
                row, found["limit"] = call({**spec, **path}, args.quick, limit)
                rows["beyond"][order].append(row)
                print("beyond", order, row, flush=True)
    sums = {row["sum"] for ways in rows.values() for of in ways.values() for row in of}
    found["equal"] = len(sums) == 1
    found["places"] = {place: summary(ways) for place, ways in rows.items()}
    print(result.write(found, args.out))


def medians(ways: dict[str, list[Any]]) -> dict[str, Any]:
    """Return medians and quartiles of what the rounds of each way found."""
    return {
        way: {key: spread([row[key] for row in of]) for key in ("seconds", "bytes")}
        for way, of in ways.items()
    }


def summary(ways: dict[str, list[Any]]) -> dict[str, Any]:
    """Return medians and quartiles by order, and their ratios to the order of ids."""
    found = medians(ways)
    for row in found.values():
        of_ids = found["ids"]
        row["time_ratio"] = row["seconds"]["median"] / of_ids["seconds"]["median"]
        read = of_ids["bytes"]["median"]
        row["bytes_ratio"] = row["bytes"]["median"] / read if read else None
    return found


if __name__ == "__main__":
    main()
