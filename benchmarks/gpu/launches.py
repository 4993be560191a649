"""Stage of `benchmarks.gpu`: what launches cost Python and the driver, and a CUDA graph of them.

Which part of a batch can be captured is not known without a GPU, so each part is tried: what can be
captured is replayed, compared with the CPU's batch and timed; of what cannot, the call that forbids
it is kept. "ZeroGNN" (arXiv 2605.29346) replays whole steps.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from benchmarks.gpu.device import Context, Device, opened
from benchmarks.launch_overhead import Case, milliseconds, random_csc, run_batch
from pyg_direct.core.types import BatchKey, SampledGraph, SamplingPlan, Sizes, Table
from pyg_direct.ops.backend import Workspace
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.launch import Compiler, Grid, Launch, Library, Prepare
from pyg_direct.ops.cuda.source import Declaration
from pyg_direct.ops.cuda.workspace import CudaWorkspace

PACKAGE = "pyg_direct"
STEPS, EPOCHS, NUM_CLASSES = 50, 4, 8
KEYS = (BatchKey(1, 2), BatchKey(3, 4))  # of the batch that is captured, and of another one


class CountingCompiler:
    """A compiler whose launches are counted."""

    def __init__(self, compiler: Compiler) -> None:
        self._compiler, self.launches = compiler, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._compiler, name)

    def build(
        self, file: str, text: str, types: Mapping[str, str], kernels: Sequence[Declaration]
    ) -> Mapping[str, Prepare]:
        built = self._compiler.build(file, text, types, kernels)
        return {name: self._counted(prepare) for name, prepare in built.items()}

    def _counted(self, prepare: Prepare) -> Prepare:
        def prepared(block: int, arguments: Sequence[Any]) -> Launch:
            launch = prepare(block, arguments)

            def counted(grid: Grid) -> None:
                self.launches += 1
                launch(grid)

            return counted

        return prepared


def launches(context: Context) -> None:
    """Measure a small batch and a large one, with the graph in device memory."""
    plan = context.plan
    fanout, small_fanout = tuple(plan.fanout), tuple(plan.small_fanout)
    cases = [
        Case("small", plan.small_nodes, plan.small_edges, plan.num_features, small_fanout,
             max(plan.small_batch_sizes)),
        Case("large", plan.num_nodes, plan.num_edges, plan.num_features, fanout, plan.batch_size),
    ]  # fmt: skip
    with opened(context.dry) as device:
        for case in cases:
            context.keep(case.name, measure_case(context, device, case))


def measure_case(context: Context, device: Device, case: Case) -> dict[str, Any]:
    """Measure a batch of a case: launches, time of the thread, time until all is done."""
    compiler = CountingCompiler(device.backend.library.compiler)
    backend = CudaBackend(device.device, Library(compiler))
    csc = random_csc(case)
    plan = SamplingPlan(np.array(case.fanouts).reshape(-1, 1), False, False, False, torch.int64)
    seeds = torch.randperm(case.num_nodes)[: case.batch_size]
    placed = backend.memory.place_graph(csc, "device")
    work = backend.workspace(placed, plan)
    x = torch.zeros(case.num_nodes, case.num_features, device=device.device)

    def batch() -> None:
        node = run_batch(work, seeds, KEYS[0]).node[0]
        backend.gather([Table(x)], node, case.num_nodes)

    batch()  # prepares the launches
    compiler.launches = 0
    batch()
    record = {
        "launches": compiler.launches,
        "thread_ms": milliseconds(batch, context.plan.batches),
        "wall_ms": 1e3 * median(device.timer(batch) for _ in range(context.plan.batches)),
    }
    steps = {}
    if case.name == "small":  # whose launches take longer than what they launch
        steps["steps of a training"] = tried(lambda: replayed_steps(context, device, case))
    if context.dry:
        return record | {"graphs": steps}
    expected = [run_batch(CpuBackend().workspace(csc, plan), seeds, key) for key in KEYS]
    again = backend.workspace(placed, plan)
    largest = (max(len(batch.node[0]) for batch in expected), max(len(b.edge[0]) for b in expected))
    sizes = Sizes([largest[0] + 2], [largest[1]])
    graphs = {
        "the hops of a batch": lambda: capture_hops(context, work, seeds, expected),
        "a batch of given sizes": lambda: capture_hops(context, work, seeds, expected, sizes),
        "a whole batch": lambda: capture_batch(again, seeds),
    }
    return record | {"graphs": steps | {name: tried(trial) for name, trial in graphs.items()}}


def capture_hops(
    context: Context,
    work: CudaWorkspace,
    seeds: torch.Tensor,
    expected: list[SampledGraph],
    sizes: Sizes | None = None,
) -> dict[str, Any]:
    """Capture all between the upload of the seeds and the download of the counts.

    With sizes that includes the batch itself, with padding, as `static_shapes=` has it.
    """
    hops, made = len(expected[0].num_sampled_nodes[0]) - 1, list[SampledGraph]()

    def begin(key: BatchKey) -> None:
        if not work.begin([seeds], key):
            raise AssertionError("seeds that are not nodes")

    def all_hops() -> None:
        if sizes is not None:
            made[:] = [work.launch(sizes)]
            return
        for hop in range(hops):
            work.hop(hop)

    def finish() -> torch.Tensor:
        """Return the nodes, having waited for them."""
        if sizes is None:
            return work.finish().node[0]
        padded = made[0].padded
        assert padded is not None
        num_nodes, _ = padded.read()
        return padded.node_id[0][: sum(num_nodes[0])]

    begin(KEYS[0])
    all_hops()
    finish()
    begin(KEYS[0])
    graph = captured(all_hops)
    for key, wanted in zip(KEYS, expected, strict=True):
        begin(key)
        graph.replay()
        if not torch.equal(finish().cpu(), wanted.node[0]):
            raise AssertionError("a replayed batch has other nodes than the CPU's")
    ways = {"launched": all_hops, "replayed": graph.replay}
    found_ms = {}
    for name, way in ways.items():

        def batch(way: Callable[[], None] = way) -> None:
            begin(KEYS[0])
            way()
            finish()

        found_ms[f"{name}: thread_ms"] = milliseconds(batch, context.plan.batches)
        begun = time.perf_counter()
        for _ in range(context.plan.batches):
            batch()
        found_ms[f"{name}: wall_ms"] = 1e3 * (time.perf_counter() - begun) / context.plan.batches
    return found_ms


def replayed_steps(context: Context, device: Device, case: Case) -> dict[str, Any]:
    """Train by the loop over a loader and by `replay` of it, compare the losses, and time both."""
    seeds = torch.arange(min(case.num_nodes, STEPS * case.batch_size))
    data = Data(
        x=torch.randn(case.num_nodes, case.num_features),
        y=torch.randint(NUM_CLASSES, (case.num_nodes,)),
        edge_index=torch.randint(case.num_nodes, (2, case.num_edges)),
    )
    losses, found = [], {}
    for name in ("ordinary", "replayed"):
        loader = pyg_direct.NeighborLoader(
            data, list(case.fanouts), input_nodes=seeds, batch_size=case.batch_size, seed=0,
            drop_last=True, static_shapes=True, ids="device", device=device.argument,
        )  # fmt: skip
        if context.dry:
            loader._backend.graphs = None  # the emulator has none
        step, epochs_ms = training_step(case, device.model_device), list[float]()
        for _ in range(EPOCHS):
            begun = time.perf_counter()
            results = loader.replay(step) if name == "replayed" else map(step, loader)
            losses.append(torch.stack([loss.detach() for loss in results]))
            device.settle()
            epochs_ms.append(1e3 * (time.perf_counter() - begun) / len(loader))
        found[f"{name}: step_ms"] = min(epochs_ms)
    for ordinary, replayed in zip(losses[:EPOCHS], losses[EPOCHS:], strict=True):
        torch.testing.assert_close(replayed, ordinary, rtol=1e-3, atol=1e-4)
    return found


def training_step(case: Case, device: torch.device) -> Callable[[Any], torch.Tensor]:
    """Return a step that trains a new model on a batch."""
    torch.manual_seed(0)
    model = GraphSAGE(case.num_features, 64, len(case.fanouts), NUM_CLASSES).to(device)
    optimizer = torch.optim.Adam(model.parameters(), capturable=device.type == "cuda")

    def step(batch: Any) -> torch.Tensor:
        optimizer.zero_grad()
        out = model(batch.x.to(device), batch.edge_index.to(device))[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y.to(device)[: batch.batch_size])
        loss.backward()
        optimizer.step()
        return loss

    return step


def capture_batch(work: Workspace, seeds: torch.Tensor) -> dict[str, Any]:
    """Capture a batch as loaders make it."""
    run_batch(work, seeds, KEYS[0])
    captured(lambda: run_batch(work, seeds, KEYS[0]))
    return {}


def captured(work: Callable[[], object]) -> Any:
    """Return a CUDA graph of what some calls launch."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # type: ignore[no-untyped-call]
        work()
    return graph


def tried(trial: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a trial measured, or the first error and the call of the package that raised."""
    try:
        return {"works": True, **trial()}
    except Exception as error:
        first: BaseException = error
        while first.__context__ is not None:  # torch raises another one as it ends the capture
            first = first.__context__
        frames = traceback.extract_tb(first.__traceback__)
        ours = [frame for frame in frames if f"/{PACKAGE}/" in frame.filename]
        call = f"{Path(ours[-1].filename).name}, {ours[-1].name}: {ours[-1].line}" if ours else ""
        text = str(first).splitlines()[0] if str(first) else ""
        return {"works": False, "error": f"{type(first).__name__}: {text}", "call": call}
