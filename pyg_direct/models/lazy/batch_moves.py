"""Operations of a training step that move rows or add them up, each deferred in a way of its own.

Each function is given the step, what is known of the operation, and its arguments. It returns the
value of the result, several of them, or plain tensors; None if it is not deferred in this way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.private_torch import in_backward
from ...ops.products import on_host
from .calls import Operation, operator
from .rules import bound
from .sums import Scatter, dot_of
from .tensor import TableTensor
from .value_rows import First, Longer, Take
from .values import Fill, Leaf, Rows, Value, compute_rows

aten = torch.ops.aten
FILLS = {
    "zeros_like": 0, "ones_like": 1, "full_like": None, "empty_like": 0,
    "new_zeros": 0, "new_ones": 1, "new_full": None,
}  # fmt: skip
SCATTERS = {
    "scatter_add": "sum", "index_add": "sum", "scatter_reduce": None, "index_reduce": None,
}  # fmt: skip
REDUCTIONS = {"sum", "amax", "amin", "prod", "mean"}


def _has_rows(value: Any, dim: int) -> bool:
    """Whether it is a tensor of the step with its rows in a dimension, and no memory of its own."""
    known = isinstance(value, TableTensor) and value.plain is None and value.dim() > 0
    return known and value.node.dim == dim


def _value(tensor: Any) -> Value:
    """Return the value of a tensor of the step."""
    found: Value = tensor.node
    return found


def _fill(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    name = known.name
    if kwargs.get("layout") not in (None, torch.strided):
        return None
    value, rest = FILLS[name], args[1:]
    if name.startswith("new"):
        shape, rest = tuple(rest[0]), rest[1:]
    else:
        shape = tuple(args[0].shape)
    if value is None:
        value = rest[0] if rest else kwargs["fill_value"]
    if not shape or max(shape) < 2 or isinstance(value, Tensor):
        return None
    dtype = kwargs.get("dtype") or args[0].dtype
    dim = shape.index(max(shape)) if name.startswith("new") else args[0].node.dim
    return Fill(shape, dtype, run.device, dim, value)


def scatter(run: Any, name: str, given: dict[str, Any]) -> Value | None:
    """Reduce messages into rows."""
    base, index = given["self"], given["index"]
    source: Any = given.get("src", given.get("source"))
    dim = given["dim"] % max(1, base.dim())
    reduce = SCATTERS[name] or given["reduce"]
    if reduce not in REDUCTIONS or not isinstance(source, Tensor) or base.dtype != source.dtype:
        return None
    if given.get("alpha", 1) != 1 or base.size(dim) < 2 or source.size(dim) < 2:
        return None
    sizes = list(base.shape)
    sizes[dim] = source.size(dim)
    if sizes != list(source.shape):
        return None
    for one in (base, source):
        is_fill = isinstance(one, TableTensor) and isinstance(one.node, Fill) and one.plain is None
        if isinstance(one, TableTensor) and not is_fill and not _has_rows(one, dim):
            return None
    index = _one_list(run, index, source.shape, dim)
    order = None if index is None else run.lists.order(run.lists.one(index), base.size(dim))
    if order is None:
        return None
    values = run.operand(base, dim), run.operand(source, dim)
    made = Scatter(run.lists, *values, order, reduce, given.get("include_self", True))
    if run.exchanges is not None and not in_backward():
        run.exchanges.check_sum(index, base.size(dim))
        made.missing = run.exchanges.missing
    if len(made.shape) > 1:
        run.forms.sums.add("messages" if made.product is None else "products")
        run.entries += source.numel()
    return made


def _scatter(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    return scatter(run, known.name, bound(known.func, args, kwargs))


def _index_put(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Add rows up where a list says: the gradient of rows that were picked by ``x[list]``."""
    given = bound(known.func, args, kwargs)
    used = [(d, v) for d, v in enumerate(given["indices"]) if v is not None]
    if not given["accumulate"] or len(used) != 1:
        return None
    ((dim, index),) = used
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64):
        return None
    rows = {"self": given["self"], "source": given["values"], "index": index, "dim": dim}
    return scatter(run, "index_add", rows)


