"""`pyg_direct.unified`: rows that a GPU selects of tensors in host memory, in several processes."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

import pyg_direct

from .. import loaders, standin
from ..batches import difference, epoch
from .processes import everywhere

Outcomes = Iterator[tuple[str, str]]
LIMIT_SECONDS = 600  # of two processes, which take ten seconds on an idle machine
TIMES_MADE = 10  # of which a random schedule shows some
TABLES = {  # shape and dtype
    "registered": ((150_000, 64), torch.float32),
    "a pinned copy": ((4000, 64), torch.float32),
    "of odd bytes": ((4000, 13), torch.uint8),
}


def _table(name: str) -> Tensor:
    shape, dtype = TABLES[name]
    return (torch.arange(shape[0] * shape[1]) % 251).view(shape).to(dtype)


def unified_on_the_second_device(schedule: str) -> Outcomes:
    """Rows on cuda:1 open no context on cuda:0, in a thread that never chose a device."""
    for name in TABLES:
        yield name, _rows_on_the_second(_table(name))
        opened = standin.contexts()
        yield f"{name}: contexts", "" if opened == [1] else f"on devices {opened}"


def modules_on_their_device(schedule: str) -> Outcomes:
    """Where cuda:0 is in use, and the current device, no kernels of cuda:1 are loaded there."""
    torch.zeros(1, device="cuda:0")
    standin.counts(reset=True)
    pairs = torch.arange(12_000).view(-1, 3).to(torch.int16)  # read by a kernel of their own
    yield "rows", _rows_on_the_second(pairs)
    yield "modules", "cuda:0 has some" if "module: device 0" in standin.counts() else ""


def _rows_on_the_second(table: Tensor) -> str:
    index = (torch.arange(2000) * 7 % len(table)).to("cuda:1")
    rows = pyg_direct.unified(table, "cuda:1")[index]
    return "" if torch.equal(rows.cpu(), table[index.cpu()]) else "other values"


def unified_rows(schedule: str) -> Outcomes:
    """Rows by every kind of index, and of tensors that change or go while they are read."""
    for name in TABLES:
        table = _table(name)
        features = pyg_direct.unified(table)
        index = torch.arange(2000) * 7 % len(table)
        found = {
            "ids": (features[index.cuda()], table[index]),
            "negative ids": (features[(index - len(table)).cuda()], table[index]),
            "ids of two dimensions": (features[index.view(2, -1).cuda()], table[index.view(2, -1)]),
            "a mask": (
                features[(torch.arange(len(table)) % 3 == 0).cuda()],
                table[torch.arange(0, len(table), 3)],
            ),
            "index_select": (torch.index_select(features, 0, index.cuda()), table[index]),
            "ids on the second device": (features[index.to("cuda:1")], table[index]),
        }
        for what, (rows, expected) in found.items():
            yield f"{name}, {what}", "" if torch.equal(rows.cpu(), expected) else "other values"
        table[index[0]] = 3
        changed = features[index.cuda()]
        yield f"{name}, changed", "" if torch.equal(changed.cpu(), table[index]) else "other values"
        expected = table[index]
        rows = features[index.cuda()]
        del features, table
        gc.collect()
        yield f"{name}, deleted", "" if torch.equal(rows.cpu(), expected) else "other values"
    yield "an id out of range", _out_of_range()
    data = loaders.graph()
    data.x = pyg_direct.unified(data.x)
    batches = epoch(loaders.node(lambda: data)(device="cuda"))
    yield "an attribute of a loader", difference(batches, epoch(loaders.on_cpu("node")))


def _out_of_range() -> str:
    """Select a row that is not there; the host notices when it selects again."""
    table = _table("a pinned copy")
    features, index = pyg_direct.unified(table), torch.arange(5).cuda()
    rows = features[torch.tensor([3, len(table)], device="cuda")]
    torch.cuda.synchronize()
    try:
        features[index]
        return "no error"
    except IndexError:
        again = features[index]
    right = torch.equal(rows[0].cpu(), table[3]) and bool(rows[1].isnan().all())
    return "" if right and torch.equal(again.cpu(), table[:5]) else "other values"


def unified_waits(schedule: str) -> Outcomes:
    """A selection does not make the host wait for the device."""
    for name in TABLES:
        table = _table(name)
        index = (torch.arange(2000) * 7 % len(table)).cuda()
        torch.cuda.synchronize()
        found = []
        for _ in range(TIMES_MADE):
            features = pyg_direct.unified(table)
            with torch.cuda.stream(torch.cuda.Stream()):  # that waits for no other
                found += [features[index], features[index]]
                torch.cuda.synchronize()  # an id out of range would have arrived
                found.append(features[index])
                torch.cuda.synchronize()
        right = all(torch.equal(rows.cpu(), table[index.cpu()]) for rows in found)
        yield f"{name}, on another stream", "" if right else "other values"
        standin.counts(reset=True)
        rows = features[index]
        waits = [what for what in standin.counts(reset=True) if what.startswith("wait of the host")]
        right = torch.equal(rows.cpu(), table[index.cpu()])
        yield name, ", ".join(waits) if right else "other values"


def unified_in_two_processes(schedule: str) -> Outcomes:
    """Two spawned processes are given one tensor; each reads it with a device of its own."""
    context = multiprocessing.get_context("spawn")
    table = _table("registered")
    with mock.patch.dict("os.environ", everywhere(schedule)):
        queue = context.SimpleQueue()
        features = pyg_direct.unified(table)
        ranks = [
            context.Process(target=read_as_a_rank, args=(rank, features, queue)) for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        for rank in ranks:
            rank.join(LIMIT_SECONDS)
    for number, rank in enumerate(ranks):
        ended = "" if rank.exitcode == 0 else f"ended with {rank.exitcode}"
        rank.kill()
        yield f"rank {number} ends", ended
    while not queue.empty():
        rank, problem = queue.get()
        yield f"rank {rank}", problem
    index = torch.arange(0, len(table), 7)
    rows = features[index.cuda()]  # of memory that was moved to be shared
    yield "the parent", "" if torch.equal(rows.cpu(), table[index]) else "other values"


def read_as_a_rank(rank: int, features: Tensor, queue: Any) -> None:
    """Select rows on the device of a rank, and say what is wrong."""
    torch.cuda.set_device(rank)
    index = torch.arange(0, len(features), 7)
    rows = features[index.cuda()]
    problem = "" if torch.equal(rows.cpu(), _table("registered")[index]) else "other values"
    if not problem and standin.contexts() != [rank]:
        problem = f"contexts on devices {standin.contexts()}"
    queue.put((rank, problem))


CHECKS = (
    unified_on_the_second_device,
    modules_on_their_device,
    unified_rows,
    unified_waits,
    unified_in_two_processes,
)
