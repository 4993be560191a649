"""Which edges a batch of links does without, so that none of them predicts itself."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.sampler import EdgeSamplerInput
from torch_geometric.typing import EdgeType

from ..core.types import ExcludedEdges
from ..graph.from_pyg import Graph
from ..graph.verify import verified
from ..ops.host.search import find_edges
from .negatives import links_of_seeds

Ints = npt.NDArray[Any]
NO_INTS = np.empty(0, np.int64)


class SeedEdges:
    """Finds the edges of a graph that are the seed links of a batch, or their reverse.

    An edge is a seed link if it is of its type and has its ends, so that parallel edges are out
    together. Where edges have times of their own, it must have the link's time, too: earlier edges
    between the same ends are history. The lists of both ends are read once a batch.

    Args:
        graph: with its arrays in host memory, which are kept.
        mode: 'self' or 'reverse', or the edge type that holds the reverse of the seed links.
        backward: whether edges are followed from their sources.
    """

    def __init__(self, graph: Graph, mode: str | EdgeType, backward: bool) -> None:
        self._edge_types: list[Any] = list(graph.edge_types)
        self._csc, self._mode, self._backward = verified(graph.csc), mode, backward

    def relations_of(self, link_type: EdgeType | None) -> list[tuple[int, bool]]:
        """Return the relations that hold links of a type: their number, and whether reversed.

        Raises:
            ValueError: there is no reverse type, or it does not lead back.
        """
        types = self._edge_types
        found = [(types.index(link_type), False)] if link_type in types else []
        if self._mode != "self":
            reverse = link_type if link_type is None else self._reverse_of(link_type)
            found.append((types.index(reverse), True))
        return found

    def _reverse_of(self, link_type: EdgeType) -> EdgeType:
        source, name, destination = link_type
        if self._mode != "reverse":
            named: Any = self._mode
            if (named[0], named[-1]) != (destination, source):
                raise ValueError(
                    f"exclude_seed_edges={named!r} is not the reverse of the seed links' type "
                    f"{link_type!r}: it must lead from {destination!r} to {source!r}."
                )
            return named  # type: ignore[no-any-return]
        names = [f"rev_{name}", name.removeprefix("rev_")]
        candidates = [(destination, other, source) for other in names if other != name]
        candidates += [link_type] if source == destination else []
        for candidate in candidates:
            if candidate in self._edge_types:
                return candidate
        raise ValueError(
            f"exclude_seed_edges='reverse' finds no reverse of {link_type!r}, which would be "
            f"{candidates[0]!r}. Name it, as exclude_seed_edges=(source, name, destination), or "
            f"pass 'self'."
        )

    def of_batch(
        self, links: EdgeSamplerInput, disjoint: bool, paired: bool
    ) -> Callable[[int], ExcludedEdges]:
        """Return a function from the number of seeds to the edges that a batch leaves out.

        Subgraphs that share their nodes leave out all links of the batch; a disjoint one leaves out
        the link whose number it has (`batch.batch`), also where it belongs to a negative.

        Args:
            links: the seed links, without negatives.
            disjoint: whether each seed has a subgraph of its own.
            paired: whether there are as many sources as destinations among the seeds.
        """

        def left_out(num_seeds: int) -> ExcludedEdges:
            link, position = self._edges_of(links)
            if not disjoint:
                return excluded_from_all(position)
            link_of = links_of_seeds(num_seeds, len(links.row), paired)
            return excluded_from_own(link, position, link_of.numpy())

        return left_out

    def _edges_of(self, links: EdgeSamplerInput) -> tuple[Ints, Ints]:
        """Return (link, position): which link leaves out which edge."""
        row, col = (end.numpy().astype(np.int64, copy=False) for end in (links.row, links.col))
        pairs = [(NO_INTS, NO_INTS)]
        for relation, is_reverse in self.relations_of(links.input_type):
            near, far = (row, col) if is_reverse != self._backward else (col, row)
            pairs.append(find_edges(self._csc, relation, near, far, links.time))
        link, position = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
        return link, position


class EdgeLookup:
    """Tells which pairs of nodes are edges of a relation, at whatever time.

    The list of each destination is read once a call.

    Args:
        graph: with its arrays in host memory, which are kept.
        backward: whether edges are followed from their sources.
    """

    def __init__(self, graph: Graph, backward: bool) -> None:
        self._edge_types: list[Any] = list(graph.edge_types)
        self._csc, self._backward = replace(verified(graph.csc), times=None, weights=None), backward

    def are_edges(self, kind: EdgeType | None, row: Tensor, col: Tensor) -> Tensor:
        """Return which pairs (row, col), int64 [n] each, are edges of a type, bool [n]."""
        found = torch.zeros(len(row), dtype=torch.bool)
        if kind in self._edge_types and len(row) > 0:
            far, near = (part.to(torch.int64).numpy() for part in (row, col))
            if self._backward:
                near, far = far, near
            pair, _ = find_edges(self._csc, self._edge_types.index(kind), near, far, None)
            found[torch.from_numpy(pair)] = True
        return found


def excluded_from_all(position: Ints) -> ExcludedEdges:
    """Return edges that no subgraph of a batch may have; see `SeedEdges`."""
    distinct = np.unique(position)
    bounds = np.array([[0], [len(distinct)]])
    return ExcludedEdges(torch.from_numpy(distinct), torch.from_numpy(bounds))


def excluded_from_own(link: Ints, position: Ints, link_of: Ints) -> ExcludedEdges:
    """Return edges that are left out of the subgraphs of their links only.

    Args:
        link: [n], the link of each edge.
        position: [n], where the edge is.
        link_of: [subgraphs], the link of each subgraph.

    Example: link = [1, 0], position = [3, 7] and subgraphs of the links 0, 1, 0 give the edges
    7, 3, of which the subgraphs leave out 7, 3 and 7.
    """
    order = np.lexsort((position, link))
    link, position = link[order], position[order]
    distinct = np.ones(len(link), np.bool_)
    distinct[1:] = (link[1:] != link[:-1]) | (position[1:] != position[:-1])
    link, position = link[distinct], position[distinct]
    bounds = np.stack([np.searchsorted(link, link_of), np.searchsorted(link, link_of, "right")])
    return ExcludedEdges(torch.from_numpy(position), torch.from_numpy(bounds))
