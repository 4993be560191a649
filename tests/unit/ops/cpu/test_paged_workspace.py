"""Graphs in files that are larger than memory: pages are read alone, and edges are the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct import NeighborLoader
from pyg_direct.ops.cpu import backend, file_pages
from pyg_direct.ops.cpu.file_pages import FilePages, PagedWorkspace
from pyg_direct.ops.cpu.workspace import CpuWorkspace
from tests.support.memory_maps import reads_alone

NODES, EDGES = 3000, 40_000

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(file_pages, "MIN_TABLE_BYTES", 1)
    rng = np.random.default_rng(0)
    data = Data(
        x=torch.arange(NODES, dtype=torch.float32).view(-1, 1),
        edge_index=torch.from_numpy(rng.integers(NODES, size=(2, EDGES))),
        time=torch.from_numpy(rng.integers(1000, size=EDGES)),
        weight=torch.from_numpy(rng.random(EDGES)),
    )
    pyg_direct.save(data, tmp_path / "graph", time_attr="time", weight_attr="weight")
    return tmp_path / "graph"


def batches(graph: Path, options: dict[str, Any]) -> list[list[Tensor]]:
    data: Any = pyg_direct.open(graph)
    seeds = torch.arange(0, NODES, 7)
    if "time_attr" in options:
        options = {**options, "input_time": torch.full((len(seeds),), 500)}
    loader = NeighborLoader(data, [5, 4], seeds, batch_size=100, seed=3, device="cpu", **options)
    return [[batch.n_id, batch.e_id, batch.edge_index, batch.x] for batch in loader]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replace": True, "disjoint": True},
        {"weight_attr": "weight"},
        {"time_attr": "time", "temporal_strategy": "last"},
        {"subgraph_type": "induced"},
    ],
    ids=lambda options: " ".join(options) or "plain",
)
def test_the_same_batches(
    graph: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    expected = batches(graph, options)
    made: list[PagedWorkspace] = []

    def paged(*arguments: Any) -> PagedWorkspace:
        made.append(PagedWorkspace(*arguments))
        return made[-1]

    monkeypatch.setattr(backend, "usable_bytes", lambda: 1000)
    monkeypatch.setattr(backend, "PagedWorkspace", paged)
    found = batches(graph, options)
    assert made
    assert len(found) == len(expected) > 1
    for ours, theirs in zip(found, expected, strict=True):
        assert all(map(torch.equal, ours, theirs))


@pytest.mark.parametrize("room", [0, 1])
def test_a_missing_page_is_read_alone_where_memory_is_too_small(
    graph: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """And only while a hop is sampled: what reads the arrays as a whole has them read ahead."""
    data: Any = pyg_direct.open(graph)
    csc = data.edge_index.graph.csc
    arrays = [torch.from_numpy(csc.indptr), torch.from_numpy(csc.indices)]
    assert csc.file_bytes == sum(path.stat().st_size for path in graph.glob("*.bin"))
    seen: list[list[bool]] = []
    asked: list[int] = []

    def watched(step: Any) -> Any:
        def call(self: CpuWorkspace, hop: int, *others: Any) -> None:
            seen.append([reads_alone(array) for array in arrays])
            step(self, hop, *others)

        return call

    def request(self: FilePages, table: Tensor, index: Any) -> None:
        asked.append(table.data_ptr())

    monkeypatch.setattr(backend, "usable_bytes", lambda: csc.file_bytes - 1 + room)
    for name in ("plan", "sample_edges"):
        monkeypatch.setattr(CpuWorkspace, name, watched(getattr(CpuWorkspace, name)))
    monkeypatch.setattr(FilePages, "request", request)
    data.num_nodes = NODES
    del data.x
    next(iter(NeighborLoader(data, [5, 4], torch.arange(50), batch_size=50, device="cpu")))
    assert seen == [[room == 0] * 2] * 4  # both steps of both hops
    expected = 2 * [array.data_ptr() for array in arrays]
    assert [address for address in asked if address in expected] == (expected if room == 0 else [])
    assert not any(map(reads_alone, arrays))


def test_the_lists_of_each_relation_are_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pages, "MIN_TABLE_BYTES", 1)
    data = HeteroData()
    data["a"].num_nodes = data["b"].num_nodes = 40
    for source in ("a", "b"):
        data[source, "to", "b"].edge_index = torch.randint(40, (2, 300))
    pyg_direct.save(data, tmp_path / "graph")
    opened: Any = pyg_direct.open(tmp_path / "graph")
    csc = opened.edge_stores[0].edge_index.graph.csc
    address, asked = torch.from_numpy(csc.indptr).data_ptr(), []

    def request(self: FilePages, table: Tensor, index: Any) -> None:
        if table.data_ptr() == address:
            asked.append(index.tolist())

    monkeypatch.setattr(backend, "usable_bytes", lambda: 1000)
    monkeypatch.setattr(FilePages, "request", request)
    seeds = torch.tensor([7, 3, 11])
    next(iter(NeighborLoader(opened, [2], ("b", seeds), batch_size=3, device="cpu")))
    expected = [base + seed for base in csc.indptr_base.tolist()[:2] for seed in seeds.tolist()]
    assert asked == [expected]
