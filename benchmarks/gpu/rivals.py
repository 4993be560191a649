"""Stages of `benchmarks.gpu`: other ways to get batches to a GPU, with training and alone.

PyG's loader, where one of its compiled samplers is installed, and the conventional way, which needs
nothing: batches with the same bits as ours, sampled and gathered by the CPU, copied to pinned
memory and from there to the GPU. It is what "PyTorch-Direct" (arXiv 2101.07956) and Min et al.
(arXiv 2103.03330) compare with.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data

from benchmarks.cpu.contestants import endless
from benchmarks.gpu.device import Context, Device, opened, registered
from benchmarks.gpu.limited import run_limited
from benchmarks.gpu.needs import BUILT, PYG_SAMPLERS, MissingError, is_there, need
from benchmarks.gpu.training import Trainer, load_graph, loader_of, loading_alone, measure
from benchmarks.statistics import spread
from pyg_direct.core.types import Table

MARGIN_SECONDS = 3  # to write down what happened before the stage itself is stopped
MORE_SECONDS = 36  # that must be left for one more number of workers


def worker_counts(cores: int) -> list[int]:
    """Return the numbers of workers to try: those that users try, up to all cores."""
    return sorted({max(1, cores // 4), max(1, cores // 2), cores})


def build(context: Context) -> None:
    """Build what PyG's loader needs from sources that were brought along, on all cores."""
    if is_there(PYG_SAMPLERS):
        raise MissingError(f"nothing to build: {PYG_SAMPLERS} is installed")
    if not context.archives:
        raise MissingError("no sources: --build names none")
    pip = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
    folder = str(context.folder / BUILT)
    outcome = run_limited(
        [*pip, "--no-build-isolation", "--target", folder, *context.archives],
        context.left() - MARGIN_SECONDS,
        context.logs / "build.txt",
        context.environment(FORCE_ONLY_CPU="1", MAX_JOBS=str(len(os.sched_getaffinity(0)))),
    )
    context.keep("outcome", outcome._asdict())


def pyg(context: Context) -> None:
    """Measure PyG's loader alone by number of workers, and train with the best of them."""
    need(PYG_SAMPLERS)
    context.keep("sampled by", next(filter(is_there, PYG_SAMPLERS.split(" or "))))
    warnings.filterwarnings("ignore", "Using 'NeighborSampler' without a 'pyg-lib'")
    data, train = load_graph(context.folder)
    with opened(context.dry) as device:
        samplers: list[Any] = [None]

        def make(workers: int) -> Any:
            loader = pyg_loader(context, device, data, train, workers, samplers[-1])
            samplers.append(loader.node_sampler)  # its sorted graph takes seconds to make
            return loader

        best = measure_alone(context, device, make)
        for name in ("PrefetchLoader", "NeighborLoader"):
            loader = used = make(best)
            if name == "PrefetchLoader":
                used = torch_geometric.loader.PrefetchLoader(loader, device.model_device)
            context.keep(name, measure_trained(context, device, data, used, best))
            end_workers(loader)


def conventional(context: Context) -> None:
    """Measure the conventional way as PyG's loader is measured, and the copy of rows by itself."""
    data, train = load_graph(context.folder)
    with opened(context.dry) as device:

        def make(workers: int) -> Any:
            return loader_of(
                context.plan, data, train, device=device.host_argument, num_workers=workers,
                persistent_workers=True, pin_memory=device.device.type == "cuda",
            )  # fmt: skip

        context.keep("transfer", measure_transfer(context, device, data, endless(make(1))))
        best = measure_alone(context, device, make)
        context.keep("trained", measure_trained(context, device, data, make(best), best))


def measure_alone(context: Context, device: Device, make: Callable[[int], Any]) -> int:
    """Keep what loaders take by number of workers, as "alone", and return the best number."""
    context.keep("alone", [])
    for workers in worker_counts(len(os.sched_getaffinity(0))):
        if context.results["alone"] and context.left() < MORE_SECONDS:
            break
        loader = make(workers)
        record = measure_copied(context, device, loader, loading_alone, 2 * workers)
        context.keep("alone", [*context.results["alone"], record | {"workers": workers}])
        end_workers(loader)
    best = min(context.results["alone"], key=lambda record: record["ms"]["median"])
    return int(best["workers"])


def measure_trained(
    context: Context, device: Device, data: Data, loader: Any, workers: int
) -> dict[str, Any]:
    """Measure training from a loader with some workers."""
    trainer = Trainer(context.plan, device.model_device, data.num_features)
    record = measure_copied(context, device, loader, trainer, 2 * workers)
    return record | {"workers": workers}


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


def measure_copied(
    context: Context, device: Device, loader: Any, step: Any, ahead: int
) -> dict[str, Any]:
    """Measure a loader of the host, and the copy to the device that is part of it.

    Args:
        context: of the stage.
        device: where batches go.
        loader: gives batches in host memory, pinned where there is a GPU.
        step: called with each batch.
        ahead: batches that workers have prepared before the first one is asked for.
    """
    plan = context.plan
    batches = endless(loader)

    def next_batch() -> Data:
        return next(batches).to(device.model_device, non_blocking=True)

    return measure(device, next_batch, step, plan.warmup + ahead, plan.pyg_rounds, plan.pyg_batches)


def measure_transfer(context: Context, device: Device, data: Data, batches: Any) -> dict[str, Any]:
    """Measure how long the rows of a batch take to the GPU, both ways in turn.

    Conventional: the CPU gathers them into pinned memory, from where they are copied. Ours: the GPU
    reads them of the table. Each has the ids where its sampler leaves them.
    """
    plan, x = context.plan, data.x
    ids = [next(batches).n_id for _ in range(plan.launches)]
    ids_there = [each.to(device.device) for each in ids]
    readable = registered(device, x)
    buffer = device.pinned(torch.empty(max(map(len, ids)), x.shape[1], dtype=x.dtype))

    def through_the_cpu() -> None:
        for each in ids:
            rows = torch.index_select(x, 0, each, out=buffer[: len(each)])
            rows.to(device.device, non_blocking=True)
            device.settle()  # the buffer is written again

    def by_the_gpu() -> None:
        for each in ids_there:
            device.backend.gather([Table(readable)], each, len(x))

    ways = {"conventional": through_the_cpu, "ours": by_the_gpu}
    samples: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(plan.repeats + 1):
        for name, work in ways.items():
            seconds = device.timer(work)
            if number > 0:  # the first one warms up
                samples[name].append(1e3 * seconds / plan.launches)
    rows = sum(map(len, ids)) / plan.launches
    return {"rows": rows, **{name: {"ms": spread(each)} for name, each in samples.items()}}
