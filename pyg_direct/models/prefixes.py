"""Which rows of a sampled batch lie within so many hops of the seeds: a prefix, for each type."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch.edges import HopEnds, SampledEdges
from ..ops.products import Adjacency
from .spaces import Connectivity, Edges, Nodes, Space, ends

ALL = math.inf  # hops: all rows of the batch


class NotAPrefix(Exception):  # noqa: N818 (no error: another way is taken)
    """The rows of a batch, or of a value computed on it, are not those that its hops tell."""


class Prefixes:
    """The prefixes of one batch.

    Nodes and edges are numbered in the order of the hops in which they were found. So the nodes
    within h hops of the seeds are the first ones, the edges into them are the first ones of the
    batch, and as edges are sorted by destination, they are the first rows of one CSR matrix.

    Args:
        edges: edge type (None in a homogeneous graph) -> its sampled edges.

    Raises:
        NotAPrefix: edges without hops, or with hops that contradict each other.
    """

    def __init__(self, edges: Mapping[Any, SampledEdges]) -> None:
        self._edges = edges
        self._hops: dict[Any, HopEnds] = {}
        self._nodes: dict[Any, tuple[int, ...]] = {}
        self._matrices: dict[Any, Adjacency] = {}
        self.notes: dict[Any, Any] = {}  # what layers compute once for the whole batch
        for key, sampled in edges.items():
            hops = sampled.hops
            if hops is None:
                raise NotAPrefix("the edges were written to")
            self._hops[key] = hops
            for end, counts in zip(ends(key), (hops.source, hops.destination), strict=True):
                if self._nodes.setdefault(end, counts) != counts:
                    raise NotAPrefix("edge types of different batches")

    def num_nodes(self, node_type: Any, hops: float) -> int | None:
        """Return how many nodes lie within so many hops; None for a type without edges."""
        counts = self._nodes.get(node_type)
        return None if counts is None else counts[int(min(hops, len(counts) - 1))]

    def num_edges(self, edge_type: Any, hops: float) -> int | None:
        """Return how many edges lead into nodes within so many hops; None if it is not known."""
        known = self._hops.get(edge_type)
        return None if known is None else known.edge[int(min(hops, len(known.edge) - 1))]

    def all_edges(self, edge_type: Any) -> int:
        """Return how many edges of a type the batch has; 0 for a type without edges."""
        known = self._hops.get(edge_type)
        return 0 if known is None or not known.edge else known.edge[-1]

    def num_rows(self, space: Space, hops: float) -> int | None:
        """Return how many rows of a value are within so many hops; None if it has no rows."""
        if isinstance(space, Nodes):
            return self.num_nodes(space.node_type, hops)
        if isinstance(space, Edges):
            return self.num_edges(space.edge_type, hops)
        return None

    def trim(self, value: Any, space: Space, hops: float) -> Any:
        """Return the rows within so many hops, without a copy.

        Raises:
            NotAPrefix: the value has fewer rows.
        """
        if isinstance(space, Connectivity):
            return self.edge_index(space.edge_type, hops)
        rows = self.num_rows(space, hops)
        if rows is None or not isinstance(value, Tensor):
            return value
        dim: int = getattr(space, "dim", 0)
        if value.dim() <= dim or value.size(dim) < rows:
            raise NotAPrefix(f"a value of shape {tuple(value.shape)} where {rows} rows are needed")
        return value if value.size(dim) == rows else value.narrow(dim, 0, rows)

    def edge_index(self, edge_type: Any, hops: float) -> Tensor:
        """Return the edges into nodes within so many hops, as a plain tensor, without a copy."""
        plain = self._edges[edge_type].as_tensor()
        prefix: Tensor = plain[:, : self.num_edges(edge_type, hops)]
        return prefix

    def indptr(self, edge_type: Any) -> Tensor:
        """Return where the edges of each destination of the batch begin, int64 [nodes + 1]."""
        indptr: Tensor = self._edges[edge_type].get_indptr()
        return indptr

    def matrix(self, edge_type: Any, hops: float) -> Adjacency:
        """Return the edges into nodes within so many hops as a CSR matrix, without a copy.

        Made once for each number of hops, so that layers share its transpose.
        """
        known = self._hops[edge_type]
        destinations = known.destination[int(min(hops, len(known.destination) - 1))]
        sources = known.source[int(min(hops + 1, len(known.source) - 1))]
        key = edge_type, destinations, sources
        if key not in self._matrices:
            index = self.edge_index(edge_type, hops)[0]
            indptr = self.indptr(edge_type)[: destinations + 1]
            _check_sources(index, sources)
            self._matrices[key] = Adjacency(indptr, index, sources)
        return self._matrices[key]


def _check_sources(index: Tensor, sources: int) -> None:
    """Look at what a kernel is going to use as row numbers: the tensor is in the user's hands."""
    if index.numel() == 0:
        return
    low, high = torch.aminmax(index)
    if bool((low < 0) | (high >= sources)):
        raise NotAPrefix(f"edges from nodes {int(low)} to {int(high)} where {sources} are known")
