"""Sampling along the edges instead of against them."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.loader import NodeLoader

from pyg_direct import NeighborSampler

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
def test_a_wrong_direction():
    with pytest.raises(ValueError, match="one of 'forward', 'backward', got 'up'"):
        NeighborSampler(homogeneous(), [2], sample_direction="up")
