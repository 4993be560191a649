"""Whole batches of the loader: the emulated CUDA backend gives what the CPU backend gives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulator import ORDERS, emulated
from torch import Tensor
from torch_geometric.data import Data

import pyg_direct.loader
import pyg_direct.sampler
from pyg_direct import NeighborLoader
from pyg_direct.ops.cuda import CudaBackend


def graph(seed: int = 0, num_nodes: int = 80, num_edges: int = 700) -> Data:
    generator = torch.Generator().manual_seed(seed)
    edge_index = torch.randint(0, num_nodes, (2, num_edges), generator=generator)
    edge_index[1, : num_edges // 3] = 0  # a hub
    return Data(
        x=torch.randn(num_nodes, 33, generator=generator),
        y=torch.arange(num_nodes),
        half=torch.randn(num_nodes, 3, generator=generator).to(torch.bfloat16),
        edge_index=edge_index,
        edge_attr=torch.randn(num_edges, 2, generator=generator),
    )


@pytest.fixture(params=ORDERS)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[list]:
    """A list that collects the CUDA backends that loaders are given while it is in use."""
    backends: list[CudaBackend] = []
    with emulated(order=request.param) as backend:

        def backend_for(device: torch.device, threads: int = 1) -> CudaBackend:
            backends.append(backend)
            return backend

        for module in (pyg_direct.sampler, pyg_direct.loader):
            monkeypatch.setattr(module, "backend_for", backend_for)
        yield backends


def batches(data: Data, **arguments: Any) -> list[dict[str, Any]]:
    loader = NeighborLoader(data, seed=5, **arguments)
    return [batch.to_dict() for _ in range(2) for batch in loader]


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(got, dict):
        assert got.keys() == expected.keys()
        for key in got:
            assert_equal(got[key], expected[key])
    elif isinstance(got, Tensor):
        assert got.dtype == expected.dtype
        assert torch.equal(got, expected)
    else:
        assert got == expected


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
