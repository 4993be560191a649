"""Sums of sources' rows by heads, with weights that have a gradient: attention without messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..kernels import heads as kernels
from .products import Adjacency, on_host, positions_by_row, share_rows


def can_attend(edge_index: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Whether `attend` takes these: in host memory, floats [m, H, C] and [E, H]."""
    return (
        on_host(edge_index, x, weight)
        and x.dim() == 3
        and weight.shape == (edge_index.size(1), x.size(1))
        and x.size(2) > 0
        and x.is_floating_point()
        and x.dtype == weight.dtype
    )


def attend(edge_index: Tensor, x: Tensor, weight: Tensor, rows: int) -> Tensor:
    """Return for each destination the sum over its edges of weight times the source's row, by head.

    Args:
        edge_index: int64 [2, E] of (source, destination), in any order. Sources are in [0, m) and
            destinations in [0, rows). Not checked.
        x: [m, H, C]; what `can_attend` admits. Half precision is summed in float32.
        weight: [E, H], such as a softmax over the edges of a destination.
        rows: number of destinations.

    Returns:
        [rows, H, C], of the dtype of `x`. No message [E, H, C] is written, here or in the backward,
        but in a backward that is itself differentiated.
    """
    dtype = x.dtype
    wide = dtype if dtype in (torch.float32, torch.float64) else torch.float32
    return _attend(x.to(wide), weight.to(wide), edge_index, rows).to(dtype)


class _Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, edge_index: Tensor, rows: int) -> Tensor:
        ctx.save_for_backward(x, weight, edge_index)
        source, destination = edge_index
        indptr, position = positions_by_row(destination.contiguous(), rows)
        lists = Adjacency(indptr, source[position], x.size(0))
        flat, weight = x.detach().flatten(1).contiguous(), weight.detach().contiguous()
        out = flat.new_empty(rows, flat.size(1))
        arrays = indptr.numpy(), position.numpy(), lists.index.numpy(), weight.numpy(), flat.numpy()
        result = out.numpy()
        share_rows(lists, flat, lambda a, b: kernels.sum_by_heads(*arrays, a, b, result))
        return out.view(rows, *x.shape[1:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        x, weight, edge_index = ctx.saved_tensors
        if torch.is_grad_enabled():  # it has to have a gradient itself
            return *_gradients_with_messages(x, weight, edge_index, grads[0]), None, None
        source, destination = edge_index
        indptr, position = positions_by_row(source.contiguous(), x.size(0))
        lists = Adjacency(indptr, destination[position], grads[0].size(0))
        flat, grad = x.flatten(1).contiguous(), grads[0].flatten(1).contiguous()
        weight = weight.contiguous()
        grad_x, grad_weight = torch.empty_like(flat), torch.empty_like(weight)
        edges = indptr.numpy(), position.numpy(), lists.index.numpy()
        arrays = weight.numpy(), flat.numpy(), grad.numpy()
        results = grad_x.numpy(), grad_weight.numpy()
        share_rows(
            lists, flat, lambda a, b: kernels.spread_by_heads(*edges, *arrays, a, b, *results)
        )
        return grad_x.view_as(x), grad_weight, None, None


def _gradients_with_messages(
    x: Tensor, weight: Tensor, edge_index: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight, by operations that have gradients."""
    source, destination = edge_index
    arrived = grad[destination]
    grad_x = torch.zeros_like(x).index_add(0, source, weight.unsqueeze(-1) * arrived)
    return grad_x, (arrived * x[source]).sum(-1)


_attend: Callable[[Tensor, Tensor, Tensor, int], Tensor] = _Attend.apply  # which has no types
