"""Messages that are reduced into rows, and which values are computed together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor, rows_of
from ...core.types import Table
from ...ops.backend import Backend
from ...ops.products import (
    OF_SCATTER,
    Adjacency,
    aggregate,
    can_aggregate,
    can_reduce_lists,
    can_sum_by_heads,
    on_host,
    reduce_lists,
    sum_by_heads,
)
from ..lazy.lists import Order
from ..lazy.operations import Operation
from ..lazy.rules import Operator, operator
from ..lazy.tensor import TableTensor
from ..lazy.values import Fill, Leaf, Value

aten = torch.ops.aten
MM, DIV, ADD = operator(aten.mm.default), operator(aten.div.Tensor), operator(aten.add.Tensor)

HUB_BYTES = 16 << 20  # of messages that are computed at a time


class RowSelection:
    """Some rows of a table: from `first` to before `last`, or those that `index` lists."""

    def __init__(
        self, backend: Backend, first: int = 0, last: int = 0, index: Tensor | None = None
    ) -> None:
        self.backend, self.first, self.last, self.index = backend, first, last, index
        self.count = last - first if index is None else index.numel()
        self._known: dict[Value, Any] = {}
        self._others: dict[Hashable, tuple[Any, RowSelection]] = {}

    def read(self, value: Value) -> Any:
        """Return these rows of a value, not to be written to."""
        if value not in self._known:
            table = value.table
            self._known[value] = value.compute(self) if table is None else self._of(value, table)
        return self._known[value]

    def _of(self, value: Value, table: Tensor) -> Tensor:
        found = self.of(table, value.dim)
        return found if found.dtype == value.dtype else found.to(value.dtype)

    def of(self, table: Tensor, dim: int) -> Tensor:
        """Return these rows of a tensor, where the model computes."""
        device = self.backend.device
        if isinstance(table, RowTensor):
            index = slice(self.first, self.last) if self.index is None else self.index
            return rows_of(table, index).to(device)
        if self.index is None:
            return table.narrow(dim, self.first, self.count).to(device)
        if dim == 0 and table.dim() > 1 and table.is_contiguous():
            readable = self.backend.memory.readable(table)
            if readable is not None:
                return self.backend.gather([Table(readable)], self.index, len(table))[0]
        return table.index_select(dim, self.index.to(table.device)).to(device)

    def through(self, index: Tensor | tuple[int, int]) -> RowSelection:
        """Return the rows of another table that a list, or (start, step), names for these."""
        key = index if isinstance(index, tuple) else id(index)
        if key not in self._others:
            self._others[key] = index, self._through(index)
        return self._others[key][1]

    def _through(self, index: Tensor | tuple[int, int]) -> RowSelection:
        if isinstance(index, Tensor):
            return RowSelection(self.backend, index=self.of(index, 0).long().contiguous())
        start, step = index
        if self.index is None and step == 1:
            return RowSelection(self.backend, self.first + start, self.last + start)
        own = self.index
        if own is None:
            own = torch.arange(self.first, self.last, device=self.backend.device)
        return RowSelection(self.backend, index=own * step + start)

    def messages(self, order: Order, first: int, last: int) -> RowSelection:
        """Return the messages at some places of an order; the latest are kept for other sums."""
        key = order, first, last
        if key not in self._others:
            position = order.position[first:last].to(self.backend.device).long()
            rows = RowSelection(self.backend, index=position)
            self._others = {k: v for k, v in self._others.items() if not isinstance(k, tuple)}
            self._others[key] = None, rows
        return self._others[key][1]


class BlockGather(Value):
    """Rows of a value, by a list (then all of them are computed before), or by (start, step)."""

    __slots__ = ("index",)

    def __init__(
        self, source: Value, dim: int, index: Tensor | tuple[int, int], num_rows: int
    ) -> None:
        shape = source.shape
        shape = (*shape[:dim], num_rows, *shape[dim + 1 :])
        super().__init__(shape, source.dtype, source.device, dim)
        self.index: Any = index
        self.reads(source)

    @property
    def by_run(self) -> bool:
        """Whether it takes rows by (start, step)."""
        return isinstance(self.index, tuple)

    def compute(self, rows: Any) -> Any:
        """Return the rows that are named for some rows."""
        return self.inputs[0].at(rows.through(self.index))

    def copy_held(self, storage: int) -> None:
        """See `Value`."""
        if self.index is not None:  # not let go of, as its rows are computed
            self.index = self.index.clone()

    def release(self) -> None:
        """Let go of the list."""
        self.index = None


def row_bytes(value: Value) -> int:
    """Return the bytes of a row; 0 for several results, each of which is a value of its own."""
    if has_several(value):
        return 0
    size = torch.Size(value.shape).numel()
    return size // max(1, value.num_rows) * value.dtype.itemsize


def has_several(value: Value) -> bool:
    """Whether a value is several results of one operation."""
    return isinstance(value, Operation) and value.plan.container is not None


class BlockScatter(Value):
    """Rows that other rows, the messages, are reduced into, in the order of the messages.

    Args:
        base: what is reduced into.
        source: the messages.
        order: the messages by the row that they go to.
        reduce: "sum", "mean", "amax", "amin" or "prod", as of `torch.scatter_reduce`.
        include: whether the base counts.
    """

    __slots__ = ("include", "order", "product", "reduce", "weight")

    def __init__(
        self, base: Value, source: Value, order: Order, reduce: str, include: bool
    ) -> None:
        super().__init__(base.shape, base.dtype, base.device, base.dim)
        self.reads(base, source)
        self.reduce, self.include = reduce, include
        self.order: Any = order  # an `Order`, until it is computed
        self.product: Callable[[RowSelection], Tensor] | None = None
        self.weight: Value | None = None  # of a product, where it is computed message by message

    def prepare(self) -> None:
        """Choose how rows are computed, once all that they are taken from is there."""
        self.product = self._product()

    def _product(self) -> Callable[[RowSelection], Tensor] | None:
        """Return what computes some rows as a product of a sparse matrix with a table, or None.

        That is the sum of [weight x] gathered rows, or their largest or smallest, where the base is
        0 and a row without messages gets 0; of rows by heads, that of weight and head x rows.
        """
        source: Any = self.inputs[1]
        weight = by_heads = None
        shape = tuple(self.shape)
        made = type(source) is Operation and source.func is aten.mul.Tensor
        if made and len(source.inputs) == 2:
            pair = sorted(source.inputs, key=lambda v: isinstance(v, BlockGather))
            if pair[0].dim == 0 and tuple(pair[0].shape[1:]) == (*shape[1:-1], 1):
                if len(shape) == 3:
                    by_heads, source = pair
                elif isinstance(pair[0], Leaf):
                    weight, source = pair[0].table, pair[1]
        table = (
            source.inputs[0].table if isinstance(source, BlockGather) and source.inputs else None
        )
        kind = self._kind()
        if kind is None or table is None:
            return None
        index = None if source.by_run else source.index
        other = weight if by_heads is None else by_heads
        dtypes = {table.dtype, self.dtype, self.dtype if other is None else other.dtype}
        fits = len(dtypes) == 1 and table.dtype in (torch.float32, torch.float64)
        if index is None or source.dim != 0 or not fits or not _is_plain(table):
            return None
        if not on_host(table, index):
            return None
        if by_heads is not None:
            if kind == "sum" and can_sum_by_heads(table.shape, table.dtype, table.device):
                return self._sum_by_heads(table, index, by_heads)
            return None
        weight = None if weight is None else weight.view(-1)
        if not can_aggregate(table, weight, kind):
            return None
        order = self.order  # what computes rows must not hold this value, which holds it
        factors = None if weight is None else order.sorted(weight)
        sources = order.sorted(index)

        def product(rows: RowSelection) -> Tensor:
            matrix, span = _matrix(order, rows, sources, len(table))
            return aggregate(matrix, table, None if factors is None else factors[span], kind)

        return product

    def _kind(self) -> str | None:
        """Return how `aggregate` calls this reduction, if rows without messages are 0."""
        base = self.inputs[0]
        zero = isinstance(base, Fill) and base.value == 0 and base.dim == 0
        fits = zero and (self.reduce == "sum") == self.include
        return OF_SCATTER.get(self.reduce) if fits else None

    def _sum_by_heads(
        self, table: Tensor, index: Tensor, weight: Value
    ) -> Callable[[RowSelection], Tensor]:
        order = self.order
        sources, self.weight = order.sorted(index), weight

        def product(rows: RowSelection) -> Tensor:
            matrix, span = _matrix(order, rows, sources, len(table))
            values = weight.at(rows.messages(order, span.start, span.stop))
            return sum_by_heads(matrix, None, table, values.squeeze(2))

        return product

    def by_message(self) -> list[Value]:
        """Return the values that are computed for each message."""
        if self.product is None:
            return fused_values(self.inputs[1])
        return [] if self.weight is None else fused_values(self.weight)

    def compute(self, rows: RowSelection) -> Tensor:
        """Return a run of rows."""
        assert rows.index is None, "all rows are computed before some are taken by a list"
        if self.product is not None and not self._is_hub(rows):
            return self.product(rows)
        base, source = self.inputs
        degree = self.order.indptr[rows.first : rows.last + 1].diff().to(rows.backend.device)
        if self._counts():
            counts: Tensor = degree.to(self.dtype)
            return counts
        begin, end = self.order.span(rows.first, rows.last)
        step = max(1, HUB_BYTES // max(1, sum(row_bytes(n) for n in fused_values(source))))
        kind = self._kind()
        if kind is not None and 0 < end - begin <= step:
            part = source.at(rows.messages(self.order, begin, end))
            if can_reduce_lists(part, self.dtype):
                return reduce_lists(
                    self.order.indptr[rows.first : rows.last + 1] - begin, part, kind
                )
        shape = [1] * len(self.shape)
        shape[self.dim] = -1
        out = base.at(rows).clone()
        if not self.include:
            out = torch.where(degree.view(shape) > 0, _neutral(self.reduce, out.dtype), out)
        for a in range(begin, end, step):
            b = min(a + step, end)
            part = source.at(rows.messages(self.order, a, b))
            target = self.order.targets(rows.first, rows.last, a, b).to(part.device)
            target = target.view(shape).expand_as(part)
            if self.reduce in ("sum", "mean"):
                out.scatter_add_(self.dim, target, part)
            else:
                out.scatter_reduce_(self.dim, target, part, self.reduce)
        if self.reduce == "mean":
            out = out / (degree + self.include).clamp_(min=1).view(shape).to(out.dtype)
        result: Tensor = out
        return result

    def _counts(self) -> bool:
        """Whether it tells how many messages there are to a row."""
        base, source = self.inputs
        if not isinstance(base, Fill) or not isinstance(source, Fill) or len(self.shape) != 1:
            return False
        fits = self.reduce == "sum" and self.dtype in (torch.float32, torch.float64)
        return fits and base.value == 0 and source.value == 1

    def _is_hub(self, rows: RowSelection) -> bool:
        """Whether a row has so many messages that what they need is computed part by part."""
        if self.weight is None or rows.count > 1:
            return False
        begin, end = self.order.span(rows.first, rows.last)
        needed = sum(row_bytes(n) for n in self.by_message())
        return bool((end - begin) * needed > HUB_BYTES)

    def release(self) -> None:
        """Let go of the edges."""
        self.product = self.weight = self.order = None


def _matrix(
    order: Order, rows: RowSelection, sources: Tensor, num_sources: int
) -> tuple[Adjacency, slice]:
    """Return the messages to a run of rows as a matrix, and where they are in the order."""
    begin, end = order.span(rows.first, rows.last)
    indptr = order.indptr[rows.first : rows.last + 1] - begin
    return Adjacency(indptr, sources[begin:end], num_sources), slice(begin, end)


def _is_plain(table: Tensor) -> bool:
    return table.is_contiguous() and not isinstance(table, RowTensor)


def _neutral(reduce: str, dtype: torch.dtype) -> Tensor:
    """Return what changes no result."""
    if reduce in ("amax", "amin"):
        info = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
        value = info.min if reduce == "amax" else info.max
        if dtype.is_floating_point:
            value = float("-inf") if reduce == "amax" else float("inf")
        return torch.tensor(value, dtype=dtype)
    return torch.tensor(1 if reduce == "prod" else 0, dtype=dtype)


def fused_values(target: Value) -> list[Value]:
    """Return the values that are computed for the same rows as `target`, itself first."""
    found, ahead = {target: None}, [target]
    while ahead:
        node = ahead.pop()
        inputs = node.inputs
        if node.table is not None or isinstance(node, BlockGather):
            inputs = ()
        elif isinstance(node, BlockScatter):
            inputs = node.inputs[:1]
        for entry in inputs:
            if entry not in found:
                found[entry] = None
                ahead.append(entry)
    return [n for n in found if n.table is None]


def called_otherwise(target: Value) -> list[Value]:
    """Return what a value is computed from that was called in other modes of torch."""
    found: list[Value] = []
    seen, ahead = {target}, [target]
    while ahead:
        for entry in ahead.pop().inputs:
            if entry in seen or entry.table is not None or isinstance(entry, Fill):
                continue
            seen.add(entry)
            (ahead if entry.modes == target.modes else found).append(entry)
    return found


def scatters_of(target: Value) -> tuple[list[BlockScatter], list[BlockScatter]]:
    """Return the scatters that computing a value by runs of rows computes, and those it cannot.

    The latter are asked for rows by a list, which takes all of their rows at first.
    """
    by_run: dict[BlockScatter, None] = {}
    by_list: dict[BlockScatter, None] = {}
    ahead, seen = [(target, False)], {(target, False)}
    while ahead:
        node, listed = ahead.pop()
        if node.table is not None:
            continue
        if isinstance(node, BlockScatter):
            (by_list if listed else by_run)[node] = None
            asked = [] if listed else [(node.inputs[0], False), (node.inputs[1], True)]
        elif isinstance(node, BlockGather):
            asked = [(n, listed or node.index[1] != 1) for n in node.inputs if node.by_run]
        else:
            asked = [(n, listed) for n in node.inputs]
        ahead += [pair for pair in asked if pair not in seen]
        seen.update(asked)
    return list(by_run), list(by_list)


# --- products with a matrix ---
#
# Sums and means of rows commute with a product of the rows with a matrix, (A X) W = A (X W), and A
# has many more entries than rows. So W comes first where it makes rows shorter, as in DGL's layers.


def projected_first(run: Any, known: Operator, args: Any, kwargs: Any) -> Any:
    """Return the value of ``[bias +] (A X / d) W`` as ``[bias +] (A (X W)) / d``.

    Args:
        run: the forward.
        known: `mm` or `addmm`.
        args, kwargs: of it.

    Returns:
        None where the rows are no such sums or means, or where W makes them longer.
    """
    *bias, table, weight = args
    if kwargs or not isinstance(table, TableTensor) or table.plain is not None:
        return None
    if isinstance(weight, TableTensor) or any(isinstance(v, TableTensor) for v in bias):
        return None
    sums, divisor = _sums_and_divisor(table.node)
    if sums is None or weight.size(1) >= weight.size(0):
        return None
    take: Any = sums.inputs[1]
    product = run.wrap(run.row_wise(MM, (run.wrap(take.inputs[0]), weight), {}))
    run.executor.complete(product.node, narrow=True)
    messages = BlockGather(product.node, 0, take.index, take.num_rows)
    zeros = Fill((sums.num_rows, weight.size(1)), product.dtype, run.device, 0, 0)
    found = run.wrap(BlockScatter(zeros, messages, sums.order, sums.reduce, sums.include))
    run.saved.read_by(messages, take.index)
    if divisor is not None:
        found = run.wrap(run.row_wise(DIV, (found, run.wrap(divisor)), {}))
    return run.row_wise(ADD, (found, *bias), {}) if bias else found.node


def _sums_and_divisor(node: Value) -> tuple[BlockScatter | None, Value | None]:
    """Return the sums of gathered rows that a value is, and the column that it is divided by."""
    divisor = None
    if _is_call(node, aten.div.Tensor) and len(node.inputs) == 2:
        sums, spread = node.inputs
        if not _is_call(spread, aten.expand.default):
            return None, None
        node, divisor = sums, spread.inputs[0]
        if tuple(divisor.shape) != (spread.num_rows, 1):
            return None, None
    if not isinstance(node, BlockScatter) or node.table is not None or len(node.shape) != 2:
        return None, None
    base, take = node.inputs
    zero = isinstance(base, Fill) and base.value == 0 and base.dim == 0
    gathered = isinstance(take, BlockGather) and not take.by_run
    wide = node.dtype in (torch.float32, torch.float64)
    fits = zero and gathered and wide and node.reduce == "sum" and node.include
    return (node, divisor) if fits else (None, None)


def _is_call(value: Value, func: Any) -> bool:
    """Whether a value is what an operation gives, and is not computed yet."""
    return isinstance(value, Operation) and value.func is func and bool(value.inputs)
