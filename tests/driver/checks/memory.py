"""What is held, what is given back, and what happens where there is not enough."""

from __future__ import annotations

import gc
import tempfile
import warnings
from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch

import pyg_direct
from pyg_direct.core.types import Table
from pyg_direct.ops.mappings import own_bytes
from pyg_direct.ops.placement import REGISTERED

from .. import loaders, standin
from ..batches import difference, epoch

Outcomes = Iterator[tuple[str, str]]
FOR_FILES = {"num_neighbors": [3], "batch_size": 500, "input_nodes": torch.arange(2000), "seed": 3}
OUT_OF_MEMORY = "cudaErrorMemoryAllocation"  # as torch says it of an allocator without a cache
# Of pools that torch's allocators keep, by device. They grow with the most that were ever in use at
# the same time, which the first loaders and the first batches do not show.
EVENTS_OF_POOLS = 64


def _held() -> dict[str, int]:
    """Return what there is once all that can go has gone."""
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch._C._host_emptyCache()
    return {**standin.holdings(), "bytes": torch.cuda.memory_allocated()}


def _growth(before: dict[str, int], after: dict[str, int]) -> str:
    """Return what there is more of, or ""."""
    more = {name: after[name] - before[name] for name in before}
    allowed = {"events": EVENTS_OF_POOLS}
    return ", ".join(f"{n} {name}" for name, n in more.items() if n > allowed.get(name, 0))


def nothing_left(schedule: str) -> Outcomes:
    """After `del` nothing is registered, and one loader after another holds no more."""
    for place in loaders.PLACES:
        held = []
        for _ in range(3):
            standin.counts(reset=True)
            loader = loaders.loader("node", place, device="cuda")
            epoch(loader)
            epoch(loader)
            del loader
            held.append(_held())
            calls = standin.counts()
        yield f"{place}: growth", _growth(held[1], held[2])
        yield f"{place}: registered", str(held[2]["registered"] or "")
        done, undone = (calls.get(f"host memory: {what}", 0) for what in ("register", "unregister"))
        yield f"{place}: pairs", "" if done == undone else f"{done} registered, {undone} undone"


def registered_once(schedule: str) -> Outcomes:
    """A table is registered once, however many loaders read it."""
    data = loaders.graph()
    _held()
    standin.counts(reset=True)
    given = {"num_neighbors": [2], "batch_size": 100, "device": "cuda", **loaders.HOST}
    three = [pyg_direct.NeighborLoader(data, **given) for _ in range(3)]
    for loader in three:
        next(iter(loader))
    found = standin.counts().get("host memory: register", 0)
    yield "three loaders of one large table", "" if found == 1 else f"{found} registrations"


def a_thousand_batches(schedule: str) -> Outcomes:
    """1,000 batches of one loader hold no more than the first 200."""
    given = {"num_neighbors": [2], "batch_size": 2, "input_nodes": torch.arange(400), "seed": 3}
    loader = pyg_direct.NeighborLoader(loaders.graph(), device="cuda", **given)
    held = []
    for _ in range(5):
        for batch in loader:
            del batch
        held.append(_held())
    yield "growth", _growth(held[0], held[-1])


def a_hundred_loaders(schedule: str) -> Outcomes:
    """100 loaders, one after another, hold no more than the 50 before them, in which pools grew."""
    held = []
    for number in range(150):
        loader = pyg_direct.NeighborLoader(
            loaders.graph(), [2], batch_size=8, input_nodes=torch.arange(16), device="cuda", seed=3
        )
        for batch in loader:
            del batch
        del loader
        if number in (49, 149):
            held.append(_held())
    yield "growth", _growth(*held)


def out_of_memory(schedule: str) -> Outcomes:
    """Each allocation of device memory for a batch is refused once; the next epoch is right.

    Of every kind of loader. Each tensor is an allocation of its own (the worker sees to it).
    """
    for kind in loaders.KINDS:
        yield kind, _refused_in_turn(kind, standin.DEVICE_MEMORY)


def _refused_in_turn(kind: str, what: int) -> str:
    def one_batch(device: str) -> object:
        if kind in loaders.APART:
            return loaders.KINDS[kind].make(device=device)
        return loaders.KINDS[kind].make(device=device, batch_size=1000)

    cpu, gpu = one_batch("cpu"), one_batch("cuda")
    expected, found = epoch(cpu), epoch(gpu)
    problem = difference(found, expected)
    number = 0
    while not problem:
        expected = epoch(cpu)
        with standin.refused(what, first=number, number=1) as seen:
            try:
                problem = difference(epoch(gpu), expected)
                raised = False  # or it could do without
            except RuntimeError as error:
                raised = True
                problem = "" if OUT_OF_MEMORY in str(error) else str(error)
            reached = seen() > number
        if raised and not problem:
            problem = difference(epoch(gpu), epoch(cpu))
        if not reached:
            return problem
        number += 1
    return f"allocation {number}: {problem}"


