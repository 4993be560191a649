"""Conversion of sampled graphs to PyG's `SamplerOutput` and `HeteroSamplerOutput`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType

from ..types import SampledGraph

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
    is_hetero = list(node_types) != [None]

    def by_type(types: Sequence[Any], values: Sequence[Any] | None) -> Any:
        if values is None:
            return None
        return dict(zip(types, values, strict=True)) if is_hetero else values[0]

    edges, near = sampled.num_sampled_edges, 1 if backward else 0
    fields: dict[str, Any] = {
        "node": by_type(node_types, sampled.node),
        "row": by_type(edge_types, [e[near] for e in sampled.edge_index]),
        "col": by_type(edge_types, [e[1 - near] for e in sampled.edge_index]),
        "edge": by_type(edge_types, sampled.edge),
        "batch": by_type(node_types, sampled.seed_of),
        "num_sampled_nodes": by_type(
            node_types, None if edges is None else sampled.num_sampled_nodes
        ),
        "num_sampled_edges": by_type(edge_types, edges),
    }
    return HeteroSamplerOutput(**fields) if is_hetero else SamplerOutput(**fields)
