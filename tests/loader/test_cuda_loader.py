"""Whole batches of the loader: the emulated CUDA backend gives what the CPU backend gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_graphs import assert_equal, attributed_graph, graph, heterogeneous_graph
from emulator import ORDERS, emulated, give_to_loaders
from torch_geometric.data import Data

from pyg_direct import LinkNeighborLoader, NeighborLoader
from pyg_direct.ops.cuda.backend import CudaBackend


@pytest.fixture(params=ORDERS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """A list that collects the CUDA backends that loaders are given while it is in use."""
    with emulated(order=request.param) as backend:
        yield give_to_loaders(backend, monkeypatch)


def batches(data: Data, **arguments: Any) -> list[dict[str, Any]]:
    loader = NeighborLoader(data, seed=5, **arguments)
    return [batch.to_dict() for _ in range(2) for batch in loader]


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_neighbors": [5, 3]},
        {"num_neighbors": [5, 3], "replace": True},
        {"num_neighbors": [5, 3], "disjoint": True},
        {"num_neighbors": [-1, 2], "shuffle": True},
        {"num_neighbors": [40], "subgraph_type": "bidirectional"},
        {"num_neighbors": [4, 2], "subgraph_type": "induced"},
        {"num_neighbors": [4, 2], "subgraph_type": "induced", "disjoint": True},
        {"num_neighbors": [4, 2], "num_workers": 2, "prefetch": 2},
    ],
    ids=lambda arguments: "-".join(str(value) for value in arguments.values()),
)
def test_batches_are_the_same(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    data, arguments = graph(), {"batch_size": 16, **arguments}
    got = batches(data, **arguments)
    assert device, "the loader did not ask for the emulated backend"
    assert device[0].library.compiler.launches > 20
    monkeypatch.undo()
    expected = batches(data, **arguments)
    assert len(got) == 10
    for mine, theirs in zip(got, expected, strict=True):
        assert_equal(mine, theirs)


NOW = torch.arange(80) % 60


@pytest.mark.parametrize(
    "arguments",
    [
        {"time_attr": "time"},
        {"time_attr": "time", "temporal_strategy": "last", "num_neighbors": [3, -1]},
        {"time_attr": "edge_time", "input_time": NOW, "replace": True},
        {"time_attr": "edge_time", "input_time": NOW, "temporal_strategy": "last"},
        {"weight_attr": "weight"},
        {"weight_attr": "weight", "replace": True, "num_neighbors": [40, 2]},
        {"weight_attr": "weight", "num_neighbors": [40, -1]},
        {"weight_attr": "weight", "time_attr": "time", "num_workers": 2, "prefetch": 2},
    ],
    ids=lambda arguments: "-".join(key for key in arguments),
)
def test_batches_by_time_and_by_weight_are_the_same(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch, arguments: dict[str, Any]
) -> None:
    data, arguments = attributed_graph(), {"num_neighbors": [5, 3], "batch_size": 20, **arguments}
    got = batches(data, **arguments)
    assert device, "the loader did not ask for the emulated backend"
    monkeypatch.undo()
    expected = batches(data, **arguments)
    assert len(got) == 8
    assert sum(batch["edge_index"].size(1) for batch in expected) > 100
    for mine, theirs in zip(got, expected, strict=True):
        assert_equal(mine, theirs)


def test_heterogeneous_batches_by_time_and_by_weight(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Venues have no times and are not bound by them; one edge type has weights."""
    data, generator = heterogeneous_graph(), torch.Generator().manual_seed(4)
    data["paper"].time = torch.randint(30, (70,), generator=generator)
    data["author"].time = torch.randint(30, (40,), generator=generator)
    data["paper", "cites", "paper"].weight = torch.rand(300, generator=generator)
    arguments = {
        "num_neighbors": [4, 3], "input_nodes": "paper", "batch_size": 20, "time_attr": "time",
        "weight_attr": "weight",
    }  # fmt: skip
    got = batches(data, **arguments)
    assert device
    monkeypatch.undo()
    for mine, theirs in zip(got, batches(data, **arguments), strict=True):
        assert_equal(mine, theirs)


@pytest.mark.parametrize("disjoint", [False, True])
def test_heterogeneous_batches_on_a_gpu_are_those_of_the_cpu(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch, disjoint: bool
) -> None:
    data = heterogeneous_graph()
    arguments = {"num_neighbors": [4, -1], "input_nodes": "paper", "batch_size": 9}
    got = batches(data, disjoint=disjoint, **arguments)
    assert device
    monkeypatch.undo()
    for mine, theirs in zip(got, batches(data, disjoint=disjoint, **arguments), strict=True):
        assert_equal(mine, theirs)


def test_link_batches_on_a_gpu_are_those_of_the_cpu(
    device: list[CudaBackend], monkeypatch: pytest.MonkeyPatch
) -> None:
    def link_batches() -> list[dict[str, Any]]:
        loader = LinkNeighborLoader(
            graph(), num_neighbors=[4, 2], neg_sampling_ratio=1.0, batch_size=200, seed=3
        )
        return [batch.to_dict() for batch in loader]

    got = link_batches()
    assert device
    monkeypatch.undo()
    for mine, theirs in zip(got, link_batches(), strict=True):
        assert_equal(mine, theirs)