def _expand(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Return the value itself where no dimension grows, as in the backward of `index_add`."""
    table, size = args[:2]
    if not isinstance(table, TableTensor) or table.plain is not None or len(size) != table.dim():
        return None
    same = all([s in (-1, n) for s, n in zip(size, table.shape, strict=True)])
    return table.node if same else None


def _one_list(run: Any, index: Tensor, shape: Any, dim: int) -> Tensor | None:
    """Return the row that each message goes to, if all its elements go to the same one."""
    if isinstance(index, TableTensor):
        index = run.whole(index)
    if index.dim() == 1 and index.numel() == shape[dim]:
        return index
    if index.shape != shape or index.numel() == 0:
        return None
    if index.dim() == 2:
        if index.stride(1 - dim) != 0 and index.size(1 - dim) > 1:
            return None
        return index.select(1 - dim, 0)
    if any(index.stride(d) != 0 and index.size(d) > 1 for d in range(index.dim()) if d != dim):
        return None
    return index.movedim(dim, 0).flatten(1)[:, 0] if index.dim() > 1 else index


def _taken(run: Any, table: Any, dim: int, index: Tensor) -> Value | None:
    """Return the rows of a table that a list names."""
    if not _has_rows(table, dim):
        return None
    if isinstance(index, TableTensor):
        index = run.whole(index)
    if index.dim() != 1 or index.numel() < 2:
        return None
    if index.dtype in (torch.bool, torch.uint8):
        if len(index) != table.size(dim):
            return None
        index = index.nonzero().view(-1)
        if index.numel() < 2:
            return None
    if run.exchanges is not None:
        run.exchanges.check(table.node, index)
    rows, index = table.node.num_rows, run.lists.one(index)
    low, high = run.lists.bounds(index)
    if low < -rows or high >= rows:
        raise IndexError(f"index {high if high >= rows else low} is out of range: {rows}")
    return Take(run.lists, table.node, dim, run.lists.one(index % rows) if low < 0 else index)


def _index_select(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    return _taken(run, args[0], args[1] % max(1, args[0].dim()), args[2])


def _embedding(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    return _taken(run, args[0], 0, args[1])


def _index(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    used = [(d, v) for d, v in enumerate(args[1]) if v is not None]
    return _taken(run, args[0], *used[0]) if len(used) == 1 else None


def _gather(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Gather whole rows: the gradient of messages that were added up."""
    table, index = args[0], args[2]
    dim = args[1] % max(1, table.dim())
    if not _has_rows(table, dim) or isinstance(index, TableTensor) or table.dim() != index.dim():
        return None
    shape = list(table.shape)
    shape[dim] = index.size(dim)
    if list(index.shape) != shape:
        return None
    index = _one_list(run, index, index.shape, dim)
    return None if index is None else _taken(run, table, dim, index)


def _slice(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    given = bound(known.func, args, kwargs)
    table, dim = given["self"], given["dim"] % given["self"].dim()
    start, stop, step = slice(given["start"], given["end"], given["step"]).indices(table.size(dim))
    return _first(table, dim, start, max(0, stop - start), step)


def _first(table: Any, dim: int, start: int, rows: int, step: int = 1) -> Any:
    if not _has_rows(table, dim) or rows < 2 or step != 1:
        return None
    return First(table.node, start, rows)


def _split(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    given = bound(known.func, args, kwargs)
    table, size = given["self"], given.get("split_size", given.get("split_sizes"))
    dim = given["dim"] % table.dim()
    sizes: Any
    if not _has_rows(table, dim):
        return None
    rows = table.size(dim)
    sizes = [min(size, rows - a) for a in range(0, rows, size)] if isinstance(size, int) else size
    if min(sizes) < 2 or sum(sizes) != rows:
        return None
    return [_first(table, dim, sum(sizes[:i]), s) for i, s in enumerate(sizes)]


def _slice_backward(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    given = bound(known.func, args, kwargs)
    grad, dim = given["grad_output"], given["dim"] % given["grad_output"].dim()
    if not _has_rows(grad, dim) or given["start"] not in (0, None) or given["step"] != 1:
        return None
    return Longer(grad.node, given["input_sizes"][dim])


def _mm(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Multiply over the rows, as for the gradient of a weight."""
    a, b = args
    if not (_has_rows(a, a.dim() - 1) and _has_rows(b, max(0, b.dim() - 2))):
        return None
    made = a.node if known.name == "mm" else None
    if type(made) is Operation and made.func is aten.t.default and type(made.inputs[0]) is Scatter:
        found = made.inputs[0].times(b.node)
        if found is not None:
            return found
    if a.node.support is None and b.node.support is None:
        return known.func(run.all_rows(a.node), run.all_rows(b.node))
    part = _fewer(a.node, b.node)
    return known.func(compute_rows(a.node, part), compute_rows(b.node, part))


def _fewer(*nodes: Value) -> Rows:
    """Return outside of which rows one of some values is zero."""
    known = [n.support for n in nodes if n.support is not None]
    return min(known, key=lambda r: r.count) if known else Rows(nodes[0].num_rows)


def _sum(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Add up rows, outside of some of which all is zero."""
    table: Any = args[0]
    if not isinstance(table, TableTensor) or table.plain is not None:
        return None
    node: Any = table.node
    dim = args[1] if len(args) > 1 else kwargs.get("dim")
    dims = range(table.dim()) if dim in (None, []) else [dim] if isinstance(dim, int) else dim
    dims = [d % table.dim() for d in dims]
    if node.dim not in dims:
        return dot_of(node, dims, args[2] if len(args) > 2 else False) if not kwargs else None
    if node.support is None:
        return None
    return known.func(compute_rows(node, node.support), *args[1:], **kwargs)


def _where(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
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
    if not same or not isinstance(other, TableTensor) or not _has_rows(other, other.node.dim):
        return None
    pair[zero[0]] = run.wrap(Fill(other.shape, other.dtype, run.device, other.node.dim, 0))
    return run.row_wise(known, (chosen, *pair), {})


FILLED = {
    aten.masked_fill.Tensor: aten.masked_fill.Scalar,
    aten.index_fill.int_Tensor: aten.index_fill.int_Scalar,
}


def _filled(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
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
}  # fmt: skip


def _summed_backward(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Take the rows of which the gradient is not zero."""
    grad, first = args[0], SUMMED[known.name]
    tables = [v for v in args[: first.tables] if isinstance(v, Tensor)]
    if not all(_has_rows(v, 0) and len(v) == len(grad) for v in tables):
        return None
    part = _fewer(grad.node)
    if part.order is not None:
        return None
    new = [compute_rows(_value(v), part) if isinstance(v, TableTensor) else v for v in args]
    if first.rows is not None:
        new[first.rows] = part.count
    found = known.func(*new, **kwargs)
    wanted = found[0] is not None and args[-1][0]
    return (Leaf(found[0], 0, grad.node.num_rows) if wanted else None, *found[1:])


def _embedding_backward(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Add up the rows of which the gradient is not zero."""
    grad, index, *rest = args
    support = grad.node.support if _has_rows(grad, 0) else None
    if support is None or support.order is not None or rest[-1] or kwargs or index.dim() != 1:
        return None
    index = run.rows_of(index, support.count) if isinstance(index, TableTensor) else index
    return known.func(compute_rows(grad.node, support), index[: support.count], *rest)


def _norm(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    """Normalise by the statistics of the rows that are needed, where the user wants that."""
    x, training = args[0], args[5]
    if run.all_statistics or not training or not _has_rows(x, 0):
        return None
    made = run.norm(known.func, x.node, args[1:])
    run.norms[made.mean.data_ptr()] = made
    return made, made.mean, made.scale


def _norm_of_evaluation_backward(run: Any, known: Any, args: Any) -> Any:
    """Take the rows of which the gradient is not zero; statistics are constant."""
    grad, x = args[:2]
    part = _fewer(grad.node)
    apart = _has_rows(grad, 0) and _has_rows(x, 0) and grad.node.support is not None
    if not apart or part.order is not None:
        return None
    pair = compute_rows(grad.node, part), compute_rows(x.node, part)
    found = known.func(*pair, *args[2:])
    first = None if found[0] is None else Leaf(found[0], 0, grad.node.num_rows)
    return (first, *found[1:])


def _norm_backward(run: Any, known: Any, args: Any, kwargs: Any) -> Any:
    grad, x, save_mean = args[0], args[1], args[5]
    made = run.norms.get(save_mean.data_ptr()) if isinstance(save_mean, Tensor) else None
    if not isinstance(grad, TableTensor) or not isinstance(x, TableTensor):
        return None
    if made is None:
        return None if args[7] else _norm_of_evaluation_backward(run, known, args)
    rows = made.normalised
    pair = compute_rows(_value(grad), rows), compute_rows(_value(x), rows)
    found = made.gradients(known.func, *pair, args[2:])
    first = None if found[0] is None else Leaf(found[0], 0, grad.node.num_rows)
    return (first, *found[1:])


DEFERRED: dict[str, Callable[[Any, Any, Any, Any], Any]] = {
    **dict.fromkeys(FILLS, _fill), **dict.fromkeys(SCATTERS, _scatter),
    "index_put": _index_put, "expand": _expand,
    "index_select": _index_select, "embedding": _embedding, "index": _index, "gather": _gather,
    "slice": _slice, "split": _split, "split_with_sizes": _split, "slice_backward": _slice_backward,
    "native_batch_norm": _norm, "native_batch_norm_backward": _norm_backward,
    "mm": _mm, "mv": _mm, "bmm": _mm, "embedding_dense_backward": _embedding_backward,
    "where": _where, "sum": _sum,
    "masked_fill": _filled, "index_fill": _filled, **dict.fromkeys(SUMMED, _summed_backward),
}  # fmt: skip
