"""Batches of given sizes: their counts, a CUDA graph of one; what no capture permits."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from conformance import Case, homogeneous, make_csc, make_seeds, uniform_plan

import pyg_direct
from pyg_direct.core.types import NO_RULES, BatchKey, SampledGraph, Sizes
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.backend import CudaBackend

from .. import loaders
from ..batches import difference, epoch
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
    csc, hops = case.csc, len(case.plan.fanouts)
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
        for hop in range(hops):
            work.hop(hop)
        got = work.finish_padded(sizes)
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


CHECKS = (replayed_batches, late_counts, not_in_a_capture)
