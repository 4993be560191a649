"""Operations of a training step beside `moves` that are deferred in ways of their own.

Each function is given the step, what is known of the operation, and its arguments. It returns the
value of the result, several of them, or plain tensors; None if it is not deferred in this way.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ...ops.products import on_host
from .moves import MOVES, Move, has_rows
from .operations import NeededNorm, Operation, Pad
from .rules import Operator, bound, operator
from .sums import Scatter, dot_of
from .tensor import Run, TableTensor
from .values import Fill, Leaf, Rows, Value, compute_rows

aten = torch.ops.aten


class StepRun(Run, Protocol):
    """A training step."""

    all_statistics: bool
    norms: dict[int, NeededNorm]

    def all_rows(self, node: Value) -> Tensor:
        """Return all rows of a value; not to be written to."""

    def norm(self, func: Any, x: Value, rest: Any) -> NeededNorm:
        """Return rows normalised by the statistics of needed rows."""


def _expand(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Return the value itself where no dimension grows, as in the backward of `index_add`."""
    table, size = args[:2]
    if not isinstance(table, TableTensor) or table.plain is not None or len(size) != table.dim():
        return None
    same = all([s in (-1, n) for s, n in zip(size, table.shape, strict=True)])
    return table.node if same else None


def _slice_backward(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    given = bound(known.func, args, kwargs)
    grad, dim = given["grad_output"], given["dim"] % given["grad_output"].dim()
    if not has_rows(grad, dim) or given["start"] not in (0, None) or given["step"] != 1:
        return None
    return Pad(grad.node, given["input_sizes"][dim])


def _mm(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Multiply over the rows, as for the gradient of a weight."""
    a, b = args
    if not (has_rows(a, a.dim() - 1) and has_rows(b, max(0, b.dim() - 2))):
        return None
    made = a.node if known.name == "mm" else None
    if type(made) is Operation and made.func is aten.t.default and type(made.inputs[0]) is Scatter:
        found = made.inputs[0].times(b.node)
        if found is not None:
            return found
    if a.node.support is None and b.node.support is None:
        run.forms.count(known)
        return known.func(run.all_rows(a.node), run.all_rows(b.node))
    part = _fewer(a.node, b.node)
    return known.func(compute_rows(a.node, part), compute_rows(b.node, part))


def _fewer(*nodes: Value) -> Rows:
    """Return outside of which rows one of some values is zero."""
    known = [n.support for n in nodes if n.support is not None]
    return min(known, key=lambda r: r.count) if known else Rows(nodes[0].num_rows)


def _sum(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Add up rows, outside of some of which all is zero."""
    table: Any = args[0]
    if not isinstance(table, TableTensor) or table.plain is not None:
        return None
    node = table.node
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = range(table.dim()) if dim in (None, []) else [dim] if isinstance(dim, int) else dim
    dims = [d % table.dim() for d in dims]
    if node.dim not in dims:
        return dot_of(node, dims, args[2] if len(args) > 2 else False) if not kwargs else None
    if node.support is None:
        return None
    return known.func(compute_rows(node, node.support), *args[1:], **kwargs)


def _where(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Choose between a tensor and zero, as gradients do: a table of zeros, so zero rows stay."""
    if len(args) != 3:
        return None
    chosen, *pair = args
    zero = [i for i, v in enumerate(pair) if _is_zero(v)]
    if len(zero) != 1:
        return None
    number, other = pair[zero[0]], pair[1 - zero[0]]
    same = number.dtype == other.dtype or (
        other.dtype.is_floating_point and not number.dtype.is_complex
    )
    if not same or not isinstance(other, TableTensor) or not has_rows(other, other.node.dim):
        return None
    pair[zero[0]] = run.wrap(Fill(other.shape, other.dtype, run.device, other.node.dim, 0))
    return run.row_wise(known, (chosen, *pair), {})


FILLED = {
    aten.masked_fill.Tensor: aten.masked_fill.Scalar,
    aten.index_fill.int_Tensor: aten.index_fill.int_Scalar,
}


def _filled(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Fill with zero as with the number, so zero rows stay."""
    if known.func not in FILLED or kwargs or not _is_zero(args[-1]):
        return None
    return run.row_wise(operator(FILLED[known.func]), (*args[:-1], 0), {})


def _is_zero(value: Any) -> bool:
    plain = type(value) is Tensor and value.dim() == 0 and on_host(value)
    return plain and not value.is_complex() and float(value) == 0


class Summed(NamedTuple):
    """A backward that gives a gradient by row, and such of weights, which are sums over rows.

    Attributes:
        tables: the arguments with a row for each row of the gradient, which is the first of them.
        rows: the place of the argument that is their number; None if there is none.
    """

    tables: int
    rows: int | None = None


SUMMED = {
    "native_layer_norm_backward": Summed(5), "native_group_norm_backward": Summed(4, 5),
    "_fused_rms_norm_backward": Summed(4), "convolution_backward": Summed(2),
    "native_batch_norm_backward": Summed(2),
}  # fmt: skip


def _summed_backward(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Take the rows of which the gradient is not zero."""
    grad, first = args[0], SUMMED[known.name]
    tables = [v for v in args[: first.tables] if isinstance(v, Tensor)]
    if not all(has_rows(v, 0) and len(v) == len(grad) for v in tables):
        return None
    part = _fewer(grad.node)
    if part.order is not None:
        return None
    new = [compute_rows(v.node, part) if isinstance(v, TableTensor) else v for v in args]
    if first.rows is not None:
        new[first.rows] = part.count
    found = known.func(*new, **kwargs)
    wanted = found[0] is not None and args[-1][0]
    return (Leaf(found[0], 0, grad.node.num_rows) if wanted else None, *found[1:])


def _embedding_backward(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Add up the rows of which the gradient is not zero."""
    grad, index, *rest = args
    support = grad.node.support if has_rows(grad, 0) else None
    if support is None or support.order is not None or rest[-1] or kwargs or index.dim() != 1:
        return None
    index = run.rows_of(index, support.count) if isinstance(index, TableTensor) else index
    return known.func(compute_rows(grad.node, support), index[: support.count], *rest)


def _norm(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    """Normalise by the statistics of the rows that are needed, where the user wants that."""
    x, training = args[0], args[5]
    if run.all_statistics or not training or not has_rows(x, 0):
        return None
    made = run.norm(known.func, x.node, args[1:])
    run.norms[made.mean.data_ptr()] = made
    return made, made.mean, made.scale


def _norm_backward(run: StepRun, known: Operator, args: Any, kwargs: Any) -> Any:
    grad, x, save_mean = args[0], args[1], args[5]
    made = run.norms.get(save_mean.data_ptr()) if isinstance(save_mean, Tensor) else None
    if not isinstance(grad, TableTensor) or not isinstance(x, TableTensor):
        return None
    if made is None:  # in evaluation, statistics are constant
        of_all = args[7] or grad.node.support is None
        return None if of_all else _summed_backward(run, known, args, kwargs)
    rows = made.normalised
    pair = compute_rows(grad.node, rows), compute_rows(x.node, rows)
    found = made.gradients(known.func, *pair, args[2:])
    first = None if found[0] is None else Leaf(found[0], 0, grad.node.num_rows)
    return (first, *found[1:])


# By the name of the operation.
DEFERRED: dict[str, Move] = {
    **MOVES, **dict.fromkeys(SUMMED, _summed_backward),
    "expand": _expand, "slice_backward": _slice_backward, "native_batch_norm": _norm,
    "native_batch_norm_backward": _norm_backward,
    "mm": _mm, "mv": _mm, "bmm": _mm, "embedding_dense_backward": _embedding_backward,
    "where": _where, "sum": _sum,
    "masked_fill": _filled, "index_fill": _filled,
}  # fmt: skip