def out_of_memory_at_construction(schedule: str) -> Outcomes:
    """All allocations are refused from one on, while a loader is built; the next one is right."""
    expected = epoch(loaders.on_cpu("node"))
    number, reached = 0, True
    while reached:
        torch.cuda.empty_cache()
        problem = ""
        with standin.refused(standin.DEVICE_MEMORY, first=number, number=1_000_000) as seen:
            try:
                loader = loaders.loader("node", "default", device="cuda")
                problem = difference(epoch(loader), expected)
                del loader
            except torch.OutOfMemoryError:
                pass
            reached = seen() > number
        gc.collect()
        again = difference(epoch(loaders.loader("node", "default", device="cuda")), expected)
        yield f"from allocation {number} on", problem or again
        number += 1


def refused_registration(schedule: str) -> Outcomes:
    """What cannot be registered is copied, or the CPU selects its rows; a warning says so."""
    expected = epoch(loaders.on_cpu("node"))
    for times in (1, 1000):
        with (
            standin.refused(standin.REGISTRATION, 0, times) as seen,
            warnings.catch_warnings(record=True) as warned,
        ):
            warnings.simplefilter("always")
            found = epoch(loaders.loader("node", "host", device="cuda"))
            reached = seen()
        problem = difference(found, expected)
        if not reached:
            problem = "nothing was to be registered"
        elif not any(issubclass(warning.category, RuntimeWarning) for warning in warned):
            problem = "no warning"
        yield f"{times} times", problem


def neighbours_on_a_page(schedule: str) -> Outcomes:
    """Tables that share pages with each other."""
    memory = torch.arange(30_000_000, dtype=torch.float32).numpy()
    parts = [
        torch.from_numpy(memory[first:last]).view(-1, 10)
        for first, last in pairwise([0, 9_000_010, 18_000_020, 30_000_000])
    ]
    index = torch.arange(0, 100_000, 3)
    for place in ("host", "device"):
        backend = pyg_direct.ops.devices.backend_for(torch.device("cuda"))
        for number, table in enumerate(parts):
            backend.memory.place_tables([(f"part {number}", table)], place)
        for number, table in enumerate(parts):
            readable = backend.memory.readable(table)
            got = backend.gather([Table(readable)], index.cuda(), len(table))[0]
            equal = torch.equal(got.cpu(), table[index])
            yield f"{place}, part {number}", "" if equal else "other values"
            yield f"{place}, a copy of part {number}", _copies(table)


def _copies(tensor: torch.Tensor) -> str:
    try:
        return "" if torch.equal(tensor.to("cuda").cpu(), tensor) else "other values"
    except RuntimeError as error:
        return str(error).splitlines()[0]


def private_mappings(schedule: str) -> Outcomes:
    """A table in a private mapping of a file is registered uncopied, until it is written to."""
    with tempfile.TemporaryDirectory() as folder:
        data = loaders.graph()
        pyg_direct.save(data, f"{folder}/graph")
        np.save(f"{folder}/x.npy", data.x.numpy())
        data.x.numpy().tofile(f"{folder}/x.bin")
        file = torch.from_file(f"{folder}/x.bin", shared=False, size=data.x.numel())
        tables = {
            "opened": pyg_direct.open(f"{folder}/graph").x,
            "of NumPy": torch.from_numpy(np.load(f"{folder}/x.npy", mmap_mode="c")),
            "of torch": file.view(data.x.shape),
        }
        for name, table in tables.items():
            mapped = data.clone()
            mapped.x = table
            expected = epoch(pyg_direct.NeighborLoader(mapped, device="cpu", **FOR_FILES))
            loader = pyg_direct.NeighborLoader(mapped, device="cuda", **FOR_FILES, **loaders.HOST)
            yield name, difference(epoch(loader), expected)
            own = own_bytes(table.data_ptr(), table.data_ptr() + table.nbytes)
            yield f"{name}: a copy", f"{own} bytes" if own else ""
            place = next(row.place for row in loader.placement.rows if row.name == "data.x")
            yield f"{name}: placement", "" if place == REGISTERED else place
            table[:] = table + 1
            expected = epoch(pyg_direct.NeighborLoader(mapped, device="cpu", **FOR_FILES))
            loader = pyg_direct.NeighborLoader(mapped, device="cuda", **FOR_FILES, **loaders.HOST)
            yield f"{name}, written to", difference(epoch(loader), expected)


CHECKS = (
    private_mappings,
    nothing_left,
    registered_once,
    a_thousand_batches,
    a_hundred_loaders,
    out_of_memory,
    out_of_memory_at_construction,
    refused_registration,
    neighbours_on_a_page,
)
