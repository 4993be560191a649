"""Who waits for whom: tables that change, streams of the consumer, iterators broken off."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import torch
from conformance import homogeneous, run

import pyg_direct
from pyg_direct.core.types import Table
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.backend import CudaBackend

from .. import loaders, standin
from ..batches import difference, epoch, take

GIVEN = {"num_neighbors": [5, 3], "input_nodes": torch.arange(loaders.SEEDS), **loaders.COMMON}
Outcomes = Iterator[tuple[str, str]]
# Whose deletion waits for nothing: host memory that a GPU reads is freed only behind a wait.
NOTHING_ON_HOST = "ids and all else on the device"
ALL_ON_DEVICE = {"ids": "device", "features": "device", "topology": "device"}
BY_ID = {
    "node": ("host", "cache", "no prefetch", "2 workers"), "heterogeneous": ("host", "cache"),
    "node, quantized": ("host", "cache"), "link": ("host",), "ShaDow": ("default",),
}  # fmt: skip
PRODUCERS = "pyg_direct-producer"  # beginning of the names of their threads
TIMES_DELETED = 20  # of which a random schedule shows some
SIZES_OF_ARRAYS = (30_000, 120_000, 240_000, 440_008, 880_008, 1_300_000, 8_800_000, 35_200_000)


def first_batch(schedule: str) -> Outcomes:
    """Graph and tables are placed while the consumer's stream has work to do."""
    expected = epoch(pyg_direct.NeighborLoader(loaders.graph(), device="cpu", **GIVEN))
    for where in (loaders.DEFAULT, loaders.HOST, {"features": "device", "topology": "device"}):
        loader = pyg_direct.NeighborLoader(loaders.graph(), device="cuda", **GIVEN, **where)
        yield str(where), difference(epoch(loader), expected)


def queued_write(schedule: str) -> Outcomes:
    """What the consumer has queued on its stream when it asks for a batch is in that batch.

    After a first epoch, which places tables and waits for the device. With data on a GPU the
    consumer gathers, on its own stream, unless `filter_per_worker` says otherwise.
    """
    fresh = [torch.rand(loaders.NODES, loaders.FEATURES) for _ in range(6)]
    for given in ({"prefetch": 0}, {}, {"filter_per_worker": True}):
        found: dict[str, list[Any]] = {"cpu": [], "cuda": []}
        for device, epochs in found.items():
            standin.set_schedule("eager")
            data = loaders.graph(loaders.NODES)
            data.x = data.x.to(device)
            loader = pyg_direct.NeighborLoader(data, device=device, **GIVEN, **given)
            epoch(loader)
            values = [value.pin_memory() if device == "cuda" else value for value in fresh]
            standin.set_schedule(schedule)
            for value in values:
                data.x.copy_(value, non_blocking=True)
                epochs.append(epoch(loader))
        for number, pair in enumerate(zip(found["cuda"], found["cpu"], strict=True)):
            yield f"{given}, write {number}", difference(*pair)


def changed_table(schedule: str) -> Outcomes:
    """A table is changed in place between epochs, whose batches are still to be made and read.

    Only a GPU that reads the table where it lies must have done so before (limits.md says it).
    """
    for features in ("device", "host"):
        found: dict[str, list[Any]] = {}
        for device in ("cpu", "cuda"):
            data = loaders.graph()
            where = {"features": features} if device == "cuda" else {}
            loader = pyg_direct.NeighborLoader(data, device=device, **GIVEN, **where)
            taken = []
            for _ in range(3):
                taken.append([take(batch) for batch in loader])
                if features == "host":
                    torch.cuda.synchronize()
                data.x.mul_(2)
            torch.cuda.synchronize()
            found[device] = taken
        for number, pair in enumerate(zip(found["cuda"], found["cpu"], strict=True)):
            yield f"features={features}, epoch {number}", difference(*pair)
    yield "read on another stream", _changed_while_read()


def _changed_while_read() -> str:
    """One stream is still to gather from a copy when another one finds the table changed."""
    table = torch.full((4000, 64), 7.0)
    backend = CudaBackend(torch.device("cuda"))
    backend.memory.place_tables([("x", table)], "device")
    index = (torch.arange(2000) * 7 % len(table)).cuda()
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream()):
        old = backend.gather([Table(backend.memory.readable(table))], index, len(table))[0]
    table.fill_(1)
    with torch.cuda.stream(torch.cuda.Stream()):
        new = backend.gather([Table(backend.memory.readable(table))], index, len(table))[0]
    torch.cuda.synchronize()
    right = bool((old.cpu() == 7).all()) and bool((new.cpu() == 1).all())
    return "" if right else "other values"


