"""Stages of `benchmarks.gpu` that train with our loader, and the growth of memory."""

from __future__ import annotations

import time
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data

from benchmarks.cpu.contestants import endless
from benchmarks.gpu.device import Context, Device, host_bytes_used, opened
from benchmarks.gpu.training import (
    Trainer,
    in_turn,
    load_graph,
    loader_of,
    loading_alone,
    measure,
    ours_loader,
    save_graph,
    useful_bytes,
)
from examples.support.synthetic import power_law_graph
from pyg_direct import NeighborLoader

# Where the topology and the features lie, by what `ours` calls it.
PLACES = {
    "host": ("host", "host"),
    "features on host": ("device", "host"),
    "auto": ("auto", "auto"),
}
GROWTH_POINTS = 50


def make_graph(context: Context) -> None:
    """Make the graph for all later stages."""
    plan, begin = context.plan, time.perf_counter()
    data = power_law_graph(plan.num_nodes, plan.num_edges, plan.num_features, plan.num_classes)
    save_graph(data, context.folder)
    context.keep("seconds", time.perf_counter() - begin)
    context.keep("seeds", int(data.train_mask.sum()))


def ours(context: Context) -> None:
    """Train and load with our loader, by where the graph and the features lie."""
    data, train = load_graph(context.folder)
    with opened(context.dry) as device:
        expected = first_batches(
            context, loader_of(context.plan, data, train, device=device.host_argument)
        )
        for name, (topology, features) in PLACES.items():
            found = measure_ours(context, device, data, train, topology, features, expected)
            context.keep(name, found)


def first_batches(context: Context, loader: NeighborLoader) -> list[dict[str, Tensor]]:
    """Return the tensors of the first batches of a loader's first epoch, in host memory."""
    return [
        {name: value.cpu() for name, value in batch.to_dict().items() if isinstance(value, Tensor)}
        for batch in islice(loader, context.plan.compared)
    ]


def compare(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> None:
    """Raise an AssertionError unless batches have the same tensors, bit for bit."""
    for number, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine.keys() != theirs.keys():
            raise AssertionError(f"batch {number} has {sorted(mine)}, the CPU's {sorted(theirs)}")
        wrong = [name for name in mine if not torch.equal(mine[name], theirs[name])]
        if wrong:
            raise AssertionError(f"batch {number} differs from the CPU's in {', '.join(wrong)}")


def measure_ours(
    context: Context,
    device: Device,
    data: Data,
    train: Tensor,
    topology: str,
    features: str,
    expected: list[dict[str, Tensor]] | None = None,
) -> dict[str, Any]:
    """Measure our loader with training and alone, after a look at its first batches.

    Raises:
        AssertionError: they are not as `expected`.
    """
    plan = context.plan
    begin = time.perf_counter()
    loader = ours_loader(context, device, data, train, topology=topology, features=features)
    seconds = time.perf_counter() - begin
    if expected is not None:
        compare(first_batches(context, loader), expected)
    batches = endless(loader)
    trainer = Trainer(plan, device.model_device, data.num_features)
    sizes = (plan.warmup, plan.rounds, plan.batches)
    trained = measure(device, batches.__next__, trainer, *sizes)
    alone = measure(device, batches.__next__, loading_alone, *sizes)
    row_bytes = [value.nbytes // len(value) for value in (data.x, data.y)]
    return {
        "topology": topology,
        "features": features,
        "construct_seconds": seconds,
        "placement": str(loader.placement),
        "batches as on the CPU": len(expected or ()),
        "trained": trained,
        "alone": alone,
        "useful_bytes": useful_bytes(trained, row_bytes, topology, features),
        "batches_per_epoch": len(loader),
        "epoch_seconds": len(loader) * trained["ms"]["median"] / 1e3,
    }


def in_memory(context: Context) -> None:
    """Train with everything in GPU memory, and on batches that were made beforehand."""
    plan = context.plan
    data, train = load_graph(context.folder)
    with opened(context.dry) as device:
        context.keep("loader", measure_ours(context, device, data, train, "device", "device"))
        loader = ours_loader(context, device, data, train, topology="device", features="device")
        batches = endless(loader)
        cached = in_turn([next(batches) for _ in range(plan.cached_batches)])
        trainer = Trainer(plan, device.model_device, data.num_features)
        sizes = (plan.warmup, plan.rounds, plan.batches)
        context.keep("cached batches", measure(device, cached.__next__, trainer, *sizes))


def growth(context: Context) -> None:
    """Load many batches from host memory, and see whether memory grows."""
    plan = context.plan
    data, train = load_graph(context.folder)
    every = max(1, plan.growth_batches // GROWTH_POINTS)
    with opened(context.dry) as device:
        loader = ours_loader(context, device, data, train, topology="host", features="host")
        batches = endless(loader)
        points: list[dict[str, int]] = []
        begin = time.perf_counter()
        for number in range(1, plan.growth_batches + 1):
            next(batches)
            if number % every == 0:
                device.settle()
                points.append({"batch": number, "host": host_bytes_used(), **device.memory()})
                context.keep("points", points)
        context.keep("seconds", time.perf_counter() - begin)
    context.keep("growth", growth_of(points))


def growth_of(points: list[dict[str, int]]) -> dict[str, Any]:
    """Return how much each kind of memory grew: the last fifth of the points over the second.

    In the first fifth, caches fill.
    """
    fifth = max(1, len(points) // 5)
    second, last = points[fifth : 2 * fifth], points[-fifth:]
    kinds = [name for name in points[0] if name != "batch"]
    grown = {
        name: float(np.median([p[name] for p in last]) - np.median([p[name] for p in second]))
        for name in kinds
    }
    base = {name: float(np.median([p[name] for p in second])) for name in kinds}
    return {"batches": points[-1]["batch"], "bytes": grown, "of": base}
