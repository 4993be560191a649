"""Operations that move rows, for a step as for `inference`: fills, gathers, slices and scatters.

Each function is given a run, the operator and its arguments. It returns what `filled`, `taken`,
`part` or `scattered` of the run makes of them, several of these, or None where the operation does
not move whole rows. So both engines defer the same calls, and each has values of its own for them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import torch
from torch import Tensor

from .rules import Operator, bound
from .tensor import Run, TableTensor
from .values import Value

FILLS = {
    "zeros_like": 0, "ones_like": 1, "full_like": None, "empty_like": 0,
    "new_zeros": 0, "new_ones": 1, "new_full": None, "new_empty": 0,
}  # fmt: skip
SCATTERS = {
    "scatter_add": "sum", "index_add": "sum", "scatter_reduce": None, "index_reduce": None,
}  # fmt: skip
REDUCTIONS = {"sum", "amax", "amin", "prod", "mean"}


def has_rows(value: Any, dim: int) -> TypeGuard[TableTensor]:
    """Whether a value is a table with its rows in a dimension."""
    return isinstance(value, TableTensor) and value.dim() > 0 and value.node.dim == dim


def _fill(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    """Make a tensor of one number."""
    if kwargs.get("layout") not in (None, torch.strided):
        return None
    value, rest, is_new = FILLS[known.name], args[1:], known.name.startswith("new")
    shape = tuple(rest[0] if is_new else args[0].shape)
    if value is None:
        rest = rest[is_new:]
        value = rest[0] if rest else kwargs["fill_value"]
    if not shape or max(shape) < 2 or isinstance(value, Tensor):
        return None
    dim = shape.index(max(shape)) if is_new else args[0].node.dim
    return run.filled((known.func, args, kwargs), shape, dim, value)


def scatter(run: Run, name: str, given: dict[str, Any]) -> Any:
    """Reduce messages into rows."""
    base, index = given["self"], given["index"]
    source: Any = given.get("src", given.get("source"))
    dim = given["dim"] % max(1, base.dim())
    reduce = SCATTERS[name] or given["reduce"]
    if reduce not in REDUCTIONS or not isinstance(source, Tensor) or base.dtype != source.dtype:
        return None
    if given.get("alpha", 1) != 1 or base.size(dim) < 2 or source.size(dim) < 2:
        return None
    if reduce == "mean" and not base.dtype.is_floating_point:
        return None
    sizes = list(base.shape)
    sizes[dim] = source.size(dim)
    if sizes != list(source.shape):
        return None
    for one in (base, source):
        if isinstance(one, TableTensor) and not one.node.is_fill and not has_rows(one, dim):
            return None
    index = _one_list(index, source.shape, dim)
    if index is None:
        return None
    return run.scattered(base, source, (dim, index), reduce, given.get("include_self", True))


def _scatter(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    return scatter(run, known.name, bound(known.func, args, kwargs))


def _index_put(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
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


def _one_list(index: Tensor, shape: Any, dim: int) -> Tensor | None:
    """Return the row that each message goes to, if all its elements go to the same one."""
    if isinstance(index, TableTensor):
        index = index.whole()
    if index.dim() < 2:
        return index if index.dim() == 1 and len(index) == shape[dim] else None
    if index.shape != shape or index.numel() == 0:
        return None
    if index.dim() == 2:
        if index.stride(1 - dim) != 0 and index.size(1 - dim) > 1:
            return None
        return index.select(1 - dim, 0)
    if any(index.stride(d) != 0 and index.size(d) > 1 for d in range(index.dim()) if d != dim):
        return None
    return index.movedim(dim, 0).flatten(1)[:, 0]


def _taken(run: Run, table: Tensor, dim: int, index: Tensor) -> Value | None:
    """Return the rows of a table that a list names."""
    if not has_rows(table, dim):
        return None
    if isinstance(index, TableTensor):
        index = index.whole()
    if index.dim() != 1 or index.numel() < 2:
        return None
    if index.dtype in (torch.bool, torch.uint8):
        if len(index) != table.size(dim):
            return None
        index = index.nonzero().view(-1)
        if index.numel() < 2:
            return None
    return run.taken(table, dim, index)


def named_rows(low: int, high: int, rows: int) -> bool:
    """Return whether entries between two bounds name rows from the end, too.

    Raises:
        IndexError: there are no such rows.
    """
    if low < -rows or high >= rows:
        raise IndexError(
            f"index {high if high >= rows else low} is out of range for a dimension of size {rows}"
        )
    return low < 0


def _index_select(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    return _taken(run, args[0], args[1] % max(1, args[0].dim()), args[2])


def _embedding(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    return _taken(run, args[0], 0, args[1])


def _index(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    used = [(d, v) for d, v in enumerate(args[1]) if v is not None]
    return _taken(run, args[0], *used[0]) if len(used) == 1 else None


def _gather(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    """Gather whole rows, as the gradient of messages that were added up does."""
    table, index = args[0], args[2]
    dim = args[1] % max(1, table.dim())
    if not has_rows(table, dim) or isinstance(index, TableTensor) or table.dim() != index.dim():
        return None
    shape = list(table.shape)
    shape[dim] = index.size(dim)
    if list(index.shape) != shape:
        return None
    index = _one_list(index, index.shape, dim)
    return None if index is None else _taken(run, table, dim, index)


def _slice(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    given = bound(known.func, args, kwargs)
    table, dim = given["self"], given["dim"] % given["self"].dim()
    start, stop, step = slice(given["start"], given["end"], given["step"]).indices(table.size(dim))
    rows = len(range(start, stop, step))
    return run.part(table, dim, (start, step), rows) if has_rows(table, dim) and rows > 1 else None


def _split(run: Run, known: Operator, args: Any, kwargs: Any) -> Any:
    given = bound(known.func, args, kwargs)
    table, size = given["self"], given.get("split_size", given.get("split_sizes"))
    dim = given["dim"] % table.dim()
    if not has_rows(table, dim):
        return None
    rows = table.size(dim)
    sizes: Any = size
    if isinstance(size, int):
        sizes = [min(size, rows - a) for a in range(0, rows, size)]
    if min(sizes) < 2 or sum(sizes) != rows:
        return None
    return [run.part(table, dim, (sum(sizes[:i]), 1), s) for i, s in enumerate(sizes)]


Move = Callable[[Any, Operator, Any, Any], Any]  # of a `Run`, or of one with more
# By the name of the operation.
MOVES: dict[str, Move] = {
    **dict.fromkeys(FILLS, _fill), **dict.fromkeys(SCATTERS, _scatter), "index_put": _index_put,
    "index_select": _index_select, "embedding": _embedding, "index": _index, "gather": _gather,
    "slice": _slice, "split": _split, "split_with_sizes": _split,
}  # fmt: skip
