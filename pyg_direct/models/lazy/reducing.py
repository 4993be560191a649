"""Messages that are reduced into rows, and which nodes are computed together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor
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
from .lists import Order
from .tables import ConstantTensor, FillNode, LeafNode, Node, OperationNode, RowSelection, TakeNode

HUB_BYTES = 16 << 20  # of messages that are computed at a time


class ScatterNode(Node):
    """Rows that other rows, the messages, are reduced into, in the order of the messages.

    Args:
        base: what is reduced into.
        source: the messages.
        order: the messages by the row that they go to.
        reduce: "sum", "mean", "amax", "amin" or "prod", as of `torch.scatter_reduce`.
        include: whether the base counts.
    """

    costly = True

    def __init__(self, base: Node, source: Node, order: Order, reduce: str, include: bool) -> None:
        super().__init__(base.meta, base.dim, (base, source))
        self.reduce, self.include, self.order = reduce, include, order
        self.product: Callable[[RowSelection], Tensor] | None = None
        self.weight: Node | None = None  # of a product, where it is computed message by message

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
        if isinstance(source, OperationNode) and source.is_call_of(torch.ops.aten.mul.Tensor):
            pair = sorted(source.call[2], key=lambda v: isinstance(v, TakeNode))
            both = all(isinstance(v, Node) for v in pair)
            if both and pair[0].dim == 0 and pair[0].meta.shape[1:] == (*self.meta.shape[1:-1], 1):
                if self.meta.dim() == 3:
                    by_heads, source = pair
                elif isinstance(pair[0], LeafNode):
                    weight, source = pair[0].table, pair[1]
        table = source.inputs[0].table if isinstance(source, TakeNode) and source.inputs else None
        kind = self._kind()
        if kind is None or table is None:
            return None
        index = source.index.tensor if isinstance(source.index, ConstantTensor) else None
        other = weight if by_heads is None else by_heads.meta
        dtypes = {table.dtype, self.meta.dtype, self.meta.dtype if other is None else other.dtype}
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
        order = self.order  # what computes rows must not hold this node, which holds it
        factors = None if weight is None else order.sorted(weight)
        sources = order.sorted(index)

        def product(rows: RowSelection) -> Tensor:
            matrix, span = _matrix(order, rows, sources, len(table))
            return aggregate(matrix, table, None if factors is None else factors[span], kind)

        return product

    def _kind(self) -> str | None:
        """Return how `aggregate` calls this reduction, if rows without messages are 0."""
        base = self.inputs[0]
        zero = isinstance(base, FillNode) and base.value == 0 and base.dim == 0
        fits = zero and (self.reduce == "sum") == self.include
        return OF_SCATTER.get(self.reduce) if fits else None

    def _sum_by_heads(
        self, table: Tensor, index: Tensor, weight: Node
    ) -> Callable[[RowSelection], Tensor]:
        order = self.order
        sources, self.weight = order.sorted(index), weight

        def product(rows: RowSelection) -> Tensor:
            matrix, span = _matrix(order, rows, sources, len(table))
            values = weight.read(rows.messages(order, span.start, span.stop))
            return sum_by_heads(matrix, None, table, values.squeeze(2))

        return product

    def by_message(self) -> list[Node]:
        """Return the nodes that are computed for each message."""
        if self.product is None:
            return cone(self.inputs[1])
        return [] if self.weight is None else cone(self.weight)

    def compute(self, rows: RowSelection) -> Tensor:
        """Return a run of rows."""
        assert rows.index is None, "all rows are computed before some are taken by a list"
        if self.product is not None and not self._is_hub(rows):
            return self.product(rows)
        base, source = self.inputs
        degree = self.order.indptr[rows.first : rows.last + 1].diff().to(rows.backend.device)
        if self._counts():
            return degree.to(self.meta.dtype)
        begin, end = self.order.span(rows.first, rows.last)
        step = max(1, HUB_BYTES // max(1, sum(n.row_bytes for n in cone(source))))
        kind = self._kind()
        if kind is not None and 0 < end - begin <= step:
            part = source.read(rows.messages(self.order, begin, end))
            if can_reduce_lists(part, self.meta.dtype):
                return reduce_lists(
                    self.order.indptr[rows.first : rows.last + 1] - begin, part, kind
                )
        shape = [1] * self.meta.dim()
        shape[self.dim] = -1
        out = base.read(rows).clone()
        if not self.include:
            out = torch.where(degree.view(shape) > 0, _neutral(self.reduce, out.dtype), out)
        for a in range(begin, end, step):
            b = min(a + step, end)
            part = source.read(rows.messages(self.order, a, b))
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
        if (
            not isinstance(base, FillNode)
            or not isinstance(source, FillNode)
            or self.meta.dim() != 1
        ):
            return False
        fits = self.reduce == "sum" and self.meta.dtype in (torch.float32, torch.float64)
        return fits and base.value == 0 and source.value == 1

    def _is_hub(self, rows: RowSelection) -> bool:
        """Whether a row has so many messages that what they need is computed part by part."""
        if self.weight is None or len(rows) > 1:
            return False
        begin, end = self.order.span(rows.first, rows.last)
        return (end - begin) * sum(n.row_bytes for n in self.by_message()) > HUB_BYTES

    def release(self) -> None:
        """Let go of the edges."""
        self.product = self.weight = None
        del self.order

    def described(self) -> list[Any]:
        """Return how, and where to."""
        return [self.reduce, self.include, self.order.index]


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


def cone(target: Node) -> list[Node]:
    """Return the nodes that are computed for the same rows as `target`, itself first."""
    found, ahead = {target: None}, [target]
    while ahead:
        node = ahead.pop()
        inputs = node.inputs
        if node.table is not None or isinstance(node, TakeNode):
            inputs = ()
        elif isinstance(node, ScatterNode):
            inputs = node.inputs[:1]
        for entry in inputs:
            if entry not in found:
                found[entry] = None
                ahead.append(entry)
    return [n for n in found if n.table is None]


def called_otherwise(target: Node) -> list[Node]:
    """Return what a node is computed from that was called in other modes of torch."""
    found: list[Node] = []
    seen, ahead = {target}, [target]
    while ahead:
        for entry in ahead.pop().inputs:
            if entry in seen or entry.table is not None or isinstance(entry, FillNode):
                continue
            seen.add(entry)
            (ahead if entry.modes == target.modes else found).append(entry)
    return found


def scatters_of(target: Node) -> tuple[list[ScatterNode], list[ScatterNode]]:
    """Return the scatters that computing a node by runs of rows computes, and those it cannot.

    The latter are asked for rows by a list, which takes all of their rows at first.
    """
    by_run: dict[ScatterNode, None] = {}
    by_list: dict[ScatterNode, None] = {}
    ahead, seen = [(target, False)], {(target, False)}
    while ahead:
        node, listed = ahead.pop()
        if node.table is not None:
            continue
        if isinstance(node, ScatterNode):
            (by_list if listed else by_run)[node] = None
            if listed:
                continue
            asked = [(node.inputs[0], False), (node.inputs[1], True)]
        elif isinstance(node, TakeNode):
            asked = [(n, listed or node.index[1] != 1) for n in node.inputs if node.by_run]
        else:
            asked = [(n, listed) for n in node.inputs]
        ahead += [pair for pair in asked if pair not in seen]
        seen.update(asked)
    return list(by_run), list(by_list)
