"""Sums of sources' rows by heads, and products of rows by heads: attention without messages."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from ..core.threads import run_all
from ..kernels import aggregate as kernels
from .products import MIN_BYTES_PER_THREAD, Adjacency, share_rows


def can_sum_by_heads(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> bool:
    """Whether the functions here take rows: [n, H, C] floats of 32 or 64 bits in host memory."""
    wide = dtype in (torch.float32, torch.float64)
    return len(shape) == 3 and min(shape[1:]) > 0 and wide and device.type == "cpu"


def sum_by_heads(matrix: Adjacency, position: Tensor | None, x: Tensor, weight: Tensor) -> Tensor:
    """Return for each destination the sum over its edges of weight times the source's row, by head.

    Args:
        matrix: rows receive from columns.
        position: int64 [E], which of the weights are those of the edges of the matrix; None if they
            are in its order.
        x: [m, H, C], as `can_sum_by_heads` admits, at least `matrix.num_sources` rows.
        weight: [E, H], of the dtype of `x`, such as a softmax over the edges of a destination.

    Returns:
        [destinations, H, C].
    """
    if position is None:
        position = torch.arange(matrix.index.numel())
    flat, weight = x.flatten(1).contiguous(), weight.contiguous()
    out = flat.new_empty(matrix.num_destinations, flat.size(1))
    lists = matrix.indptr.numpy(), position.numpy(), matrix.index.numpy()
    arrays, result = (weight.numpy(), flat.numpy()), out.numpy()
    share_rows(matrix, flat, lambda a, b: kernels.sum_by_heads(*lists, *arrays, a, b, result))
    return out.view(matrix.num_destinations, *x.shape[1:])


def dot_by_heads(first: Tensor, second: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return for each edge and head the sum of the products of two rows.

    Args:
        first, second: int64 [E], which rows of `x` and of `y`. Not checked.
        x: [n, H, C], as `can_sum_by_heads` admits.
        y: [m, H, C], of the same dtype.

    Returns:
        [E, H].
    """
    rows, others = x.flatten(1).contiguous(), y.flatten(1).contiguous()
    out, edges = rows.new_empty(first.numel(), x.size(1)), first.numel()
    index = first.contiguous().numpy(), second.contiguous().numpy()
    arrays = rows.numpy(), others.numpy()
    row_bytes, result = rows.element_size() * rows.size(1), out.numpy()
    pieces = min(torch.get_num_threads(), 1 + edges * row_bytes // MIN_BYTES_PER_THREAD)
    cuts = [edges * piece // pieces for piece in range(pieces + 1)]
    run_all(
        [partial(kernels.dot_by_heads, *index, *arrays, a, b, result) for a, b in pairwise(cuts)]
    )
    return out
