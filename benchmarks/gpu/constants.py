"""Measurements of `benchmarks.gpu` that set the numbers of `pyg_direct.ops.cuda.tuning`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks.gpu.device import Context, Device
from benchmarks.launch_overhead import Case, random_csc, run_batch
from benchmarks.statistics import spread
from pyg_direct.core.types import BatchKey, Csc, SamplingPlan
from pyg_direct.ops.backend import Workspace
from pyg_direct.ops.cuda import tuning

# The stage, and the name of its result, which a number is set by.
MEASURED_BY = {
    "SORTED_TABLE_BYTES": ("large_tables", "tables"),
    "LINK_BYTES_UNDER_WAY": ("gather", "link"),
    "GATHER_DUTY": ("gather", "by_blocks"),
    "HOST_BLOCKS": ("small_hops", "by_host_blocks"),
    "MAX_BLOCKS": ("small_hops", "first_hop"),
    "MAX_SCAN_BLOCKS": ("small_hops", "first_hop"),
    "ONE_BLOCK_ROUNDS": ("small_hops", "first_hop"),
}
ANY_ROUNDS = 1 << 20  # so that one block does a hop, whatever its size
WAYS = {"one_block": ANY_ROUNDS, "many_blocks": 0}


@contextmanager
def changed(**numbers: int) -> Iterator[None]:
    """Let the backend read other numbers meanwhile."""
    before = {name: getattr(tuning, name) for name in numbers}
    try:
        for name, number in numbers.items():
            setattr(tuning, name, number)
        yield
    finally:
        for name, number in before.items():
            setattr(tuning, name, number)


def measure(context: Context, device: Device) -> None:
    """Measure first hops by one block and by many, hops by blocks on the host, and hubs."""
    plan = context.plan
    case = Case("hop", plan.hop_nodes, plan.hop_edges, 0, (plan.fanout[0],), 0)
    csc = random_csc(case)
    on_device = device.backend.memory.place_graph(csc, "device")
    context.keep("first_hop", [])
    for size in plan.hop_seeds:
        seeds = torch.randperm(case.num_nodes)[:size]
        record: dict[str, Any] = {"seeds": size}
        for way, rounds in WAYS.items():
            with changed(ONE_BLOCK_ROUNDS=rounds):
                work = device.backend.workspace(on_device, law(case.fanouts))
            record[way] = {"ms": of_batches(context, device, work, seeds)}
        context.keep("first_hop", [*context.results["first_hop"], record])
    on_host = device.backend.memory.place_graph(csc, "host")
    seeds = torch.randperm(case.num_nodes)[: max(plan.hop_seeds)]
    context.keep("by_host_blocks", [])
    for blocks in plan.host_blocks:
        with changed(HOST_BLOCKS=blocks, ONE_BLOCK_ROUNDS=0):
            work = device.backend.workspace(on_host, law(case.fanouts))
        record = {"blocks": blocks, "ms": of_batches(context, device, work, seeds)}
        context.keep("by_host_blocks", [*context.results["by_host_blocks"], record])
    context.keep("hubs", {})
    for place in ("device", "host"):
        hub = device.backend.memory.place_graph(hub_csc(plan.hub_neighbours), place)
        work = device.backend.workspace(hub, law(case.fanouts, labor=True))
        record = {"ms": of_batches(context, device, work, torch.zeros(1, dtype=torch.int64), 1)}
        context.keep("hubs", context.results["hubs"] | {place: record})


def law(fanouts: tuple[int, ...], labor: bool = False) -> SamplingPlan:
    """Return how a graph of one relation is sampled."""
    table = np.array(fanouts, np.int64).reshape(-1, 1)
    return SamplingPlan(table, False, False, False, torch.int64, labor=labor)


def hub_csc(neighbours: int) -> Csc:
    """Return a graph in which all nodes are neighbours of node 0, and of no other."""
    zero, ends = np.zeros(1, np.int64), np.full(neighbours + 1, neighbours, np.int64)
    ends[0] = 0
    return Csc(
        indptr=ends, indices=np.arange(neighbours, dtype=np.int32), perm=None, src_type=zero,
        dst_type=zero, indptr_base=zero, edge_base=np.array([0, neighbours]),
        num_nodes=np.array([neighbours]),
    )  # fmt: skip


def of_batches(
    context: Context, device: Device, work: Workspace, seeds: Tensor, batches: int | None = None
) -> dict[str, Any]:
    """Return the milliseconds of a batch."""
    plan, number = context.plan, batches or context.plan.batches

    def sample() -> list[object]:
        return [run_batch(work, seeds, BatchKey(each, 0)) for each in range(number)]

    timed: Callable[[], object] = sample
    sample()
    return spread([1e3 * device.timer(timed) / number for _ in range(plan.rounds)])
