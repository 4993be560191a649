"""Sampling along the edges instead of against them."""

import pytest
import torch
from hetero import graph as hetero_graph
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from pyg_direct import NeighborLoader, NeighborSampler

pytestmark = pytest.mark.usefixtures("each_backend")


def homogeneous():
    generator = torch.Generator().manual_seed(0)
    return Data(
        num_nodes=40,
        edge_index=torch.randint(40, (2, 200), generator=generator),
        weight=torch.rand(200, generator=generator),
        time=torch.randint(9, (40,), generator=generator),
    )


@pytest.mark.pyg("sample_direction")
@pytest.mark.parametrize("arguments", [{}, {"weight_attr": "weight"}, {"time_attr": "time"}])
def test_it_is_forward_sampling_of_the_reversed_graph(arguments):
    data = homogeneous()
    reversed_data = data.clone()
    reversed_data.edge_index = data.edge_index.flip(0)
    sampler = NeighborSampler(data, [3, 3], sample_direction="backward", seed=1, **arguments)
    backward = NodeLoader(data, sampler, batch_size=10)
    forward = NodeLoader(
        reversed_data, NeighborSampler(reversed_data, [3, 3], seed=1, **arguments), batch_size=10
    )
    for a, b in zip(backward, forward, strict=True):
        a, b = a.to("cpu"), b.to("cpu")
        assert torch.equal(a.n_id, b.n_id)
        assert torch.equal(a.e_id, b.e_id)
        assert torch.equal(a.edge_index, b.edge_index.flip(0))
        assert torch.equal(a.n_id[a.edge_index], data.edge_index[:, a.e_id])


@pytest.mark.pyg("sample_direction")
def test_every_edge_out_of_the_seeds():
    data = homogeneous()
    sampler = NeighborSampler(data, [-1], sample_direction="backward")
    (batch,) = NeighborLoader(
        data, [-1], input_nodes=torch.arange(5), batch_size=5, neighbor_sampler=sampler
    )
    assert sorted(batch.e_id.tolist()) == (data.edge_index[0] < 5).nonzero().view(-1).tolist()


@pytest.mark.pyg("sample_direction")
def test_heterogeneous():
    data = hetero_graph()
    sampler = NeighborSampler(data, [-1, 2], sample_direction="backward")
    for batch in NodeLoader(data, sampler, input_nodes="a", batch_size=10):
        batch = batch.to("cpu")
        seeds = batch["a"].n_id[: batch["a"].batch_size]
        for key in data.edge_types:
            store = batch[key]
            row, col = store.edge_index
            ends = torch.stack([batch[key[0]].n_id[row], batch[key[2]].n_id[col]])
            assert torch.equal(ends, data[key].edge_index[:, store.e_id])
            if key[0] == "a":
                out = torch.isin(data[key].edge_index[0], seeds).sum()
                assert int(out) == store.num_sampled_edges[0]


@pytest.mark.pyg("sample_direction")
def test_a_wrong_direction():
    with pytest.raises(ValueError, match="one of 'forward', 'backward', got 'up'"):
        NeighborSampler(homogeneous(), [2], sample_direction="up")
