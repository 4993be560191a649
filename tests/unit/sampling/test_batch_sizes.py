"""Small batches, which one kernel call samples, and large ones, which threads share, take turns."""

from typing import Any

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput

from pyg_direct import NeighborSampler
from pyg_direct.ops.cpu import workspace


def test_a_sampler_of_batches_of_many_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its arrays grow in both kinds of batch, and each is as one thread samples it alone."""
    monkeypatch.setattr(workspace, "MIN_ITEMS_PER_THREAD", 40)
    edges = torch.randint(2000, (2, 10_000), generator=torch.Generator().manual_seed(0))
    data = Data(edge_index=edges, num_nodes=2000)
    used = NeighborSampler(data, [3, 3], threads=2)
    for number, size in enumerate((2, 60, 3, 200, 5, 90, 18, 600, 1)):
        seeds = NodeSamplerInput(None, 7 * torch.arange(size) % 2000)
        got = used.sample_from_nodes(seeds, key=(number, 1))
        expected = NeighborSampler(data, [3, 3]).sample_from_nodes(seeds, key=(number, 1))
        for name in ("node", "row", "col", "edge"):
            assert torch.equal(getattr(got, name), getattr(expected, name)), (size, name)
        assert got.num_sampled_nodes == expected.num_sampled_nodes
        assert got.num_sampled_edges == expected.num_sampled_edges


def test_padding_is_right_where_a_room_is_just_full() -> None:
    """All of type "a" are found where its room ends, and then found again."""
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 1, 60
    data["b", "to", "b"].edge_index = torch.randint(50, (2, 400))
    data["a", "to", "b"].edge_index = torch.stack([torch.zeros(10).long(), torch.arange(50, 60)])
    sampler = NeighborSampler(data, [3], threads=1)
    for seeds in (torch.arange(50), torch.arange(50, 60), torch.arange(49, 60)):
        out: Any = sampler.sample_from_nodes(NodeSamplerInput(None, seeds, input_type="b"))
        assert out.node["b"][: len(seeds)].tolist() == seeds.tolist()
        assert out.node["a"].tolist() == ([0] if len(seeds) < 50 else [])