def streams_of_the_consumer(schedule: str) -> Outcomes:
    """The consumer iterates on a stream of its own, and on another one for each batch."""
    expected = epoch(loaders.on_cpu("node"))
    with torch.cuda.stream(torch.cuda.Stream()):
        found = epoch(loaders.loader("node", "default", device="cuda"))
    yield "one stream", difference(found, expected)
    streams = [torch.cuda.Stream() for _ in range(3)]
    iterator, taken = iter(loaders.loader("node", "default", device="cuda")), []
    for number in range(len(expected)):
        with torch.cuda.stream(streams[number % 3]):
            taken.append(take(next(iterator)))
    torch.cuda.synchronize()
    yield "one of three in turn", difference(taken, expected)


def inline_streams(schedule: str) -> Outcomes:
    """Batches are made on the consumer's stream, which is another one for each of them.

    What one of them is made in waits for no other stream, so no two streams may share it.
    """
    expected = epoch(loaders.on_cpu("node"))
    streams = [torch.cuda.Stream() for _ in range(3)]
    for where in (ALL_ON_DEVICE, {"ids": "device", **loaders.HOST}):
        loader = loaders.KINDS["node"].make(device="cuda", prefetch=0, **where)
        iterator, taken = iter(loader), []
        for number in range(len(expected)):
            with torch.cuda.stream(streams[number % 3]):
                taken.append(take(next(iterator)))
        torch.cuda.synchronize()
        yield str(where), difference(taken, expected)


def rows_by_id(schedule: str) -> Outcomes:
    """Rows of tables in host memory are read by ascending ids, however small the table is."""
    limit, tuning.SORTED_TABLE_BYTES = tuning.SORTED_TABLE_BYTES, 0
    try:
        for kind, places in BY_ID.items():
            standin.set_schedule("eager")
            expected = epoch(loaders.on_cpu(kind))
            standin.set_schedule(schedule)
            for place in places:
                found = epoch(loaders.loader(kind, place, device="cuda"))
                yield f"{kind}, {place}", difference(found, expected)
    finally:
        tuning.SORTED_TABLE_BYTES = limit


def shared_sampler(schedule: str) -> Outcomes:
    """Two loaders over one sampler, batch by batch in turn."""
    found = []
    for device in ("cpu", "cuda"):
        data = loaders.graph()
        sampler = pyg_direct.NeighborSampler(data, num_neighbors=[5, 3], device=device, seed=3)
        both = [
            pyg_direct.NeighborLoader(
                data,
                num_neighbors=None,
                neighbor_sampler=sampler,
                input_nodes=torch.arange(loaders.SEEDS) + first,
                device=device,
                **loaders.COMMON,
            )
            for first in (0, 1000)
        ]
        found.append([take(batch) for pair in zip(*both, strict=True) for batch in pair])
        torch.cuda.synchronize()
    yield "two loaders", difference(found[1], found[0])


def broken_off(schedule: str) -> Outcomes:
    """Iterators are dropped with batches under way; a whole epoch follows."""
    expected = epoch(loaders.on_cpu("node"))
    for place in loaders.PLACES:
        loader = loaders.loader("node", place, device="cuda")
        for number in (1, 2, 3):
            iterator = iter(loader)
            for _ in range(number):
                next(iterator)
            del iterator
        del loader
        gc.collect()
        again = loaders.loader("node", place, device="cuda")
        yield place, difference(epoch(again), expected)


