"""Stages of `benchmarks.gpu` that measure kernels: the link, rows gathered over it, sampling."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from benchmarks.cpu.contestants import endless
from benchmarks.gpu.device import Context, Device, opened, registered
from benchmarks.gpu.training import load_graph, ours_loader
from benchmarks.graphs import bare
from benchmarks.statistics import spread
from pyg_direct.batch.gather import Gatherer, tables_in
from pyg_direct.core.quantized import QuantizedTensor, quantize
from pyg_direct.core.types import Table
from pyg_direct.ops.cuda.backend import LINE_BYTES
from pyg_direct.tools.doctor.bandwidth import HostBandwidth, Rate, measure_bandwidth

CHECKED_ROWS = 1000
# What features are quantized to: name, dtype, scale.
QUANTIZED = (
    ("int8 by column", torch.int8, "column"),
    ("int8 by row", torch.int8, "row"),
    ("bfloat16", torch.bfloat16, "column"),
)
CALIBRATED = (400, 64)  # row bytes and base of the gather that is measured by number of blocks


def gather(context: Context) -> None:
    """Measure the link, the gather by row length and base, and by number of blocks."""
    plan = context.plan
    with opened(context.dry) as device:
        source = device.pinned(random_bytes(plan.bandwidth_bytes))
        link = measure_bandwidth(device.backend, source, device.timer, plan.repeats)
        context.keep("link", link_record(link))
        del source
        source = random_bytes(plan.table_bytes + 2 * LINE_BYTES).view(-1, LINE_BYTES)
        memory = registered(device, source).view(-1)
        context.keep("by_row", [])
        for row_bytes in plan.row_bytes:
            for base in plan.bases:
                table = table_at(memory, base, plan.table_bytes // row_bytes, row_bytes)
                record = measure_gather(context, device, table)
                record |= {"row_bytes": row_bytes, "base": base, "table": "host"}
                context.keep("by_row", [*context.results["by_row"], record])
        row_bytes, base = CALIBRATED
        table = table_at(memory, base, plan.table_bytes // row_bytes, row_bytes)
        record = measure_gather(context, device, table.to(device.device))
        context.keep("from_device", record | {"row_bytes": row_bytes, "table": "device"})
        allocated = device.pinned(source).view(-1)
        record = measure_gather(context, device, table_at(allocated, base, len(table), row_bytes))
        record |= {"row_bytes": row_bytes, "base": base, "table": "allocated"}
        context.keep("from_allocated", record)
        del allocated
        context.keep("by_blocks", [])
        before = device.backend.gather_blocks
        for rate in link.ladder:
            blocks = rate.threads // device.backend.block_threads
            device.backend.gather_blocks = blocks
            record = measure_gather(context, device, table) | {
                "blocks": blocks,
                "threads": rate.threads,
            }
            context.keep("by_blocks", [*context.results["by_blocks"], record])
        device.backend.gather_blocks = before


def link_record(link: HostBandwidth) -> dict[str, Any]:
    """Return a measurement of the link as numbers."""

    def rate(rate: Rate) -> dict[str, Any]:
        return {"threads": rate.threads, "bytes_per_second": spread(rate.samples)}

    return {
        "bytes": link.copy.num_bytes,
        "stream_kernel": [rate(step) for step in link.ladder],
        "copy_engine": rate(link.copy),
        "best_threads": link.best.threads,
        "enough_threads": link.enough.threads,
        "tolerance": link.tolerance,
    }


def random_bytes(size: int) -> Tensor:
    """Return uint8 [size]."""
    return torch.randint(0, 256, (size,), dtype=torch.uint8)


def table_at(memory: Tensor, base: int, rows: int, row_bytes: int) -> Tensor:
    """Return uint8 [rows, row_bytes] of `memory`, at an address that is `base` modulo 128."""
    skip = (base - memory.data_ptr()) % LINE_BYTES
    return memory[skip : skip + rows * row_bytes].view(rows, row_bytes)


def random_rows(num_rows: int, picked: int, device: torch.device) -> Tensor:
    """Return int64 [picked] of random rows, none or hardly any of them twice: caches must not help.

    Where rows are many, they are drawn: a permutation of them all could need more memory than the
    device has.
    """
    if num_rows > 16 * picked:
        return torch.randint(num_rows, (picked,), device=device)
    return torch.randperm(num_rows, device=device)[:picked].clone()


def measure_gather(context: Context, device: Device, table: Tensor) -> dict[str, Any]:
    """Measure a gather of rows in random order, after a look at what it gives.

    Several launches are timed together, so that the time to launch one is hidden by another.
    """
    plan = context.plan
    num_rows, row_bytes = table.shape
    picked = max(1, min(num_rows, plan.gather_bytes // row_bytes, plan.gather_rows))
    indices = [random_rows(num_rows, picked, device.device) for _ in range(plan.launches)]
    got = device.backend.gather([Table(table)], indices[0], len(table))[0][:CHECKED_ROWS].cpu()
    checked = table[indices[0][:CHECKED_ROWS].to(table.device)].cpu()
    if not torch.equal(got, checked):
        raise AssertionError(f"a gather of rows of {row_bytes} bytes gave wrong rows")

    def work() -> None:
        for index in indices:
            device.backend.gather([Table(table)], index, len(table))

    work()
    num_bytes = plan.launches * picked * row_bytes
    samples = [num_bytes / device.timer(work) for _ in range(plan.repeats)]
    return {"rows": picked, "bytes_per_second": spread(samples)}


def quantized(context: Context) -> None:
    """Measure rows a second of float32 features and of quantized ones, by where they lie."""
    plan = context.plan
    x = torch.randn(plan.table_bytes // (4 * plan.num_features), plan.num_features)
    tables: dict[str, Tensor] = {"float32": x}
    for name, dtype, scale in QUANTIZED:
        tables[name] = quantize(x, dtype, scale=scale)
    with opened(context.dry) as device:
        for place in ("host", "device"):
            context.keep(place, {})
            for name, table in tables.items():
                placed = placed_at(device, place, name, table)
                record = measure_attribute(context, device, placed)
                context.keep(place, context.results[place] | {name: record})


def placed_at(device: Device, place: str, name: str, table: Tensor) -> Tensor:
    """Return an attribute whose tables lie on the host, registered, or on the device."""
    parts = tables_in(table)
    if place == "host":
        device.backend.memory.place_tables([(name, part) for part in parts], place)
        return table
    moved = [part.to(device.device) for part in parts]
    return QuantizedTensor(*moved) if isinstance(table, QuantizedTensor) else moved[0]


def measure_attribute(context: Context, device: Device, table: Tensor) -> dict[str, Any]:
    """Measure a gather of rows of an attribute, decoded, after a look at what it gives."""
    plan, gatherer = context.plan, Gatherer(device.backend)
    picked = max(1, min(len(table), plan.gather_rows, plan.gather_bytes // (4 * table.shape[1])))
    index = random_rows(len(table), picked, device.device)
    got = gatherer.rows(table, index, 0, len(table))[:CHECKED_ROWS].cpu()
    if not torch.equal(got, as_float32(table, index[:CHECKED_ROWS].to(table.device)).cpu()):
        raise AssertionError(f"a gather of {table.dtype} rows on {table.device} gave wrong rows")

    def work() -> None:
        for _ in range(plan.launches):
            gatherer.rows(table, index, 0, len(table))

    work()
    rows = plan.launches * picked
    samples = [rows / device.timer(work) for _ in range(plan.repeats)]
    return {
        "rows": picked,
        "row_bytes": sum(part[:1].nbytes for part in tables_in(table) if len(part) == len(table)),
        "rows_per_second": spread(samples),
    }


def as_float32(table: Tensor, index: Tensor) -> Tensor:
    """Return rows of an attribute as torch selects and decodes them."""
    return table.rows_at(index) if isinstance(table, QuantizedTensor) else table[index]


def sampling(context: Context) -> None:
    """Measure sampled edges a second, with the topology in host and in device memory."""
    data, train = load_graph(context.folder)
    data = bare(data)
    with opened(context.dry) as device:
        for place in ("host", "device"):
            loader = ours_loader(context, device, data, train, topology=place, prefetch=0)
            record = measure_sampling(context, device, loader)
            context.keep(place, record | {"placement": str(loader.placement)})


def measure_sampling(context: Context, device: Device, loader: Any) -> dict[str, Any]:
    """Measure the edges a second of a loader over a graph without attributes."""
    plan, batches, edges = context.plan, endless(loader), 0

    def work() -> None:
        nonlocal edges
        edges = 0
        for _ in range(plan.batches):
            edges += next(batches).num_edges

    for _ in range(plan.warmup):
        next(batches)
    samples, of_batch = [], []
    for _ in range(plan.rounds):
        device.settle()
        seconds = device.timer(work)
        samples.append(edges / seconds)
        of_batch.append(edges / plan.batches)
    return {"edges_per_second": spread(samples), "edges_per_batch": spread(of_batch)}
