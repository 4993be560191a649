"""Stages of `benchmarks.gpu` that train: our loader, everything in GPU memory, and PyG's loader."""

from __future__ import annotations

import importlib.util
import os
import time
import warnings
from typing import Any

import numpy as np
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data

from benchmarks.cpu.contestants import endless
from benchmarks.gpu.device import Context, Device, MissingError, host_bytes_used, opened
from benchmarks.gpu.training import (
    Trainer,
    in_turn,
    load_graph,
    loading_alone,
    measure,
    ours_loader,
    save_graph,
    useful_bytes,
)
from examples.synthetic import power_law_graph

# Where the topology and the features lie, by what `ours` calls it.
PLACES = {
    "host": ("host", "host"),
    "features on host": ("device", "host"),
    "auto": ("auto", "auto"),
}
GROWTH_POINTS = 50
PYG_SECONDS = 12  # that one more setting of PyG's loader may take; else it is left out


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
        for name, (topology, features) in PLACES.items():
            context.keep(name, measure_ours(context, device, data, train, topology, features))


def measure_ours(
    context: Context, device: Device, data: Data, train: Tensor, topology: str, features: str
) -> dict[str, Any]:
    """Measure our loader with training and alone."""
    plan = context.plan
    begin = time.perf_counter()
    loader = ours_loader(context, device, data, train, topology=topology, features=features)
    seconds = time.perf_counter() - begin
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


def pyg_worker_counts(cores: int) -> list[int]:
    """Return the numbers of workers to try: those that PyG's users try, up to all cores."""
    return sorted({max(1, cores // 4), max(1, cores // 2), cores})


def pyg(context: Context) -> None:
    """Measure PyG's loader alone by number of workers, and train with the best of them."""
    plan = context.plan
    library = next(
        (name for name in ("pyg_lib", "torch_sparse") if importlib.util.find_spec(name)), None
    )
    context.keep("sampled by", library)
    if library is None:
        raise MissingError("PyG's NeighborLoader needs pyg_lib or torch_sparse, and finds neither")
    warnings.filterwarnings("ignore", "Using 'NeighborSampler' without a 'pyg-lib'")
    data, train = load_graph(context.folder)
    with opened(context.dry) as device:
        sampler = None
        context.keep("alone", [])
        for workers in pyg_worker_counts(len(os.sched_getaffinity(0))):
            if context.results["alone"] and context.left() < 3 * PYG_SECONDS:
                break
            loader = pyg_loader(context, device, data, train, workers, sampler)
            sampler = loader.node_sampler  # with the sorted graph, which takes seconds to make
            record = measure_pyg(context, device, loader, loading_alone, 2 * workers)
            record["workers"] = workers
            context.keep("alone", [*context.results["alone"], record])
            end_workers(loader)
        best = min(context.results["alone"], key=lambda record: record["ms"]["median"])["workers"]
        for name, wrap in (("PrefetchLoader", True), ("NeighborLoader", False)):
            loader = pyg_loader(context, device, data, train, best, sampler)
            used = loader
            if wrap:
                used = torch_geometric.loader.PrefetchLoader(loader, device.model_device)
            trainer = Trainer(plan, device.model_device, data.num_features)
            record = measure_pyg(context, device, used, trainer, 2 * best)
            context.keep(name, record | {"workers": best})
            end_workers(loader)


def pyg_loader(
    context: Context, device: Device, data: Data, train: Tensor, workers: int, sampler: Any
) -> Any:
    """Return PyG's loader as its documentation recommends it for a GPU."""
    plan = context.plan
    return torch_geometric.loader.NeighborLoader(
        data, plan.fanout, input_nodes=train, batch_size=plan.batch_size, shuffle=True,
        drop_last=True, num_workers=workers, persistent_workers=True, neighbor_sampler=sampler,
        pin_memory=device.device.type == "cuda",
    )  # fmt: skip


def end_workers(loader: Any) -> None:
    """End the persistent workers of a loader of PyG that is no longer iterated over.

    The loader and its iterator refer to each other. The garbage collector closes the queues before
    the iterator tells the workers to end, and then waits 5 seconds for each of them.
    """
    loader._iterator = None


def measure_pyg(
    context: Context, device: Device, loader: Any, step: Any, ahead: int
) -> dict[str, Any]:
    """Measure PyG's loader, and the copy to the device that is part of it.

    Args:
        context: of the stage.
        device: where batches go.
        loader: PyG's.
        step: called with each batch.
        ahead: batches that workers have prepared before the first one is asked for.
    """
    plan = context.plan
    batches = endless(loader)

    def next_batch() -> Data:
        return next(batches).to(device.model_device, non_blocking=True)

    return measure(device, next_batch, step, plan.warmup + ahead, plan.pyg_rounds, plan.pyg_batches)


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
