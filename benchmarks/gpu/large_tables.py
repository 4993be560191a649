"""Stages of `benchmarks.gpu`: tables that fill much of the host's memory, and a graph in files.

In random order nearly each row of a large table costs a walk through the tables of pages: of the
GPU, of an IOMMU, of a virtual machine. So rows are gathered from tables of several sizes, on pages
of 4 KiB and of 2 MiB, in random order, in that order by way of the sort of the package, and in
ascending order.
"""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

import pyg_direct
from benchmarks.gpu.constants import changed
from benchmarks.gpu.device import Context, Device, opened, registered
from benchmarks.statistics import spread
from pyg_direct.core.types import Table
from pyg_direct.core.units import size_text
from pyg_direct.ops.cuda.backend import LINE_BYTES
from pyg_direct.ops.host_memory import usable_bytes
from pyg_direct.ops.mappings import own_bytes

PAGES = {"4 KiB": "MADV_NOHUGEPAGE", "2 MiB": "MADV_HUGEPAGE"}
ORDERS = ("random", "sorted by the gather", "ascending")
MOST_OF_MEMORY = 0.6  # that a table may take
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
COLUMNS = 128  # of the graph in files
CHECKED_ROWS = 1000


def large_tables(context: Context) -> None:
    """Measure the sort of ids, and gathers by size of the table, pages, row length and order."""
    plan = context.plan
    with opened(context.dry) as device:
        context.keep("huge pages", HUGE_PAGES.read_text().strip() if HUGE_PAGES.exists() else "")
        ids = torch.randint(1 << 40, (plan.large_rows,), device=device.device)
        seconds = [device.timer(lambda: torch.sort(ids)) for _ in range(plan.repeats)]
        context.keep("sort", {"rows": plan.large_rows, "ms": spread([1e3 * s for s in seconds])})
        context.keep("tables", [])
        for num_bytes in plan.large_table_bytes:
            for pages, advice in PAGES.items():
                record = {"bytes": num_bytes, "pages": pages}
                room = int(MOST_OF_MEMORY * usable_bytes())
                if num_bytes > room:
                    record["left out"] = f"no more than {size_text(room)} of memory are taken"
                else:
                    record |= measure_table(context, device, num_bytes, advice)
                context.keep("tables", [*context.results["tables"], record])


def measure_table(context: Context, device: Device, num_bytes: int, advice: str) -> dict[str, Any]:
    """Measure how long a table takes to be written and registered, and gathers from it."""
    memory = mmap.mmap(-1, num_bytes // mmap.PAGESIZE * mmap.PAGESIZE)
    if hasattr(mmap, advice):
        memory.madvise(getattr(mmap, advice))
    source = torch.frombuffer(memory, dtype=torch.uint8).view(-1, LINE_BYTES)
    begin = time.perf_counter()
    words = source.view(-1).view(torch.int64)
    torch.arange(len(words), out=words)
    written = time.perf_counter()
    readable = registered(device, source).view(-1)
    found: dict[str, Any] = {
        "write_seconds": written - begin,
        "register_seconds": time.perf_counter() - written,
        "gathers": [],
    }
    for row_bytes in context.plan.large_row_bytes:
        rows = len(readable) // row_bytes
        table = readable[: rows * row_bytes].view(rows, row_bytes)
        ids = torch.randint(rows, (context.plan.large_rows,), device=device.device)
        for order in ORDERS:
            index = ids.sort().values if order == "ascending" else ids
            with changed(SORTED_TABLE_BYTES=0 if order == "sorted by the gather" else 1 << 62):
                rates = measure_order(context, device, table, index)
            record = {"row_bytes": row_bytes, "order": order, "bytes_per_second": rates}
            found["gathers"].append(record)
    return found


def measure_order(context: Context, device: Device, table: Tensor, index: Tensor) -> dict[str, Any]:
    """Return the bytes a second of a gather, after a look at what it gives."""

    def work() -> Tensor:
        return device.backend.gather([Table(table)], index, len(table))[0]

    some = slice(0, len(index), max(1, len(index) // CHECKED_ROWS))
    if not torch.equal(work()[some].cpu(), table[index[some].cpu()].cpu()):
        raise AssertionError(f"a gather of rows of {table.shape[1]} bytes gave wrong rows")
    num_bytes = len(index) * table.shape[1]
    return spread([num_bytes / device.timer(work) for _ in range(context.plan.repeats)])


def opened_graph(context: Context) -> None:
    """See whether a graph in files is copied when a GPU is to read it, and gather from it."""
    plan, folder = context.plan, context.folder / "opened"
    x = torch.arange(plan.opened_rows * COLUMNS, dtype=torch.int32).view(-1, COLUMNS)
    edges = torch.randint(plan.opened_rows, (2, 1000))
    pyg_direct.save(Data(x=x.view(torch.float32), edge_index=edges), folder)
    with opened(context.dry) as device:
        data = pyg_direct.open(folder)
        begin = time.perf_counter()
        loader = pyg_direct.NeighborLoader(
            data, [2], batch_size=8, device=device.argument, features="host"
        )
        batch = next(iter(loader))
        context.keep("first_batch_seconds", time.perf_counter() - begin)
        context.keep("placement", str(loader.placement).splitlines())
        got = batch.x.cpu().view(torch.int32)
        context.keep("right", bool(torch.equal(got, x[batch.n_id.cpu()])))
        first = data.x.data_ptr()
        context.keep("bytes", data.x.nbytes)
        context.keep("copied_bytes", own_bytes(first, first + data.x.nbytes))
        readable = registered(device, data.x)
        ids = torch.randint(plan.opened_rows, (min(plan.large_rows, plan.opened_rows),))
        index = ids.to(device.device)
        table = readable.view(torch.uint8)
        context.keep("bytes_per_second", measure_order(context, device, table, index))
