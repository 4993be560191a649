"""Convolutions as sparse products: the layers of PyG whose messages are the sources' rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import (
    GATConv,
    GATv2Conv,
    GCNConv,
    GINConv,
    GraphConv,
    MessagePassing,
    SAGEConv,
)

from ..ops.attention import attend, can_attend
from ..ops.products import Adjacency, aggregate, can_aggregate
from .prefixes import Prefixes

# Whose messages are the rows of the sources, times the edge weight where one is passed.
MESSAGES = {c.message for c in (MessagePassing, SAGEConv, GINConv, GraphConv, GCNConv)}
# Whose messages are those rows times a weight for each edge and head, `alpha`.
BY_HEADS = {c.message for c in (GATConv, GATv2Conv)}


def is_product(conv: Any) -> bool:
    """Whether message passing of a layer is a sparse product with the rows of the sources."""
    return _has_messages(conv, MESSAGES) and bool(conv.fuse) and conv.node_dim in (-2, 0)


def is_sum_by_heads(conv: Any) -> bool:
    """Whether a layer sums the rows of the sources, head by head, with weights of the edges."""
    return _has_messages(conv, BY_HEADS) and conv.aggr in ("add", "sum") and conv.node_dim == 0


def _has_messages(conv: Any, messages: set[Any]) -> bool:
    """Whether the messages of a layer are known, and nothing else looks at them.

    It is told by the methods of the class, so a subclass with other messages is not taken for one.
    Hooks on messages, explanations and `decomposed_layers` need the messages.
    """
    kind: Any = type(conv)
    return (
        isinstance(conv, MessagePassing)
        and kind.message in messages
        and kind.aggregate is MessagePassing.aggregate
        and kind.update is MessagePassing.update
        and isinstance(conv.aggr, str)
        and conv.flow == "source_to_target"
        and conv.decomposed_layers == 1
        and not conv.explain
        and not any(value for name, value in vars(conv).items() if _is_propagate_hook(name))
    )


def _is_propagate_hook(name: str) -> bool:
    """Whether an attribute holds the hooks of a part of message passing."""
    parts = ("_propagate", "_message", "_aggregate", "_edge_update")
    return name.startswith(parts) and name.endswith("_hooks")


def is_gcn(conv: torch.nn.Module) -> bool:
    """Whether a layer normalises by the degrees of both ends, as GCNConv does."""
    return (
        isinstance(conv, GCNConv)
        and type(conv).forward is GCNConv.forward
        and is_product(conv)
        and conv.aggr in ("add", "sum")
        and conv.normalize
        and not conv.cached
    )


def call_with_product(conv: MessagePassing, matrix: Adjacency, arguments: dict[str, Any]) -> Any:
    """Call a layer so that its message passing is a product with `matrix`.

    Args:
        conv: a layer that `is_product`.
        matrix: its edges.
        arguments: of its forward. `x` is [sources, C], or that and [destinations, C].
    """

    def propagate(edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        x, weight, aggr = kwargs["x"], kwargs.get("edge_weight"), str(conv.aggr)
        source = x[0] if isinstance(x, tuple) else x
        if can_aggregate(source, weight, aggr):
            return aggregate(matrix, source, weight, aggr)
        sizes = (source.size(0), matrix.num_destinations)
        out: Tensor = conv.propagate(edge_index, size=sizes, **kwargs)
        return out[: matrix.num_destinations]

    return _twin(conv, propagate=propagate)(**arguments)


def without_messages(conv: Any) -> Any:
    """Return a layer that `is_sum_by_heads` with a product in place of its messages; others as is.

    The scores of the edges are those of the layer's own code, with dropout and all else.
    """
    if not is_sum_by_heads(conv):
        return conv

    def propagate(edge_index: Tensor, size: Any = None, **kwargs: Any) -> Tensor:
        x: Any = kwargs["x"]
        alpha: Any = kwargs.get("alpha")
        source, destination = x if isinstance(x, tuple) else (x, x)
        known = isinstance(alpha, Tensor) and isinstance(destination, Tensor)
        if known and can_attend(edge_index, source, alpha):
            return attend(edge_index, source, alpha, destination.size(0))
        out: Tensor = conv.propagate(edge_index, size=size, **kwargs)
        return out

    return _twin(conv, propagate=propagate)


def both_ends(x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
    """Return x as the sources, and its first rows as the destinations.

    The backward of a plain slice writes a gradient of the size of x, of which most is 0, and adds
    it; this one writes the sum at once.
    """
    if not (x.requires_grad and torch.is_grad_enabled()):
        return x, x[:rows]
    source, destination = _BothEnds.apply(x, rows)  # type: ignore[no-untyped-call]
    return source, destination


class _BothEnds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        ctx.rows = rows
        return x.view_as(x), x[:rows]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        source, destination = grads
        return torch.cat([source[: ctx.rows] + destination, source[ctx.rows :]]), None


def call_gcn(
    conv: GCNConv,
    prefixes: Prefixes,
    edge_type: Any,
    hops: float,
    x: Tensor,
    edge_weight: Tensor | None,
) -> Tensor:
    """Call a layer that `is_gcn` for the destinations within so many hops.

    The degrees are those of the whole batch, as in the plain layer. With the degrees d, the row of
    i is ``W (sum_j w_ij x_j / sqrt(d_j) + s_i x_i / sqrt(d_i)) / sqrt(d_i)``, so that no weight is
    computed for an edge. W goes where it costs less.

    Args:
        conv: the layer.
        prefixes: of the batch.
        edge_type: of its edges.
        hops: up to which destinations are wanted.
        x: [nodes within hops + 1, C].
        edge_weight: [E], of all edges of the batch, or None.
    """
    matrix = prefixes.matrix(edge_type, hops)
    scale, weight, loop = _gcn_norm(conv, prefixes, edge_type, edge_weight, x)
    scale = scale.view(-1, 1)
    rows = matrix.num_destinations

    def forward() -> Tensor:
        # Without a gradient to x, its own columns are summed, and no transpose is needed.
        late = not x.requires_grad or conv.lin.in_channels <= conv.lin.out_channels
        h = (x if late else conv.lin(x)) * scale[: x.size(0)]
        out = aggregate(matrix, h, None if weight is None else weight[: len(matrix.index)], "sum")
        if loop is not None:
            out = out + loop.view(-1, 1)[:rows] * h[:rows]
        out = out * scale[:rows]
        out = conv.lin(out) if late else out
        return out if conv.bias is None else out + conv.bias

    out: Tensor = _twin(conv, forward=forward)()
    return out


def _gcn_norm(
    conv: GCNConv, prefixes: Prefixes, edge_type: Any, edge_weight: Tensor | None, x: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Return 1 / sqrt(degree) [N], the weights of edges [E] and of self-loops [N]; None for 1, 0.

    The rules are those of `gcn_norm` in PyG: self-loops of the graph are taken out and their weight
    goes to the one that is added; without edge weights all are 1, also if `improved` is set.
    """
    key = "gcn", edge_type, id(edge_weight), conv.add_self_loops, conv.improved
    if key not in prefixes.notes:
        dtype = edge_weight.dtype if edge_weight is not None else torch.float32
        dtype = x.dtype if x.dtype == torch.float64 else dtype
        (row, col), indptr = (
            prefixes.edge_index(edge_type, float("inf")),
            prefixes.indptr(edge_type),
        )
        weight, loop = edge_weight, None
        if conv.add_self_loops:
            loops = row == col
            fill = 2.0 if conv.improved and edge_weight is not None else 1.0
            loop = torch.full((indptr.numel() - 1,), fill, dtype=dtype, device=row.device)
            if bool(loops.any()):
                if weight is None:
                    weight = torch.ones_like(row, dtype=dtype)
                else:
                    loop[row[loops]] = weight[loops].to(dtype)
                weight = weight.masked_fill(loops, 0.0)
        if weight is None:
            degree = indptr.diff().to(dtype)
        else:
            degree = torch.zeros(indptr.numel() - 1, dtype=dtype, device=row.device)
            degree.index_add_(0, col, weight.to(dtype))
        degree = degree if loop is None else degree + loop
        scale = degree.pow_(-0.5).masked_fill_(degree == float("inf"), 0.0)
        # The edge weights are kept, so that no other tensor gets their id.
        prefixes.notes[key] = (scale, weight, loop), edge_weight
    found: tuple[Tensor, Tensor | None, Tensor | None] = prefixes.notes[key][0]
    return found


def _twin(conv: Any, **replaced: Callable[..., Any]) -> Any:
    """Return a layer that shares everything with `conv` but some methods, hooks included."""
    twin = object.__new__(type(conv))
    twin.__dict__ = {**vars(conv), **replaced}
    return twin