def deleted_loader(schedule: str) -> Outcomes:
    """The loader and its data go while batches are still to be made, and new memory is taken."""
    for kind in ("node", "node, quantized"):
        standin.set_schedule("eager")
        expected = epoch(loaders.on_cpu(kind))
        standin.set_schedule(schedule)
        for place in ("device", "default", "ids on the device", NOTHING_ON_HOST):
            where = ALL_ON_DEVICE if place == NOTHING_ON_HOST else loaders.PLACES[place]
            loader = loaders.KINDS[kind].make(device="cuda", prefetch=4, **where)
            iterator = iter(loader)
            del loader
            with torch.cuda.stream(torch.cuda.Stream()):  # for which no other one waits
                taken = [take(batch) for batch in iterator]
            del iterator
            _wait_for_producers()
            gc.collect()
            others = [
                torch.full((size,), 7, dtype=torch.uint8, device="cuda")
                for size in SIZES_OF_ARRAYS * 3
            ]
            torch.cuda.current_stream().synchronize()  # before what the loader's streams have left
            torch.cuda.synchronize()
            yield f"{kind}, {place}", difference(taken, expected)
            del others


def _wait_for_producers() -> None:
    """Wait until producers of iterators that are gone have let go of the loader."""
    for thread in threading.enumerate():
        if thread.name.startswith(PRODUCERS):
            thread.join()


def ids_of_the_consumer(schedule: str) -> Outcomes:
    """A transform's own ids are copied to the host, and dropped."""

    def renumber(batch: Any) -> Any:
        batch.n_id = batch.n_id.flip(0)
        return batch

    given = {"transform": renumber}
    expected = epoch(loaders.on_cpu("node", **given))
    for place in loaders.FEW:
        found = epoch(loaders.loader("node", place, device="cuda", **given))
        yield place, difference(found, expected)


def _gathered(table: torch.Tensor) -> tuple[CudaBackend, torch.Tensor]:
    """Return a backend, and rows that are still to be gathered from a table in host memory."""
    backend = CudaBackend(torch.device("cuda"))
    index = (torch.arange(2000) * 7 % len(table)).cuda()
    backend.memory.place_tables([("x", table)], "host")
    readable = backend.memory.readable(table)
    assert readable is not None
    return backend, backend.gather([Table(readable)], index, len(table))[0]


def deleted_graph(schedule: str) -> Outcomes:
    """A graph goes with its workspace while edges of a batch are still to be written.

    Its memory, which is of another stream than the batch, is taken again at once.
    """
    case = homogeneous([5, 3], num_nodes=2000, num_edges=20_000)
    (expected,) = run(CpuBackend(), case)
    backend = CudaBackend(torch.device("cuda"))
    for number in range(TIMES_DELETED):
        csc = backend.memory.place_graph(case.csc, "device")
        sizes = [array.nbytes for _, array in csc.arrays()]
        with torch.cuda.stream(torch.cuda.Stream()):
            sampled = backend.workspace(csc, case.plan).sample(case.seeds, case.key, case.rules)
        del csc
        gc.collect()
        others = [torch.full((size,), 7, dtype=torch.uint8, device="cuda") for size in sizes * 2]
        torch.cuda.current_stream().synchronize()
        torch.cuda.synchronize()
        same = sampled is not None and torch.equal(sampled.edge[0].cpu(), expected.edge[0])
        yield f"batch {number}", "" if same else "other edges"
        del others


def _all_sevens(rows: torch.Tensor) -> str:
    return "" if bool((rows.cpu() == 7).all()) else "other values"


def deleted_while_read(schedule: str) -> Outcomes:
    """The last reference to a table goes while rows of it are still to be read."""
    for what, size in (("registered", 150_000), ("pinned copy", 4000)):
        for _ in range(3):
            table = torch.full((size, 64), 7.0)
            backend, rows = _gathered(table)
            del table, backend
            gc.collect()
            yield what, _all_sevens(rows)


def moved_while_read(schedule: str) -> Outcomes:
    """A registered table moves to shared memory while rows of it are still to be read.

    NumPy keeps the old memory: of what torch frees no values can be expected.
    """
    old = torch.full((150_000, 64), 7.0).numpy()  # its memory stays
    table = torch.from_numpy(old)
    backend, rows = _gathered(table)
    table.share_memory_()
    backend.memory.readable(torch.full((150_000, 64), 1.0))  # leases, and so looks for moved ones
    yield "shared", _all_sevens(rows)


CHECKS = (
    first_batch,
    queued_write,
    changed_table,
    streams_of_the_consumer,
    inline_streams,
    rows_by_id,
    shared_sampler,
    broken_off,
    deleted_loader,
    deleted_graph,
    ids_of_the_consumer,
    deleted_while_read,
    moved_while_read,
)
