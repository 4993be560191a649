"""Batches of given sizes: their counts, a CUDA graph of one; what no capture permits."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from conformance import Case, homogeneous, make_csc, make_seeds, uniform_plan

import pyg_direct
from pyg_direct.core.types import NO_RULES, BatchKey, SampledGraph, Sizes
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.backend import CudaBackend

from .. import loaders, standin
from ..batches import difference, epoch
from ..hot_path import UNWANTED
from .ordering import ALL_ON_DEVICE, GIVEN

Outcomes = Iterator[tuple[str, str]]
REPLAYS = 100
DEVICE = torch.device("cuda")


def heterogeneous() -> Case:
    """Return a case of several types, of which one has no nodes."""
    rng = np.random.default_rng(3)
    csc = make_csc(rng, [400, 250, 0], [(0, 1, 3000), (1, 0, 2000), (2, 1, 0)], hub=True)
    plan = uniform_plan(np.array([[3, 4, 1], [2, 2, 1]]))
    return Case(csc, plan, make_seeds(rng, csc, [16, 9, None]), BatchKey(7, 11))


CASES: dict[str, Callable[[], Case]] = {
    "one type": lambda: homogeneous([5, 3], num_nodes=500, num_edges=6000),
    "disjoint": lambda: homogeneous([4, 3], num_nodes=500, plan={"disjoint": True}),
    "fan-out of 40": lambda: homogeneous([40], num_nodes=500, num_edges=9000),
    "several types": heterogeneous,
}


def replayed_batches(schedule: str) -> Outcomes:
    """A captured batch, replayed with other seeds and keys, is the batch of these."""
    for name, make in CASES.items():
        yield f"{name}, replayed {REPLAYS} times", _replayed(make())


def _replayed(case: Case) -> str:
    csc = case.csc
    backend, plain = CudaBackend(DEVICE), CpuBackend().workspace(csc, case.plan)
    work = backend.workspace(backend.memory.place_graph(csc, "device"), case.plan)
    sizes = Sizes([700 * (n > 0) for n in csc.num_nodes.tolist()], [900] * csc.num_relations)
    random = np.random.default_rng(0)

    def inputs(number: int) -> tuple[list[torch.Tensor | None], BatchKey]:
        seeds = [
            None if seed is None else torch.from_numpy(random.integers(0, n, len(seed)))
            for seed, n in zip(case.seeds, csc.num_nodes.tolist(), strict=True)
        ]
        return seeds, BatchKey(number, 5)

    assert work.sample_padded(*inputs(0), NO_RULES, sizes) is not None  # takes memory
    work.begin(*inputs(0))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = work.launch(sizes)
    for number in range(REPLAYS):
        seeds, key = inputs(number)
        work.begin(seeds, key)
        graph.replay()
        want = plain.sample(seeds, key)
        assert want is not None
        if problem := _difference(got, want):
            return f"replay {number}: {problem}"
    return ""


def _difference(got: SampledGraph, want: SampledGraph) -> str:
    """Return in what the real rows of a padded batch are not those of another one."""
    padded = got.padded
    assert padded is not None
    if padded.read() != (want.num_sampled_nodes, want.num_sampled_edges):
        return "other counts"
    parts = zip(padded.node_id, padded.real_nodes, want.node, strict=True)
    for ids, real, node in parts:
        count, found = int(real), ids.cpu()
        if count != len(node) or not torch.equal(found[:count], node):
            return "other nodes"
        if bool((found[count:] != -1).any()):
            return "padding that has ids"
    outputs = padded.edge_id, padded.real_edges, got.edge_index
    edges = zip(*outputs, want.edge, want.edge_index, strict=True)
    for ids, real, ends, edge, edge_index in edges:
        count = int(real)
        if count != len(edge) or not torch.equal(ids.cpu()[:count], edge):
            return "other edges"
        if not torch.equal(ends.cpu()[:, :count], edge_index):
            return "edges between other nodes"
    return ""


EPOCHS = 20  # of 5 batches each
STEADY = {  # what a step asks of the driver at most, where each is replayed
    "graph: launch": 2, "kernel": 0, "copy: pinned to device": 2, "wait of the host": 1,
}  # fmt: skip
FEWER = "fewer seeds at the end"
REPLAYED: dict[str, loaders.Make] = {
    "measured": loaders.node(static_shapes=True),
    "too small": loaders.node(static_shapes={"nodes": 350, "edges": 350}),
    "shuffled, disjoint": loaders.node(static_shapes=True, shuffle=True, disjoint=True),
    "several types": loaders.typed(static_shapes=True),
    "times": loaders.node(static_shapes=True, time_attr="time"),
    FEWER: loaders.node(static_shapes=True, batch_size=50),
}


def replayed_steps(schedule: str) -> Outcomes:
    """What `replay` hands to a step, also by CUDA graphs, are the batches of the loader."""
    for name, make in REPLAYED.items():
        expected = make(device="cpu")
        found = make(device="cuda", ids="device", topology="device", features="device")
        for number in range(EPOCHS):
            standin.counts(reset=True)
            steps = list(found.replay(bytes_of))
            counts = standin.counts(reset=True)
            wanted = [bytes_of(batch) for batch in expected]
            same = map(torch.equal, [step.cpu() for step in steps], wanted)
            if problem := "" if len(steps) == len(wanted) and all(same) else f"epoch {number}":
                break
        yield f"{name}, {EPOCHS} epochs", problem or _unsteady(name, counts, len(steps))


def _unsteady(name: str, counts: dict[str, int], steps: int) -> str:
    """Return what the steps of an epoch ask for too often, or ""."""
    most = {} if name == FEWER else STEADY | dict.fromkeys(UNWANTED, 0)
    found = {
        begin: sum(count for what, count in counts.items() if what.startswith(begin)) / steps
        for begin in most
    }
    return ", ".join(f"{n:g} a step: {begin}" for begin, n in found.items() if n > most[begin])


def bytes_of(batch: Any) -> torch.Tensor:
    """Return copies of all tensors of a batch in one, by nothing but copies on its device."""
    stores = [sorted(store.to_dict().items()) for store in batch.stores]
    values = [
        v.contiguous().flatten().view(torch.uint8)
        for s in stores
        for _, v in s
        if isinstance(v, torch.Tensor) and v.numel() > 0
    ]
    ends = list(itertools.accumulate(map(len, values), initial=0))
    found = torch.empty(ends[-1], dtype=torch.uint8, device=values[0].device)
    for value, (first, end) in zip(values, itertools.pairwise(ends), strict=True):
        found[first:end].copy_(value)
    return found


def late_counts(schedule: str) -> Outcomes:
    """Counts of batches of one shape are there when they are handed out, and none lacks an edge."""
    for name, shape in (("measured", True), ("too small", {"nodes": 350, "edges": 350})):
        given = {**GIVEN, "static_shapes": shape}
        expected = epoch(pyg_direct.NeighborLoader(loaders.graph(), device="cpu", **given))
        for prefetch in (0, 3):
            found = pyg_direct.NeighborLoader(
                loaders.graph(), device="cuda", prefetch=prefetch, **ALL_ON_DEVICE, **given
            )
            yield f"{name}, prefetch={prefetch}", difference(epoch(found), expected)


def not_in_a_capture(schedule: str) -> Outcomes:
    """What waits, allocates or reads pageable memory breaks a capture, as with the driver."""
    case = homogeneous([5, 3])
    backend = CudaBackend(DEVICE)
    work = backend.workspace(backend.memory.place_graph(case.csc, "device"), case.plan)
    work.sample(case.seeds, case.key)
    there, pageable = torch.zeros(9, device=DEVICE), torch.zeros(9)
    refused: dict[str, Callable[[], object]] = {
        "a batch whose counts are waited for": lambda: work.sample(case.seeds, case.key),
        "a copy of pageable memory": lambda: there.copy_(pageable, non_blocking=True),
        "a wait for the stream": lambda: torch.cuda.current_stream().synchronize(),
        "a wait for the device": torch.cuda.synchronize,
    }
    for name, call in refused.items():
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                call()
        except RuntimeError as error:
            problem = "" if "capture" in str(error).lower() else f"another error: {error}"
        else:
            problem = "nothing was refused"
        yield name, problem


CHECKS = (replayed_batches, replayed_steps, late_counts, not_in_a_capture)
