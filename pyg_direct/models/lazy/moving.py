"""Operations that move rows: numbers for all rows, rows by lists, and sums into rows.

Each function returns the node of the result, several of them, or None if the operation is not
deferred in this way.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .reducing import ScatterNode
from .rules import on_meta
from .tables import FillNode, TakeNode, meta_of
from .tensor import TableTensor

aten = torch.ops.aten
FILLS = {
    "zeros_like": 0, "ones_like": 1, "full_like": None,
    "new_zeros": 0, "new_ones": 1, "new_full": None,
}  # fmt: skip
SCATTERS = {
    "scatter_add": "sum", "index_add": "sum", "scatter_reduce": None, "index_reduce": None,
}  # fmt: skip


def seen(value: Tensor) -> tuple[Tensor, int | None]:
    """Return a meta tensor, and the dimension of the rows of a table."""
    if isinstance(value, TableTensor):
        # Rows of one number are where those of the other arguments are.
        follows = isinstance(value.node, FillNode) or value.dim() == 0
        return value.node.meta, None if follows else value.node.dim
    return meta_of(value), None


def is_table(value: Any, dim: int) -> bool:
    """Whether a value is a table with its rows in a dimension."""
    return isinstance(value, TableTensor) and value.node.dim == dim


def is_fill(value: Any) -> bool:
    """Whether a value is a table of one number, whose rows may be in any dimension."""
    return isinstance(value, TableTensor) and isinstance(value.node, FillNode)


def _one_list(index: Tensor, source: Tensor, dim: int) -> Tensor | None:
    """Return the row that each message goes to, if all its elements go to the same one."""
    if isinstance(index, TableTensor):
        index = index.whole()
    if index.dim() == 1 and index.numel() == source.size(dim):  # of `index_add`, too
        return index
    if index.shape != source.shape:
        return None
    if any(index.stride(d) != 0 and index.size(d) > 1 for d in range(index.dim()) if d != dim):
        return None
    if index.numel() == 0:
        return None
    return index.movedim(dim, 0).flatten(1)[:, 0]


def fill(run: Any, func: Any, name: str, given: dict[str, Any], args: Any, kwargs: Any) -> Any:
    """Make a tensor of one number."""
    options = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "device")}
    out = on_meta(func, args, {**options, "device": torch.device("meta")}, seen)
    value = given["fill_value"] if FILLS[name] is None else FILLS[name]
    if out.dim() == 0 or max(out.shape) < 2 or isinstance(value, Tensor):
        return None
    dim = given["self"].node.dim if name.endswith("like") else max(range(out.dim()), key=out.size)
    return FillNode(out, dim, value)


def _take(run: Any, table: TableTensor, dim: int, index: Tensor) -> Any:
    """Return the rows of a table that a list names."""
    if isinstance(index, TableTensor):
        index = index.whole()
    index, rows = index.detach(), table.node.num_rows
    _, least, most = run.computer.orders.narrowed(index)
    if least < -rows or most >= rows:
        raise IndexError(f"index {most if most >= rows else least} is out of range: {rows}")
    index = index % rows if least < 0 else index
    size = list(table.shape)
    size[dim] = index.numel()
    run.computer.complete(table.node, narrow=True)
    meta = torch.empty(size, dtype=table.dtype, device="meta")
    return TakeNode(meta, dim, table.node, run.constant(index.long()))


def _index_select(run: Any, given: dict[str, Any]) -> Any:
    table, index = given["self"], given["index"]
    dim = given["dim"] % max(1, table.dim())
    if is_table(table, dim) and index.numel() > 1:
        return _take(run, table, dim, index)
    return None


def _embedding(run: Any, given: dict[str, Any]) -> Any:
    table, index = given["weight"], given["indices"]
    if is_table(table, 0) and index.dim() == 1 and index.numel() > 1:
        return _take(run, table, 0, index)
    return None


def _index(run: Any, given: dict[str, Any]) -> Any:
    table = given["self"]
    used = [(d, v) for d, v in enumerate(given["indices"]) if v is not None]
    if len(used) != 1 or not is_table(table, used[0][0]):
        return None
    dim, index = used[0]
    index = index.whole() if isinstance(index, TableTensor) else index
    if index.dtype in (torch.bool, torch.uint8):
        if index.dim() != 1 or len(index) != table.size(dim):
            return None
        index = index.nonzero().view(-1)
    if index.dim() != 1 or index.numel() < 2:
        return None
    return _take(run, table, dim, index)


def _slice(run: Any, given: dict[str, Any]) -> Any:
    table = given["self"]
    dim = given["dim"] % table.dim()
    if not is_table(table, dim):
        return None
    bounds = slice(given["start"], given["end"], given["step"])
    start, stop, step = bounds.indices(table.size(dim))
    return _run_of(run, table, dim, start, len(range(start, stop, step)), step)


def _split(run: Any, given: dict[str, Any]) -> Any:
    table = given["self"]
    size: Any = given.get("split_size", given.get("split_sizes"))
    dim = given["dim"] % table.dim()
    if not is_table(table, dim):
        return None
    count = table.size(dim)
    sizes = [min(size, count - a) for a in range(0, count, size)] if isinstance(size, int) else size
    if min(sizes) < 2:
        return None
    return [_run_of(run, table, dim, sum(sizes[:i]), s, 1) for i, s in enumerate(sizes)]


def _run_of(run: Any, table: TableTensor, dim: int, start: int, count: int, step: int) -> Any:
    if count == table.size(dim):
        return run.row_wise(aten.alias.default, (table,), {})
    if count < 2:
        return None
    size, stride = list(table.node.meta.shape), list(table.node.meta.stride())
    size[dim], stride[dim] = count, stride[dim] * step
    meta = torch.empty_strided(size, stride, dtype=table.dtype, device="meta")
    return TakeNode(meta, dim, table.node, (start, step))


def scatter(run: Any, name: str, given: dict[str, Any]) -> Any:
    """Return the node of messages that are reduced into rows."""
    base, index = given["self"], given["index"]
    source: Any = given.get("src", given.get("source"))
    dim = given["dim"] % max(1, base.dim())
    reduce = SCATTERS[name] or given["reduce"]
    if not is_table(source, dim) and not is_fill(source):
        return None
    if base.dtype != source.dtype or given.get("alpha", 1) != 1 or base.size(dim) < 2:
        return None
    if reduce == "mean" and not base.dtype.is_floating_point:
        return None
    if isinstance(base, TableTensor) and not is_table(base, dim) and not is_fill(base):
        return None
    others = [d for d in range(base.dim()) if d != dim]
    if any(base.size(d) != source.size(d) for d in others) or source.size(dim) < 2:
        return None
    index = _one_list(index, source, dim)
    if index is None:
        return None
    order = run.computer.order_of(index.detach(), base.size(dim))
    include = given.get("include_self", True)
    return ScatterNode(run.operand(base, dim), run.operand(source, dim), order, reduce, include)


# By the name of the operation.
MOVES = {
    "index_select": _index_select,
    "embedding": _embedding,
    "index": _index,
    "slice": _slice,
    "split": _split,
    "split_with_sizes": _split,
}
