"""Message passing as one product with a sparse matrix, with a backward; no message is written down.

On the CPU by the kernels of `kernels/aggregate.py`, elsewhere by torch's own sparse products.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from ..core.private_torch import pointers_of
from ..core.threads import run_all
from ..kernels import aggregate as kernels

MIN_BYTES_PER_THREAD = 1 << 18  # of rows that are read
NO_WEIGHT = np.empty(0, np.float32)
REDUCTIONS = {"sum": "sum", "add": "sum", "mean": "mean", "max": "max", "min": "min"}
# What `torch.scatter_reduce` calls those that `aggregate` does in the same way.
OF_SCATTER = {"sum": "sum", "amax": "max", "amin": "min"}


class Adjacency:
    """The edges into some destinations, as a CSR matrix [destinations, sources].

    Args:
        indptr: int64 [destinations + 1], from 0.
        index: int64 [E], the source of each edge, in [0, num_sources). Not checked again.
        num_sources: how many rows a product takes, at least.

    The transpose, which a backward needs, is made when one asks for it, and kept. It takes less
    than 1 % of a training step (docs/guides/training.md), so producers do not make it ahead.
    """

    def __init__(self, indptr: Tensor, index: Tensor, num_sources: int) -> None:
        self.indptr, self.index, self.num_sources = indptr, index, num_sources
        self._transpose: tuple[Adjacency, Tensor] | None = None

    @property
    def num_destinations(self) -> int:
        """Number of rows of a product."""
        return self.indptr.numel() - 1

    def transpose(self) -> tuple[Adjacency, Tensor]:
        """Return the matrix [sources, destinations], and where each of its edges stood."""
        if self._transpose is None:
            make = _transpose_on_host if self.indptr.device.type == "cpu" else _transpose
            self._transpose = make(self)
        return self._transpose

    def counts(self, like: Tensor) -> Tensor:
        """Return the number of edges of each destination, at least 1, as a column like `like`."""
        return self.indptr.diff().clamp_(min=1).to(like.dtype).view(-1, 1)


def on_host(*tensors: Tensor) -> bool:
    """Whether all tensors lie in host memory."""
    return all(tensor.is_cpu for tensor in tensors)


def positions_by_row(index: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return where the entries of a list stand that name each row.

    Args:
        index: int32 or int64 [E] in host memory, each in [0, num_rows). Not checked.
        num_rows: number of rows.

    Returns:
        int64 [num_rows + 1], where the positions of each row begin; and the positions [E], row by
        row and ascending, int32 if that suffices.

    Example: [1, 0, 1] and 2 rows give [0, 1, 3] and [1, 0, 2].
    """
    edges = index.numel()
    dtype = torch.int32 if edges < 1 << 31 else torch.int64
    each = torch.arange(edges + 1, dtype=dtype)  # the rows of a matrix with one entry each
    indptr = torch.zeros(num_rows + 2, dtype=torch.int64)
    position, unused = torch.empty(edges, dtype=dtype), torch.empty(0, dtype=dtype)
    arrays = (each, index, indptr, position, unused)
    kernels.transpose_csr(*map(Tensor.numpy, arrays))
    return indptr[:-1], position


def _transpose_on_host(matrix: Adjacency) -> tuple[Adjacency, Tensor]:
    edges = matrix.index.numel()
    indptr = torch.zeros(matrix.num_sources + 2, dtype=torch.int64)
    index, position = torch.empty(2, edges, dtype=torch.int64)
    arrays = (matrix.indptr, matrix.index, indptr, index, position)
    kernels.transpose_csr(*map(Tensor.numpy, arrays))
    return Adjacency(indptr[:-1], index, matrix.num_destinations), position


def _transpose(matrix: Adjacency) -> tuple[Adjacency, Tensor]:
    source, position = torch.sort(matrix.index, stable=True)
    lists = torch.arange(matrix.num_destinations, device=source.device)
    destination = lists.repeat_interleave(matrix.indptr.diff(), output_size=source.numel())
    indptr = pointers_of(source, matrix.num_sources)
    return Adjacency(indptr, destination[position], matrix.num_destinations), position


def can_aggregate(x: Tensor, weight: Tensor | None, reduce: str) -> bool:
    """Whether `aggregate` takes these: floats [m, C], and weights without a gradient for sums."""
    if reduce not in REDUCTIONS or x.dim() != 2 or not x.is_floating_point():
        return False
    extreme = REDUCTIONS[reduce] in ("max", "min")
    if weight is not None:
        plain = weight.dim() == 1 and weight.is_floating_point() and not weight.requires_grad
        return plain and not extreme
    return not extreme or x.device.type == "cpu"


