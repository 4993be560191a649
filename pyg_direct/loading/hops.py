"""Telling a loader to hand out what it knows of the order of its edges."""

from __future__ import annotations

from ..core.pyg import SubgraphType
from ..sampling.sampler import NeighborSampler
from .base import DirectLoader


def hand_out_hops(loader: DirectLoader) -> str:
    """Make the edges of all batches from now on `SampledEdges`; see `pyg_direct.accelerate`.

    Returns:
        Why the sampler's edges do not come hop by hop, sorted by destination; "" if they do.
    """
    if loader._gives_whole_subgraphs:
        return f"the batches of a {type(loader).__name__} are whole subgraphs"
    sampler = loader._sampler
    if not isinstance(sampler, NeighborSampler):
        return f"neighbor_sampler= is a {type(sampler).__name__}, not pyg_direct's"
    if sampler.subgraph_type != SubgraphType.directional:
        return f"subgraph_type is {sampler.subgraph_type.value!r}, not 'directional'"
    if sampler.sample_direction != "forward":
        return f"sample_direction is {sampler.sample_direction!r}, not 'forward'"
    if loader.transform_sampler_output:
        return "transform_sampler_output= may change the edges"
    loader._hands_out_hops = True
    return ""
