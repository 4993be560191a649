"""Conversion of sampled graphs to PyG's `SamplerOutput` and `HeteroSamplerOutput`."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput
from torch_geometric.typing import EdgeType, NodeType

from ..core.types import SampledGraph

Output: TypeAlias = SamplerOutput | HeteroSamplerOutput


@dataclass
class SampledLinks:
    """A subgraph around links, as PyG's `edge_sample` takes the output of a sampler.

    That numbers the subgraphs of disjoint samples anew, by link, and sets `metadata`.
    """

    graph: SampledGraph
    batch: Any  # int64 [n], the subgraph of each node; a dict by node type; None if not disjoint
    metadata: Any = None

    @classmethod
    def of(cls, graph: SampledGraph, node_types: Sequence[NodeType | None]) -> SampledLinks:
        """Return the subgraph with `batch` in the form of PyG's outputs."""
        batch: Any = graph.seed_of
        if batch is not None:
            batch = (
                batch[0] if is_untyped(node_types) else dict(zip(node_types, batch, strict=True))
            )
        return cls(graph, batch)

    def with_batch(self, node_types: Sequence[NodeType | None]) -> SampledGraph:
        """Return the subgraph with the numbers that `edge_sample` gave."""
        if self.batch is None:
            return self.graph
        numbers = [self.batch] if is_untyped(node_types) else [self.batch[k] for k in node_types]
        return self.graph._replace(seed_of=numbers)


def is_untyped(node_types: Sequence[NodeType | None]) -> bool:
    """Whether the types are those of a homogeneous graph: the one type None."""
    return node_types[0] is None


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
    node, seed_of, edge_index, edge, counts, num_edges, _ = sampled
    num_nodes = None if num_edges is None else counts
    ends = [both.unbind() for both in edge_index]
    if is_untyped(node_types):
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


def in_both_directions(out: Output, keep_orig_edges: bool) -> Output:
    """Return a subgraph with each edge and its opposite once, sorted by destination, then source.

    As PyG's `to_bidirectional`, which in a homogeneous graph leaves open which of the edges between
    two nodes gives its id, and with it its attributes. Here it is the first one, of the edges in
    the order in which they were sampled and then of their opposites, on every device: an edge that
    was sampled keeps its own. Edges of a heterogeneous graph have no ids then.

    Args:
        out: of any sampler.
        keep_orig_edges: keep the edges as sampled, too, and with them the counts by hop.
    """
    if not isinstance(out, SamplerOutput):
        return out.to_bidirectional(keep_orig_edges=keep_orig_edges)
    both = copy.copy(out)
    if keep_orig_edges:
        both.orig_row, both.orig_col = out.row, out.col
    else:
        both.num_sampled_nodes = both.num_sampled_edges = None
    edge_index, order = _with_opposites(torch.stack([out.row, out.col]), len(out.node))
    both.row, both.col = edge_index.unbind()
    both.edge = None if out.edge is None else torch.cat([out.edge, out.edge])[order]
    return both


def _with_opposites(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Return edges [2, e] and their opposites, each once, and which of the 2 * e each one is.

    Of equal ones the first counts. A stable sort finds it, where a scatter with equal indices would
    take any on a GPU.

    Example: the edges 0->1, 1->0, 2->0 and their opposites 1->0, 0->1, 0->2 give 1->0, 2->0, 0->1,
    0->2, which are those at the places 1, 2, 0, 5.
    """
    every = torch.cat([edge_index, edge_index.flip(0)], dim=1)
    place = every[1].to(torch.int64) * num_nodes + every[0]  # int32 ids would overflow
    place, order = place.sort(stable=True)
    is_first = torch.ones_like(place, dtype=torch.bool)
    is_first[1:] = place[1:] != place[:-1]
    order = order[is_first]
    return every[:, order], order
