"""Times of seeds that the sampler has no use for."""

import torch
from graphs import example_graph
from torch_geometric.sampler import EdgeSamplerInput, NodeSamplerInput

from pyg_direct import NeighborSampler


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
