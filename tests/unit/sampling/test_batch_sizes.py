"""Small batches, which one kernel call samples, and large ones, which threads share, take turns."""

import pytest
import torch
from torch_geometric.data import Data
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