def can_reduce(reduce: str, device: torch.device) -> bool:
    """Whether `aggregate` reduces in this way on a device."""
    return REDUCTIONS[reduce] == "sum" or device.type == "cpu"


def aggregate(matrix: Adjacency, x: Tensor, weight: Tensor | None, reduce: str) -> Tensor:
    """Return for each destination the sum, mean, largest or smallest value of its sources' rows.

    Nothing is recorded for a backward.

    Args:
        matrix: rows receive from columns.
        x: [m, C], at least `matrix.num_sources` rows; what `can_aggregate` admits. Half precision
            is summed in float32.
        weight: [E], a factor for each edge, or None.
        reduce: "sum" (or "add"), "mean", "max" or "min". An empty list gives 0.

    Returns:
        [destinations, C], of the dtype of `x`.
    """
    reduce = REDUCTIONS[reduce]
    if x.size(0) < matrix.num_sources:
        raise ValueError(
            f"The edges name {matrix.num_sources} source nodes, but x has {x.size(0)} rows."
        )
    dtype = x.dtype
    x = x.detach()
    wide = x if dtype in (torch.float32, torch.float64) else x.float()
    weight = None if weight is None else weight.to(wide.dtype)
    if reduce in ("max", "min"):
        out = _extreme(wide, matrix, reduce == "max")
    else:
        out = _product(matrix, wide, weight, reduce == "mean")
    return out.to(dtype)


def can_reduce_lists(x: Tensor, dtype: torch.dtype) -> bool:
    """Whether `reduce_lists` takes x to give a dtype: floats of 32 or 64 bits in host memory."""
    wide = x.dtype in (torch.float32, torch.float64) and x.dtype == dtype
    return wide and x.is_cpu and x.dim() > 1 and min(x.shape[1:]) > 0


def reduce_lists(indptr: Tensor, x: Tensor, reduce: str) -> Tensor:
    """Return the sum, the largest or the smallest value of each of some lists of rows.

    torch takes up to ten times as long to do it by a list of rows (`scatter_reduce`).

    Args:
        indptr: int64 [n + 1], from 0, where the lists begin and end.
        x: [indptr[n], ...], list by list, as `can_reduce_lists` admits.
        reduce: as of `aggregate`.

    Returns:
        [n, ...].
    """
    matrix = Adjacency(indptr, torch.arange(x.size(0)), x.size(0))
    reduced = aggregate(matrix, x.flatten(1), None, reduce)
    return reduced.view(matrix.num_destinations, *x.shape[1:])


def _extreme(x: Tensor, matrix: Adjacency, largest: bool) -> Tensor:
    x = x.contiguous()
    out = x.new_empty(matrix.num_destinations, x.size(1))
    arrays = matrix.indptr.numpy(), matrix.index.numpy(), x.numpy(), largest
    result = out.numpy()
    share_rows(matrix, x, lambda a, b: kernels.extreme_rows(*arrays, a, b, result))
    return out


def _product(matrix: Adjacency, x: Tensor, weight: Tensor | None, mean: bool) -> Tensor:
    if x.device.type != "cpu":
        return _torch_product(matrix, x, weight, mean)
    x = x.contiguous()
    out = x.new_empty(matrix.num_destinations, x.size(1))
    values = NO_WEIGHT if weight is None else weight.detach().contiguous().numpy()
    arrays = matrix.indptr.numpy(), matrix.index.numpy(), values, x.numpy(), mean
    result = out.numpy()
    share_rows(matrix, x, lambda a, b: kernels.sum_rows(*arrays, a, b, result))
    return out


def _torch_product(matrix: Adjacency, x: Tensor, weight: Tensor | None, mean: bool) -> Tensor:
    values = x.new_ones(matrix.index.numel()) if weight is None else weight
    size = (matrix.num_destinations, x.size(0))
    csr = torch.sparse_csr_tensor(matrix.indptr, matrix.index, values, size, check_invariants=False)
    out = csr @ x
    return out / matrix.counts(out) if mean else out


def share_rows(matrix: Adjacency, x: Tensor, task: Callable[[int, int], None]) -> None:
    """Run ``task(first, last)`` over ranges of rows with as many edges each, at the same time."""
    rows, edges = matrix.num_destinations, matrix.index.numel()
    row_bytes = x.element_size() * x.size(1)
    pieces = min(torch.get_num_threads(), 1 + edges * row_bytes // MIN_BYTES_PER_THREAD)
    if pieces == 1:
        task(0, rows)
        return
    wanted = torch.arange(1, pieces) * edges // pieces
    cuts = [0, *torch.searchsorted(matrix.indptr, wanted).clamp_(max=rows).tolist(), rows]
    run_all([partial(task, a, b) for a, b in pairwise(cuts)])


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
