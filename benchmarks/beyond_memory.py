"""Batches from a feature table of four times the memory that a process may use.

Ours over a saved graph against PyG's NeighborLoader over `np.memmap`, each in a process of its own
in a control group of a quarter of the table, its pages dropped from the system's cache before. Our
batches are compared, bit for bit, with those of the graph in memory and rows that are read one by
one. Rounds are interleaved.

    python -m benchmarks beyond_memory --folder /tmp
"""

from __future__ import annotations

import json
import os
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch_geometric.loader
from torch_geometric.data import Data

import pyg_direct
from benchmarks import child, result
from benchmarks.memory_group import limited
from benchmarks.statistics import spread
from pyg_direct.core.units import count_of, size_text
from pyg_direct.files.header import read_header

TITLE = "Features beyond memory"
WIDTH, DEGREE = 768, 3
FAN_OUT, BATCH_SIZE = [10, 5], 512
SHARE = 4  # the limit is the table divided by this
OURS = "pyg_direct"
WORKERS = {OURS: 2, f"{OURS}, one thread": 0, "PyG": 0, "PyG, 2 workers": 2}
QUICK_WAYS = (OURS, "PyG")


def make_graph(folder: Path, nodes: int) -> None:
    """Save a graph, and its features as they are for `np.memmap`."""
    rng = np.random.default_rng(0)
    edges = (rng.random((2, nodes * DEGREE)) ** 2 * nodes).astype(np.int64)
    np.save(folder / "edges.npy", edges)
    path = folder / "x.npy"
    x = np.lib.format.open_memmap(path, "w+", np.float32, (nodes, WIDTH))
    for first in range(0, nodes, 1 << 14):
        rows = x[first : first + (1 << 14)]
        rows[:] = rng.standard_normal(rows.shape, np.float32)
    x.flush()
    data = Data(
        x=torch.from_numpy(np.load(path, mmap_mode="c")), edge_index=torch.from_numpy(edges)
    )
    pyg_direct.save(data, folder / "graph")


def forget(path: Path) -> None:
    """Drop the pages of a file from the system's cache."""
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(handle)


def run_child(spec: dict[str, Any]) -> None:
    """Load batches for some time; print how many a second, and checksums of the first."""
    folder, name = Path(spec["folder"]), spec["name"]
    seeds = torch.from_numpy(np.random.default_rng(1).integers(spec["nodes"], size=1 << 17))
    options = {"batch_size": BATCH_SIZE, "num_workers": WORKERS[name]}
    loader: Iterable[Any]
    if name.startswith(OURS):
        opened: Any = pyg_direct.open(folder / "graph")
        loader = pyg_direct.NeighborLoader(opened, FAN_OUT, seeds, seed=0, **options)
    else:
        data = Data(
            x=torch.from_numpy(np.load(folder / "x.npy", mmap_mode="c")),
            edge_index=torch.from_numpy(np.load(folder / "edges.npy")),
        )
        loader = torch_geometric.loader.NeighborLoader(data, FAN_OUT, seeds, **options)
    sums, rows, batches = [], 0, 0
    begin = time.perf_counter()
    for batch in loader:
        rows, batches = rows + batch.num_nodes, batches + 1
        if batches <= spec["compared"]:
            sums.append(batch_sum(batch.x.numpy(), batch))
        if time.perf_counter() - begin >= spec["seconds"]:
            break
    seconds = time.perf_counter() - begin
    print(
        json.dumps({"rows_a_second": rows / seconds, "batches": batches, "sums": sums}), flush=True
    )
    os._exit(0)  # without waiting for batches that are made ahead


def batch_sum(x: Any, batch: Any) -> int:
    """Return a checksum of a batch."""
    found = zlib.crc32(np.ascontiguousarray(x).data)
    for part in (batch.n_id, batch.edge_index, batch.e_id):
        found = zlib.crc32(part.contiguous().numpy().data, found)
    return found


