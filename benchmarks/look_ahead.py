"""Pages of rows in files that are asked for before their batch is made, against today's reads.

The package asks for the pages of a batch when it copies its rows: all at once, in the order of the
file. Here the ids of later batches are known beforehand, at no cost, as no program could know them:
what that does not gain, no look-ahead gains. Each way is a process of its own, in a control group
that has room for what the process itself needs (a producer holds batches that are ready), the
neighbour lists, and a quarter of the rows. One epoch goes unmeasured, then bytes read from the disk
and time are counted. Rounds are interleaved, and the batches are the same bits.

    python -m benchmarks look_ahead --folder /tmp
"""

from __future__ import annotations

import json
import mmap
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import pyg_direct
from benchmarks import child, result
from benchmarks.row_order import (
    DEGREE,
    SHARE,
    WIDTH,
    call,
    field,
    loader_of,
    make_graphs,
    medians,
    read_bytes,
)
from pyg_direct.batch.assemble import node_tables_of
from pyg_direct.core.units import count_of, size_text
from pyg_direct.kernels.gather import pages_of_rows, request_pages

MODULE = "benchmarks.look_ahead"
TITLE = "Pages of files that are asked for ahead of their batch"
ORDERS = ("ids", "loader")  # of rows in the file
WAYS = {  # how many batches are asked for ahead, and at once; workers
    "today": (0, 1, 0),
    "the next batch, by madvise": (1, 1, 0),
    "the next batch, by posix_fadvise": (1, 1, 0),
    "four batches at once": (0, 4, 0),
    "today, one producer": (0, 1, 1),
    "the next batch, one producer": (1, 1, 1),
}
PAYS = 1.1  # times as fast as today: less is not worth a line of code

Ints = npt.NDArray[np.int64]


