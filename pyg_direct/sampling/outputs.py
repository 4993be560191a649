"""Conversion of sampled graphs to PyG's `SamplerOutput` and `HeteroSamplerOutput`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType

from ..core.types import SampledGraph

Output: TypeAlias = SamplerOutput | HeteroSamplerOutput


def output_of(
    sampled: SampledGraph,
    node_types: Sequence[NodeType | None],
    edge_types: Sequence[EdgeType | None],
    backward: bool,
) -> Output:
    """Return a sampled subgraph as PyG's samplers do.

    As in PyG, an induced subgraph has no counts by hop.

    Args:
        sampled: of each type.
        node_types: of the graph; [None] for a homogeneous one, whose one type is unwrapped.
        edge_types: likewise.
        backward: whether edges were followed from their sources, which then are the destinations
            in `sampled`.
    """
    near = 1 if backward else 0
    node, seed_of, edge_index, edge, counts, num_edges = sampled
    num_nodes = None if num_edges is None else counts
    ends = [both.unbind() for both in edge_index]
    if list(node_types) == [None]:
        return SamplerOutput(
            node=node[0],
            row=ends[0][near],
            col=ends[0][1 - near],
            edge=edge[0],
            batch=seed_of[0] if seed_of is not None else None,
            num_sampled_nodes=num_nodes[0] if num_nodes is not None else None,
            num_sampled_edges=num_edges[0] if num_edges is not None else None,
        )

    def by_type(types: Sequence[Any], values: Sequence[Any] | None) -> Any:
        return None if values is None else dict(zip(types, values, strict=True))

    return HeteroSamplerOutput(
        node=by_type(node_types, node),
        row=by_type(edge_types, [e[near] for e in ends]),
        col=by_type(edge_types, [e[1 - near] for e in ends]),
        edge=by_type(edge_types, edge),
        batch=by_type(node_types, seed_of),
        num_sampled_nodes=by_type(node_types, num_nodes),
        num_sampled_edges=by_type(edge_types, num_edges),
    )
