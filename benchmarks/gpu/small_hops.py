"""Stage of `benchmarks.gpu`: small batches by one launch of one block, and by many blocks."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.gpu import constants
from benchmarks.gpu.device import Context, Device, opened
from benchmarks.launch_overhead import Case, random_csc, run_batch
from benchmarks.statistics import spread
from pyg_direct.core.types import BatchKey, SampledGraph, SamplingPlan
from pyg_direct.ops.backend import Workspace

WAYS = {"one_block": True, "many_blocks": False}


def small_hops(context: Context) -> None:
    """Measure sampling by batch size, with the graph in device memory.

    What one block does in a launch takes many blocks some ten launches: one block is better as long
    as it takes no longer than they do. `ONE_BLOCK_ROUNDS` of `ops.cuda.tuning` must lie where
    the two meet. Other numbers of that table are measured after it.
    """
    plan = context.plan
    case = Case(
        "small", plan.small_nodes, plan.small_edges, 0, tuple(plan.small_fanout),
        max(plan.small_batch_sizes),
    )  # fmt: skip
    with opened(context.dry) as device:
        csc = device.backend.memory.place_graph(random_csc(case), "device")
        fanouts = torch.tensor(case.fanouts).view(-1, 1).numpy()
        law = SamplingPlan(fanouts, False, False, False, torch.int64)
        context.keep("by_batch_size", [])
        for size in plan.small_batch_sizes:
            workspaces = {}
            for name, device.backend.one_block in WAYS.items():
                workspaces[name] = device.backend.workspace(csc, law)
            record = measure_ways(context, device, workspaces, case, size)
            context.keep("by_batch_size", [*context.results["by_batch_size"], record])
        constants.measure(context, device)


def measure_ways(
    context: Context, device: Device, workspaces: dict[str, Workspace], case: Case, size: int
) -> dict[str, Any]:
    """Measure batches of some seeds in each workspace in turn, after a look at what they give."""
    plan = context.plan
    seeds = torch.randperm(case.num_nodes)[:size]

    def sample(work: Workspace, number: int) -> SampledGraph:
        return run_batch(work, seeds, BatchKey(number, 0))

    sampled = [sample(work, 0) for work in workspaces.values()]
    if not all(torch.equal(each.node[0], sampled[0].node[0]) for each in sampled):
        raise AssertionError(f"one block and many sample different batches of {size} seeds")
    samples: dict[str, list[float]] = {name: [] for name in workspaces}
    for _ in range(plan.rounds):
        for name, work in workspaces.items():
            seconds = device.timer(
                lambda work=work: [sample(work, number) for number in range(plan.batches)]
            )
            samples[name].append(1e3 * seconds / plan.batches)
    ways = {name: {"ms": spread(values)} for name, values in samples.items()}
    return {"batch_size": size, "nodes": len(sampled[0].node[0]), **ways}
