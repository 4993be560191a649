"""Graphs with what matters to a device: a hub, rows of odd widths, times and weights."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData


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


def heterogeneous_graph() -> HeteroData:
    generator = torch.Generator().manual_seed(1)
    data, sizes = HeteroData(), {"paper": 70, "author": 40, "venue": 3}
    for name, size in sizes.items():
        data[name].x = torch.randn(size, 5, generator=generator)
    for src, relation, dst, size in (
        ("paper", "cites", "paper", 300),
        ("author", "writes", "paper", 200),
        ("paper", "written_by", "author", 150),
        ("venue", "prints", "paper", 70),
    ):
        source = torch.randint(0, sizes[src], (size,), generator=generator)
        target = torch.randint(0, sizes[dst], (size,), generator=generator)
        data[src, relation, dst].edge_index = torch.stack([source, target])
    return data


def attributed_graph() -> Data:
    """Return `graph()` with times and weights of every kind that the loader takes."""
    data, generator = graph(), torch.Generator().manual_seed(2)
    data.time = torch.randint(50, (data.num_nodes,), generator=generator)
    data.edge_time = torch.randint(50, (data.num_edges,), generator=generator)
    data.weight = torch.rand(data.num_edges, generator=generator).pow(4)
    data.weight[::3] = 0
    data.weight[::50] = 1e30
    return data


def assert_equal(got: Any, expected: Any) -> None:
    assert type(got) is type(expected)
    if isinstance(got, dict):
        assert got.keys() == expected.keys()
        for key in got:
            assert_equal(got[key], expected[key])
    elif isinstance(got, Tensor):
        assert got.dtype == expected.dtype
        assert torch.equal(got.cpu(), expected.cpu())
    else:
        assert got == expected
