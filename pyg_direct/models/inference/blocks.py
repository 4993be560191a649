"""Messages that are reduced into rows, and which values are computed together."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor, rows_of
from ...core.types import Table
from ...ops.backend import Backend
from ...ops.devices import ends_in_call
from ...ops.products import (
    Adjacency,
    aggregate,
    can_aggregate,
    can_reduce_lists,
    on_host,
    reduce_lists,
    sum_by_heads,
)
from ..lazy.lists import MessageOrder
from ..lazy.operations import Gather, Narrow, Operation
from ..lazy.rules import Operator, operator
from ..lazy.sums import Reduction
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
        self._known: dict[Value, Tensor] = {}
        self._others: dict[Hashable, tuple[object, RowSelection]] = {}

    def read(self, value: Value) -> Tensor:
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

    def messages(self, order: MessageOrder, first: int, last: int) -> RowSelection:
        """Return the messages at some places of an order; the latest are kept for other sums."""
        key = order, first, last
        if key not in self._others:
            rows = RowSelection(self.backend, first, last)
            if order.position is not None:
                position = order.position[first:last].to(self.backend.device).long()
                rows = RowSelection(self.backend, index=position)
            self._others = {k: v for k, v in self._others.items() if not isinstance(k, tuple)}
            self._others[key] = None, rows
        return self._others[key][1]


def row_bytes(value: Value) -> int:
    """Return the bytes of a row; 0 for several results, each of which is a value of its own."""
    if has_several(value):
        return 0
    size = torch.Size(value.shape).numel()
    return size // max(1, value.num_rows) * value.dtype.itemsize


def has_several(value: Value) -> bool:
    """Whether a value is several results of one operation."""
    return isinstance(value, Operation) and value.plan.container is not None


class BlockScatter(Reduction):
    """Rows that messages are reduced into, block by block, in the order of the messages.

    Args:
        base, messages, reduce, include: see `Reduction`.
        order: the messages by the row that they go to.
    """

    __slots__ = ("order", "product", "weight")

    def __init__(
        self, base: Value, messages: Value, order: MessageOrder, reduce: str, include: bool
    ) -> None:
        super().__init__(base, messages, reduce, include)
        self.reads(base, messages)
        self.order = order
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
        found, kind = self.gathered(), self.aggregation
        if found is None or kind is None or found[0].table is not None:
            return None
        source, factor = found
        table, index = source.source.table, source.index
        if table is None or table.dtype != self.dtype or not _is_plain(table):
            return None
        if not on_host(table) or not ends_in_call(self.device):  # lists lie on the host in any case
            return None
        if factor is not None and len(self.shape) == 3:
            return self._sum_by_heads(table, index, factor)
        if factor is not None and not isinstance(factor, Leaf):
            return None
        weight = None if factor is None or factor.table is None else factor.table.view(-1)
        if not can_aggregate(table, weight, kind):
            return None
        order = self.order  # what computes rows must not hold this value, which holds it
        factors = None if weight is None else order.sorted(weight)
        sources = order.sorted(index)

        def product(rows: RowSelection) -> Tensor:
            matrix, span = _matrix(order, rows, sources, len(table))
            return aggregate(matrix, table, None if factors is None else factors[span], kind)

        return product

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
            return fused_values(self.messages)
        return [] if self.weight is None else fused_values(self.weight)

    def compute(self, rows: RowSelection) -> Tensor:
        """Return a run of rows."""
        assert rows.index is None, "all rows are computed before some are taken by a list"
        if self.product is not None and not self._is_hub(rows):
            return self.product(rows)
        base, source = self.base, self.messages
        degree = self.order.indptr[rows.first : rows.last + 1].diff().to(rows.backend.device)
        if self._counts():
            counts: Tensor = degree.to(self.dtype)
            return counts
        begin, end = self.order.span(rows.first, rows.last)
        step = max(1, HUB_BYTES // max(1, sum(row_bytes(n) for n in fused_values(source))))
        kind = self.aggregation
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
        base, source = self.base, self.messages
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
        """Drop the messages and their order."""
        self.product = self.weight = None
        self.order = self.base = self.messages = None  # type: ignore[assignment]


def _matrix(
    order: MessageOrder, rows: RowSelection, sources: Tensor, num_sources: int
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
        if node.table is not None or isinstance(node, (Gather, Narrow)):
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
        elif isinstance(node, Gather):
            continue
        elif isinstance(node, Narrow):
            asked = [(node.inputs[0], listed or node.step != 1)]
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
        None if the rows are not such sums or means, or if W makes them longer.
    """
    *bias, table, weight = args
    if kwargs or not isinstance(table, TableTensor) or table.plain is not None:
        return None
    if isinstance(weight, TableTensor) or any(isinstance(v, TableTensor) for v in bias):
        return None
    sums, divisor = _sums_and_divisor(table.node)
    if sums is None or weight.size(1) >= weight.size(0):
        return None
    take = sums.messages
    assert isinstance(take, Gather)
    product = run.wrap(run.row_wise(MM, (run.wrap(take.inputs[0]), weight), {}))
    run.executor.complete(product.node, narrow=True)
    messages = Gather(product.node, 0, take.index)
    zeros = Fill((sums.num_rows, weight.size(1)), product.dtype, run.device, 0, 0)
    found = run.wrap(BlockScatter(zeros, messages, sums.order, sums.reduce, sums.include))
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
    gathered = isinstance(take, Gather)
    wide = node.dtype in (torch.float32, torch.float64)
    fits = zero and gathered and wide and node.reduce == "sum" and node.include
    return (node, divisor) if fits else (None, None)


def _is_call(value: Value, func: Any) -> bool:
    """Whether a value is what an operation gives, and is not computed yet."""
    return isinstance(value, Operation) and value.func is func and bool(value.inputs)