def expected_sums(folder: Path, nodes: int, count: int) -> list[int]:
    """Return the checksums of batches from edges in memory, with rows that are read one by one."""
    header = read_header(folder / "graph")
    opened: Any = pyg_direct.open(folder / "graph")
    data = Data(edge_index=opened.edge_index.dense(), num_nodes=nodes)
    seeds = torch.from_numpy(np.random.default_rng(1).integers(nodes, size=1 << 17))
    loader = pyg_direct.NeighborLoader(
        data, FAN_OUT, seeds[: BATCH_SIZE * count], batch_size=BATCH_SIZE, seed=0
    )
    row_bytes, sums = 4 * WIDTH, []
    with open(folder / "graph" / header.nodes[0].attributes["x"].file, "rb", buffering=0) as file:
        for batch in loader:
            rows = [os.pread(file.fileno(), row_bytes, i * row_bytes) for i in batch.n_id.tolist()]
            sums.append(batch_sum(np.frombuffer(b"".join(rows), np.float32), batch))
    return sums


def call(spec: dict[str, Any], quick: bool, enter: Callable[[int], None]) -> dict[str, Any]:
    """Run a contestant in a process of its own."""
    command = [*child.PYTHON, "-m", "benchmarks.beyond_memory", "--child", json.dumps(spec)]
    done = child.run(command, quick, enter=enter)
    found: dict[str, Any] = json.loads(done.output.splitlines()[-1])
    return found


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows = [
        [name, str(WORKERS[name]), result.quartiles(row),
         result.number(found["ways"][OURS]["median"] / row["median"])]
        for name, row in found["ways"].items()
    ]  # fmt: skip
    return [
        "",
        f"{found['nodes']:,} nodes with {WIDTH} float32 features, "
        f"{size_text(found['table_bytes'])}; limit {size_text(found['limit_bytes'])}, by",
        f"{found['limit']}. Batches of {BATCH_SIZE} seeds, fan-out {FAN_OUT}. Up to",
        f"{found['compared']} batches of each of our runs were "
        f"{'bit-equal' if found['equal'] else 'NOT EQUAL'} to those in memory. Rows a second:",
        "median and quartiles of the rounds.",
        "",
        *result.table(["loader", "workers", "rows a second", "ours is faster by"], rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="1.4M")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=12.0, help="of one run")
    parser.add_argument("--folder", type=Path, help="for the files, 9 GB at 1.4M nodes")
    args = child.arguments(parser, argv, run_child)
    if args is None:
        return
    nodes = 3000 if args.quick else int(args.nodes)
    rounds, seconds = (1, 0.5) if args.quick else (args.rounds, args.seconds)
    compared = 3
    table_bytes = nodes * WIDTH * 4
    limit_bytes = max(table_bytes // SHARE, 10**9 if args.quick else 0)
    found = result.new_result(
        "beyond_memory", args.quick, nodes=nodes, table_bytes=table_bytes, limit_bytes=limit_bytes,
        compared=compared, equal=True,
    )  # fmt: skip
    ways = QUICK_WAYS if args.quick else tuple(WORKERS)
    speeds: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        make_graph(folder, nodes)
        expected = expected_sums(folder, nodes, compared)
        for _ in range(rounds):
            for way in ways:
                for path in [folder / "x.npy", *(folder / "graph").iterdir()]:
                    forget(path)
                spec = {"folder": name, "name": way, "nodes": nodes, "seconds": seconds}
                with limited(limit_bytes) as limit:
                    row = call({**spec, "compared": compared}, args.quick, limit.enter)
                found["limit"] = limit.how
                speeds[way].append(row["rows_a_second"])
                if way.startswith(OURS):
                    found["equal"] &= row["sums"] == expected[: len(row["sums"])]
                print(way, row, flush=True)
    found["ways"] = {way: spread(values) for way, values in speeds.items()}
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
