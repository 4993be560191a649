"""PyG's symmetric normalisation by degree (`gcn_norm`), of the whole graph, block by block."""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn.conv.gcn_conv import gcn_norm

from .blocks import Block, Degrees, Scope
from .calls import renamed, uses_name
from .cutter import Convolution
from .spaces import ends


class Normalisation:
    """Weights of edges and self loops as PyG's `gcn_norm` gives them.

    ``w(u, v) / sqrt(deg(u) * deg(v))`` with ``deg`` the sum of the weights of a node's in-edges
    (Kipf and Welling, "Semi-supervised classification with graph convolutional networks", 2017,
    section 2). With self loops, a loop of the graph keeps its weight (the last one, if there are
    several), and all other nodes get one of weight `fill`.

    Args:
        edge_type: of the edges.
        add_self_loops: whether the layer adds them.
        fill: their weight.
        weight: name of the value with the weights of the edges; None for 1.
    """

    def __init__(self, edge_type: Any, add_self_loops: bool, fill: float, weight: str | None):
        self.edge_type, self.add_self_loops = edge_type, add_self_loops
        self._fill, self._weight = fill, weight

    @property
    def key(self) -> tuple[Any, ...]:
        """What layers with the same weights have in common."""
        return self.edge_type, self.add_self_loops, self._fill, self._weight

    def measured(self, blocks: Iterable[Block]) -> Degrees:
        """Return what the edges into consecutive blocks tell, for all of their nodes."""
        parts = [self._counted(block) for block in blocks]
        degree = torch.cat([degree for degree, _ in parts])
        scale = degree.pow(-0.5).masked_fill_(degree == 0, 0)
        loops = [loop for _, loop in parts if loop is not None]
        return Degrees(scale, torch.cat(loops) if loops else None)

    def names(self, block: Block | None) -> dict[str, dict[str, Any]]:
        """Return what stands in for `gcn_norm` in a forward, for `calls.run_forward`.

        Args:
            block: nodes whose in-edges the forward is given; None for no edges.
        """

        def of_all(edge_index: Tensor, edge_weight: Any = None, *_: Any, **__: Any) -> Any:
            if block is None:
                return edge_index, torch.empty(0)
            return self.edges(block, edge_index, edge_weight)

        return {"forward": {"gcn_norm": of_all}}

    def _counted(self, block: Block) -> tuple[Tensor, Tensor | None]:
        """Return the degrees and the weights of the self loops of a block."""
        edges = block.in_edges(self.edge_type)
        weight = self._weights(block, None)
        if not self.add_self_loops:
            return weight.new_zeros(block.size).index_add_(0, edges.target, weight), None
        looped = edges.source == block.first + edges.target
        loop = weight.new_full((block.size,), self._fill)
        if self._weight is not None:
            order = edges.ids[looped].argsort()
            target, own = edges.target[looped][order], weight[looped][order]
            order = target.argsort(stable=True)
            target, own = target[order], own[order]
            last = torch.ones_like(target, dtype=torch.bool)
            last[:-1] = target[1:] != target[:-1]
            loop[target[last]] = own[last]
        degree = loop.index_add(0, edges.target, weight.masked_fill(looped, 0))
        return degree, loop

    def edges(self, block: Block, edge_index: Tensor, weight: Tensor | None) -> Any:
        """Return a block's edges, loops last, and their normalised weights.

        Args:
            block: nodes whose in-edges are asked for.
            edge_index: int64 [2, E] in the numbering of the layer.
            weight: [E], or None for 1.
        """
        scale, loop = block.scope.degrees[self.key]
        edges = block.in_edges(self.edge_type)
        own = block.first + edges.target
        weight = self._weights(block, weight)
        if loop is not None:
            weight = weight.masked_fill(edges.source == own, 0)
        weight = scale[edges.source] * weight * scale[own]
        if loop is not None:
            here = slice(block.first, block.last)
            weight = torch.cat([weight, scale[here] * loop[here] * scale[here]])
            ids = torch.arange(block.size, device=edge_index.device)
            edge_index = torch.cat([edge_index, torch.stack([ids, ids])], dim=1)
        return edge_index, weight

    def _weights(self, block: Block, weight: Tensor | None) -> Tensor:
        edges = block.in_edges(self.edge_type)
        if self._weight is None:
            return torch.ones(len(edges.ids), device=edges.ids.device)
        if weight is None:
            weight = block.scope.edge_rows(self._weight, edges.ids)
        return weight.view(-1)


def normalisation_of(conv: Convolution, scope: Scope) -> Normalisation | None:
    """Return how a layer normalises by degree; None if it does not, or not by `gcn_norm`.

    The forward is run with another function in the place of `gcn_norm`, which notes what it is
    asked for.

    Args:
        conv: the call of a module.
        scope: all nodes of a small graph, with the inputs of the convolution.
    """
    module = conv.module
    if len(conv.edge_types) != 1 or not uses_name(module, "forward", "gcn_norm", gcn_norm):
        return None
    (edge_type,) = conv.edge_types
    source, target = ends(edge_type)
    names = conv.bound(lambda name: name)
    if source != target or not isinstance(names.get("edge_index"), str):
        return None
    values = {**scope.tables, **scope.constants}
    given = conv.bound(values.get)
    asked: list[dict[str, Any]] = []

    def note(*args: Any, **kwargs: Any) -> Any:
        asked.append(dict(inspect.signature(gcn_norm).bind(*args, **kwargs).arguments))
        return gcn_norm(*args, **kwargs)

    renamed(module, {"forward": {"gcn_norm": note}})(**given)
    if len(asked) != 1 or asked[0].get("flow", "source_to_target") != "source_to_target":
        return None
    weight = asked[0].get("edge_weight")
    name = None
    if weight is not None:
        same = [n for n in conv.inputs if values.get(n) is weight]
        if not same:
            return None
        name = same[0]
    add_self_loops = bool(asked[0].get("add_self_loops", True))
    fill = 2.0 if asked[0].get("improved", False) and weight is not None else 1.0
    return Normalisation(edge_type, add_self_loops, fill, name)