def asking(folder: Path, data: Any, by_file: bool) -> Callable[[Sequence[Ints]], None]:
    """Return what asks the system to read the pages of the rows of some batches, in file order."""
    (table, positions), *_ = (
        (table, positions)
        for _, name, table, positions in node_tables_of(data)
        if name == "data.x" and table.dim() == 2
    )
    page, row_bytes = mmap.PAGESIZE, table.nbytes // len(table)
    base, phase = table.data_ptr() // page * page, table.data_ptr() % page
    (path,) = (p for p in folder.iterdir() if p.stat().st_size == table.nbytes)
    handle = os.open(path, os.O_RDONLY)

    def ask(batches: Sequence[Ints]) -> None:
        ids = np.concatenate(batches)
        rows = ids if positions is None else positions.numpy()[ids]
        out = np.empty(len(rows) * (row_bytes // page + 2), np.int64)
        count = pages_of_rows(rows.astype(np.int64), len(table), row_bytes, phase, page, out)
        wanted = np.unique(out[:count])
        if not by_file:
            request_pages(base, wanted, page)
            return
        breaks = np.flatnonzero(np.diff(wanted) != 1) + 1
        for first, last in zip([0, *breaks], [*breaks, len(wanted)], strict=True):
            start, length = int(wanted[first]) * page, int(last - first) * page
            os.posix_fadvise(handle, start, length, os.POSIX_FADV_WILLNEED)

    return ask


def run_child(spec: dict[str, Any]) -> None:
    """Load some epochs; print seconds and bytes read by all but the first, and memory."""
    folder, way = Path(spec["path"]), spec["way"]
    ahead, at_once, workers = WAYS[way]
    opened: Any = pyg_direct.open(folder)
    lists: Any = pyg_direct.open(folder)
    del lists.x
    epochs = spec["epochs"] + 1
    known = [
        [b.n_id.numpy() for b in loader] for loader in [loader_of(lists)] for _ in range(epochs)
    ]
    ask = asking(folder, opened, "fadvise" in way)
    loader = loader_of(opened, num_workers=workers)
    total = 0.0
    for epoch, ids in enumerate(known):
        if epoch == 1:
            begin, read = time.perf_counter(), read_bytes()
        batches = iter(loader)
        for i in range(len(ids)):
            if at_once > 1 and i % at_once == 0:
                ask(ids[i : i + at_once])
            if ahead and i + ahead < len(ids):
                ask(ids[i + ahead : i + ahead + 1])
            batch = next(batches)
            assert len(batch.n_id) == len(ids[i])
            total += float(batch.x[0, 0])
    found = {
        "seconds": (time.perf_counter() - begin) / spec["epochs"],
        "bytes": (read_bytes() - read) / spec["epochs"],
        "anonymous": field("/proc/self/status", "RssAnon") * 1024,
        "sum": total,
    }
    print(json.dumps(found), flush=True)


def sections(found: dict[str, Any]) -> list[str]:
    """Return the report."""
    rows, best = [], 0.0
    for order, ways in found["orders"].items():
        for way, row in ways.items():
            base = ways["today, one producer" if WAYS[way][2] else "today"]
            gain = base["seconds"]["median"] / row["seconds"]["median"]
            best = max(best, gain)
            rows.append(
                [order, way, result.quartiles(row["seconds"]),
                 size_text(int(row["bytes"]["median"])), f"{gain:.2f}"]
            )  # fmt: skip
    verdict = (
        f"One is {best:.2f} times as fast as today's."
        if best >= PAYS
        else f"None is {PAYS} times as fast as today's, so none is in the package."
    )
    head = ["rows in the order of", "asked for", "seconds an epoch", "bytes read", "times as fast"]
    return [
        "",
        f"{found['nodes']:,} nodes, {DEGREE} edges a node of power-law degrees, ids shuffled;",
        f"{WIDTH} float32 features, {size_text(found['table_bytes'])}. Room for a quarter of the",
        f"rows, by {found['limit']}. Batches were "
        f"{'equal' if found['equal'] else 'NOT EQUAL'}. Medians of {found['rounds']} rounds.",
        "Ids of later batches are known beforehand, and the loop does nothing with a batch.",
        verdict,
        "",
        *result.table(head, rows),
    ]


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark."""
    parser = result.parser(__doc__)
    parser.add_argument("--nodes", type=count_of, default="400k")
    parser.add_argument("--order", choices=ORDERS, action="append", help="all unless given")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="for the files, 0.8 GB at 400k nodes")
    args = child.arguments(parser, argv, run_child)
    if args is None:
        return
    nodes = 5000 if args.quick else int(args.nodes)
    rounds, epochs = (1, 1) if args.quick else (args.rounds, 2)
    table_bytes = 4 * WIDTH * nodes
    found = result.new_result(
        "look_ahead", args.quick, nodes=nodes, table_bytes=table_bytes, rounds=rounds, orders={}
    )  # fmt: skip
    rows: dict[str, dict[str, list[Any]]] = {
        order: {way: [] for way in WAYS} for order in args.order or ORDERS
    }
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        make_graphs(Path(name), nodes)
        needed = {}
        for way in ("today", "today, one producer"):
            spec = {"epochs": epochs, "path": str(Path(name, "ids")), "way": way}
            needed[WAYS[way][2]] = call(spec, args.quick, 1 << 33, MODULE)[0]["anonymous"]
        room = 12 * nodes * DEGREE + table_bytes // SHARE
        for _ in range(rounds):
            for order, ways in rows.items():
                for way, of_way in ways.items():
                    spec = {"epochs": epochs, "path": str(Path(name, order)), "way": way}
                    limit = needed[WAYS[way][2]] + room
                    row, found["limit"] = call(spec, args.quick, limit, MODULE)
                    of_way.append(row)
                    print(order, way, row, flush=True)
    found["equal"] = (
        len({row["sum"] for ways in rows.values() for of in ways.values() for row in of}) == 1
    )
    found["orders"] = {order: medians(ways) for order, ways in rows.items()}
    print(result.write(found, args.out))


if __name__ == "__main__":
    main()
