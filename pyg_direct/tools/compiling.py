"""Compile the CPU kernels before anybody waits for them, as while an image is built."""

from __future__ import annotations

import importlib
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..files.choices import PowerLaw
from ..files.generate import generate
from ..ops.host.in_common import RankNodes
from ..ops.host.parts import ids_at

NODES, EDGES = 2_000, 70_000  # enough edges to be sorted by kernels
TYPES, EDGES_OF_TYPE = ("a", "b"), 3_000
FIXED: dict[str, Any] = {"num_neighbors": [4, 3], "batch_size": 64}
TIMES: dict[str, Any] = {"time_attr": "time", "input_time": torch.full((NODES,), 500)}
WEIGHTS: dict[str, Any] = {"weight_attr": "weight"}

# What `NeighborLoader` is given beside FIXED: each compiles other kernels, or the same ones for
# arguments of other types.
NODE_OPTIONS: list[dict[str, Any]] = [
    {},
    {"replace": True},
    {"disjoint": True},
    {"num_neighbors": [100, -1]},
    {"subgraph_type": "induced"},
    {"subgraph_type": "bidirectional"},
    {"subgraph_type": "induced", "disjoint": True},
    WEIGHTS,
    {**WEIGHTS, "replace": True},
    TIMES,
    {**TIMES, "temporal_strategy": "last"},
    {**TIMES, **WEIGHTS},
    {**TIMES, **WEIGHTS, "replace": True},
]
LINK_OPTIONS: list[dict[str, Any]] = [
    {},
    {"neg_sampling": "binary"},
    {"exclude_seed_edges": True},
    {"exclude_seed_edges": True, "replace": True},
    {"exclude_seed_edges": True, **WEIGHTS},
    {"exclude_seed_edges": True, "subgraph_type": "induced"},
]
NARROW = (torch.int8, torch.float16, torch.bfloat16)


def compile_kernels() -> None:
    """Run loaders and `inference` over small graphs on the CPU, so that their kernels are cached.

    numba compiles a kernel at its first call for the types of its arguments, and keeps the machine
    code on disk (in `NUMBA_CACHE_DIR`, if that is set). The types are those of graphs with fewer
    than 2^31 nodes and edges. Left out is what only graphs of billions of edges, files larger than
    memory, weights whose sums overflow, and caches on a GPU need.
    """
    package: Any = importlib.import_module("pyg_direct")  # all of it, as a user's program
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for loader in _loaders(package):
            next(iter(loader))
        package.expected_visits(package.NeighborLoader(_graph(), **FIXED, device="cpu"))
        _run_models(package)
        _use_files(package)
    _number_for_ranks()


def _graph() -> Any:
    from torch_geometric.data import Data

    return Data(
        x=torch.randn(NODES, 8),
        y=torch.zeros(NODES, dtype=torch.int64),
        time=torch.randint(1_000, (NODES,)),
        edge_index=torch.randint(NODES, (2, EDGES)),
        weight=torch.rand(EDGES),
    )


def _typed_graph() -> Any:
    from torch_geometric.data import HeteroData

    data = HeteroData()
    for source in TYPES:
        data[source].x = torch.randn(NODES, 8)
        for target in TYPES:
            data[source, "to", target].edge_index = torch.randint(NODES, (2, EDGES_OF_TYPE))
    return data


def _loaders(package: Any) -> Iterator[Any]:
    """Yield a loader of each kind on the CPU, over unsorted and over sorted edges."""
    data, typed = _graph(), _typed_graph()
    device = {"device": "cpu"}
    parts = None if find_spec("pymetis") else torch.arange(NODES) % 4
    for given in (data, data.sort(sort_by_row=False)):
        for options in NODE_OPTIONS:
            yield package.NeighborLoader(given, **{**FIXED, **options}, **device)
        for options in LINK_OPTIONS:
            pairs = given.edge_index[:, :200]
            yield package.LinkNeighborLoader(
                given, edge_label_index=pairs, **{**FIXED, **options}, **device
            )
        yield package.ShaDowKHopSampler(given, 2, 3, batch_size=64, **device)
        yield package.PageRankLoader(given, 8, batch_size=64, **device)
        yield package.GraphSAINTNodeSampler(given, 200, **device)
        yield package.GraphSAINTEdgeSampler(given, 200, **device)
        yield package.GraphSAINTRandomWalkSampler(given, 100, 2, **device)
        yield package.ClusterLoader(
            package.ClusterData(given, 4, log=False, partition=parts), batch_size=2, **device
        )
    simple = data.coalesce()  # adds the edges of several up, as LABOR takes no parallel ones
    yield package.NeighborLoader(
        simple, **FIXED, sampling="labor", batch_dependency=2, order="proximity", **device
    )
    for p in (1.0, 2.0):
        yield package.Node2Vec(data.edge_index, 4, 5, 3, p=p, num_nodes=NODES).loader(batch_size=64)
    yield package.NeighborLoader(typed, **FIXED, input_nodes="a", **device)
    yield package.HGTLoader(typed, [32, 32], input_nodes="a", batch_size=16, **device)
    for dtype in NARROW:
        for decoded in (torch.float32, torch.bfloat16):
            data.x = package.quantize(torch.randn(NODES, 8), dtype)
            yield package.NeighborLoader(data, **FIXED, feature_dtype=decoded, **device)


def _run_models(package: Any) -> None:
    """Run inference, and train for an epoch."""
    from torch_geometric.nn.models import GAT, GraphSAGE

    data = _graph()
    loader = package.NeighborLoader(data, [10, 10], batch_size=NODES, device="cpu")
    for model in (*(GraphSAGE(8, 4, 2, 4, aggr=kind) for kind in ("mean", "max")), GAT(8, 4, 2, 4)):
        package.inference(model, data, inputs=("x", "edge_index"))
        fast = package.accelerate(model, loader)
        for batch in loader:
            fast(batch.x, batch.edge_index).sum().backward()


def _use_files(package: Any) -> None:
    """Write graphs to files, and sample from them."""
    with tempfile.TemporaryDirectory() as folder:
        generate(PowerLaw(NODES, EDGES), Path(folder) / "generated")
        package.partition(_graph(), Path(folder) / "parts", 2, "ldg")
        list(package.NeighborLoader(package.open(Path(folder) / "parts"), **FIXED, device="cpu"))
        kinds: list[dict[str, Any]] = [{}, TIMES, WEIGHTS]
        for number, options in enumerate(kinds):
            path = Path(folder) / str(number)
            names = {name: options[name] for name in options if name.endswith("_attr")}
            package.save(_graph(), path, **names)
            for verify, replace in ((True, False), (True, True), (False, False)):
                loader = package.NeighborLoader(
                    package.open(path, verify=verify),
                    **FIXED,
                    **options,
                    replace=replace,
                    device="cpu",
                )
                for _ in loader:  # keys of later batches are made in another way
                    pass


def _number_for_ranks() -> None:
    """Do what ranks do that make a batch together, as one process has no such loader."""
    sources, int64 = np.array([1, 2], np.int32), np.int64
    nodes = RankNodes(np.array([0, 0, 1, 0], np.int16), 0)
    nodes.begin(np.zeros(1, int64))
    nodes.begin_hop(len(sources))
    nodes.find(sources, np.array([2], np.int32), np.zeros(1, int64), 2, 0)
    nodes.asked_of(2)
    nodes.merge(np.array([3], np.int32), np.zeros(1, int64))
    nodes.number(in_order=True)
    nodes.write_rows(sources, 0, 2, np.empty(len(sources), int64))
    ids_at(sources, np.zeros(2, np.int32), 0, np.empty(2, int64))
