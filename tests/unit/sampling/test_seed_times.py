"""Times of seeds: those that the sampler has no use for, and their dtype."""

import pytest
import torch
from graphs import example_graph
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from pyg_direct import NeighborSampler
from pyg_direct.sampling.sampler import keyed


def test_times_without_time_attr_are_passed_on_by_the_sampler() -> None:
    """RelBench gives them with the seeds of static links; loaders refuse them."""
    sampler = NeighborSampler(example_graph(), [2, 2], disjoint=True, seed=0)
    nodes, time = torch.tensor([0, 7]), torch.tensor([5, 1])
    outs = [
        sampler.sample_from_nodes(NodeSamplerInput(None, nodes, given), key=(1, 2))
        for given in (None, time)
    ]
    assert torch.equal(outs[0].node, outs[1].node)
    assert torch.equal(outs[1].metadata[1], time)
    links = EdgeSamplerInput(None, nodes, nodes.flip(0), None, time)
    assert torch.equal(sampler.sample_from_edges(links).metadata[-1], time)


def test_times_are_given_on_in_64_bits_and_of_nodes_only() -> None:
    data = example_graph()
    data.time = torch.arange(12)
    sampler = NeighborSampler(data, [2], time_attr="time")
    nodes = torch.tensor([0, 7])
    time = keyed(sampler).seed_time(None, nodes, torch.tensor([5, 1], dtype=torch.int32))
    assert time is not None
    assert (time.dtype, time.tolist()) == (torch.int64, [5, 1])
    for wrong in (-1, 12):
        seeds = NodeSamplerInput(None, torch.tensor([0, wrong]))
        with pytest.raises(IndexError, match=rf"seeds must be node ids in \[0, 12\), got {wrong}"):
            sampler.sample_from_nodes(seeds)
