"""Scatters of a training step, as products with sparse matrices where these give the same."""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import torch
from torch import Tensor

from ...batch.sampled import Reused
from ...core.private_torch import in_backward
from ...ops.products import (
    OF_SCATTER,
    Adjacency,
    aggregate,
    can_reduce,
    can_reduce_lists,
    can_sum_by_heads,
    dot_by_heads,
    reduce_lists,
    sum_by_heads,
)
from .lists import Lists, MessageOrder
from .operations import Gather, Operation, to_rows
from .values import Fill, Leaf, Rows, Value, compute_rows, filled_up, union

aten = torch.ops.aten
COST_OF_SUM = 8  # of an element that is summed up, in products of a dense matrix
NOT_CUT = (
    "accelerate(reuse=) needs a model that reads rows of layer 1 as sources of edges only, of "
    "nodes whose in-edges were sampled before the last hop. This one reads others: it has more "
    "layers than the loader has hops, reads all rows of the batch (such as norms over a graph, or "
    "self-loops with a mean of edge_attr), aggregates by source, or selects edges (such as "
    "RGCNConv). Leave out reuse=."
)


class NotCutError(RuntimeError):
    """Rows are asked for whose sums lack edges."""


class Missing(NamedTuple):
    """Rows of nodes of which a batch has no edges, as a table has what they are needed for."""

    first: int
    end: int
    shift: float | None = None
    """Added to their sums, to see whether they matter; None: they cannot be asked for."""

    @staticmethod
    def of(reused: Reused | None, shift: float | None) -> Missing | None:
        """Return those of a batch whose `Reused` is given; None if there are none."""
        if reused is None or reused.end == reused.read:
            return None
        return Missing(reused.end, reused.read, shift)


class Reduction(Value):
    """Rows that messages are reduced into.

    Args:
        base: the rows before.
        messages: the rows that are reduced into them.
        reduce: "sum", "mean", "amax", "amin" or "prod", as of `torch.scatter_reduce`.
        include: whether the base counts.
    """

    __slots__ = ("base", "include", "messages", "reduce")
    by_order = False

    def __init__(self, base: Value, messages: Value, reduce: str, include: bool) -> None:
        super().__init__(base.shape, base.dtype, base.device, base.dim)
        self.base, self.messages = base, messages
        self.reduce, self.include = reduce, include

    @property
    def aggregation(self) -> str | None:
        """The reduction as of `aggregate`, if rows without messages are 0; else None."""
        zero = isinstance(self.base, Fill) and self.base.value == 0 and self.dim == 0
        fits = zero and (self.reduce == "sum") == self.include
        return OF_SCATTER.get(self.reduce) if fits else None

    def gathered(self) -> tuple[Gather, Value | None] | None:
        """Return (gathered rows, weights) where the messages are their product: [E, C], or by heads
        [E, H, C] with weights [E, H, 1].
        """
        source, shape = self.messages, tuple(self.shape)
        weight: Value | None = None
        if type(source) is Operation and source.func is aten.mul.Tensor and len(source.inputs) == 2:
            weight, source = sorted(source.inputs, key=lambda v: isinstance(v, Gather))
            if tuple(weight.shape[1:]) != (*shape[1:-1], 1):
                return None
        if type(source) is not Gather or self.aggregation is None:  # which is of dimension 0
            return None
        by_heads = weight is not None and can_sum_by_heads(shape, self.dtype, self.device)
        if not (len(shape) == 2 or (by_heads and self.reduce == "sum")):
            return None
        dtypes = {source.dtype, self.dtype, self.dtype if weight is None else weight.dtype}
        fits = len(dtypes) == 1 and self.dtype in (torch.float32, torch.float64)
        return (source, weight) if fits else None


class Scatter(Reduction):
    """Rows of a training step that messages are scattered into."""

    __slots__ = ("deferred", "lists", "missing", "order", "product")

    def __init__(
        self,
        lists: Lists,
        base: Value,
        messages: Value,
        order: MessageOrder,
        reduce: str,
        include: bool,
    ) -> None:
        super().__init__(base, messages, reduce, include)
        self.lists, self.order = lists, order
        self.missing: Missing | None = None
        self.product = self._found_product()
        self.deferred: tuple[Value, Tensor] | None = None
        if self.product is None:
            self.reads(base, messages)
        else:
            take, weight = self.product
            self.reads(take.source, *([weight] if weight is not None else []))
        if messages.support is not None and base.support is not None and reduce == "sum":
            bound = lists.part(order.index, messages.support)[1]
            self.support = union(base.support, Rows(bound), self.num_rows)

    def _found_product(self) -> tuple[Gather, Value | None] | None:
        """Return (gathered rows, weights) of a sparse product that gives the sums."""
        found = self.gathered()
        if found is None or not can_reduce(OF_SCATTER[self.reduce], self.device):
            return None
        source, weight = found
        if source.support is not None and source.order is None:
            return None
        fits = self.reduce == "sum" or (weight is None and source.support is None)
        return found if fits else None

    @property
    def _counts(self) -> bool:
        """Whether its rows are the numbers of messages to them."""
        ones = isinstance(self.messages, Fill) and self.messages.support is None
        zero = isinstance(self.base, Fill) and self.base.value == 0
        return ones and zero and self.reduce == "sum" and len(self.shape) == 1

    def _messages(self, rows: Rows) -> Rows:
        """Return the messages to some rows, without those that are zero."""
        support: Rows | None = self.messages.support
        if support is not None and self.reduce == "sum":
            return support
        return to_rows(self.order, rows.count)

    def parents(self) -> tuple[Value, ...]:
        """Return the operands of the operations that made it."""
        return self.base, self.messages

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        messages = self._messages(rows)
        if self._counts:
            return []
        if self.product is None:
            return [(self.base, rows), (self.messages, messages)]
        take, weight = self.product
        part = take.source.rows_read(self.lists.part(take.index, messages)[1])
        self.deferred = self._deferred_product(rows.count, messages.count, part.count)
        source = take.source if self.deferred is None else self.deferred[0]
        return [(source, part), *([(weight, messages)] if weight is not None else [])]

    def _deferred_product(
        self, rows: int, messages: int, sources: int
    ) -> tuple[Value, Tensor] | None:
        """Return (x, W) where the rows that are summed are those of x W, to apply W last.

        That is done where it takes less.

        Args:
            rows, messages, sources: how many there are.
        """
        assert self.product is not None
        take = self.product[0]
        made = take.source
        if take.support is not None or self.reduce != "sum" or len(self.shape) != 2:
            return None
        if type(made) is not Operation or made.have is not None:
            return None
        if made.func is not aten.mm.default or len(made.inputs) != 1 or made.plan.tables[0][0] != 0:
            return None
        (x,), weight = made.inputs, made.args[1]
        if not isinstance(x, Leaf) or x.dim != 0:
            return None
        # Of both, what the forward and the backward take: the latter then sums nothing up again.
        before, after = weight.shape
        first = 2 * sources * before * after + 2 * COST_OF_SUM * messages * after
        last = 2 * rows * before * after + COST_OF_SUM * messages * before
        return (x, weight) if last <= first else None

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        missing = self.missing
        if missing is None or rows.count <= missing.first or in_backward():
            return self._computed(rows)
        if missing.shift is None:
            raise NotCutError(NOT_CUT)
        out = self._computed(rows).clone()
        out.narrow(self.dim, missing.first, min(rows.count, missing.end) - missing.first).add_(
            missing.shift
        )
        return out

    def _computed(self, rows: Rows) -> Tensor:
        messages = self._messages(rows)
        if self.product is not None:
            return self._summed(rows, messages)
        if self._counts:
            counts = self.order.indptr[: rows.count + 1].diff().to(self.dtype)
            number = cast(Fill, self.messages).value
            return counts if number == 1 else counts.mul_(number)
        part = self.messages.at(messages)
        kind = self.aggregation
        in_lists = kind is not None and messages == to_rows(self.order, rows.count)
        if in_lists and can_reduce_lists(part, self.dtype):
            return reduce_lists(self.order.indptr[: rows.count + 1], part, cast(str, kind))
        index, bound = self.lists.part(self.order.index, messages)
        base = self.base.at(rows)
        out = filled_up(base, self.dim, max(bound, rows.count))
        out = out.clone() if out is base else out
        if self.reduce == "sum":
            out.index_add_(self.dim, index, part)
        else:
            shape = [1] * out.dim()
            shape[self.dim] = -1
            index = index.view(shape).expand_as(part)
            out.scatter_reduce_(self.dim, index, part, self.reduce, include_self=self.include)
        return out.narrow(self.dim, 0, rows.count)

    def _summed(self, rows: Rows, messages: Rows) -> Tensor:
        assert self.product is not None
        take, weight = self.product
        if len(self.shape) == 3:
            return self._summed_by_heads(rows, messages)
        values = None if weight is None else weight.at(messages).reshape(-1)
        if take.support is None:
            matrix = self.lists.matrix(self.order, take.index, rows.count, messages)
            source = take.source if self.deferred is None else self.deferred[0]
            part = source.at(Rows(matrix.num_sources))
            summed = aggregate(matrix, part, values, OF_SCATTER[self.reduce])
            if self.deferred is None:
                return summed
            self.lists.deferred.append((self.order, take.index, weight, self.deferred[0], summed))
            return summed @ self.deferred[1]
        transposed, position, num = self._transposed(take)
        values = None if values is None else values[position]
        out = aggregate(transposed, take.source.at(Rows(num)), values, "sum")
        return filled_up(out, 0, max(len(out), rows.count))[: rows.count]

    def _summed_by_heads(self, rows: Rows, messages: Rows) -> Tensor:
        assert self.product is not None
        take, weight = self.product
        values = cast(Value, weight).at(messages).squeeze(2)
        if take.support is None:
            matrix = self.lists.matrix(self.order, take.index, rows.count, messages)
            return sum_by_heads(matrix, None, self.inputs[0].at(Rows(matrix.num_sources)), values)
        transposed, position, num = self._transposed(take)
        out = sum_by_heads(transposed, position, take.source.at(Rows(num)), values)
        return filled_up(out, 0, max(len(out), rows.count))[: rows.count]

    def _transposed(self, take: Gather) -> tuple[Adjacency, Tensor, int]:
        """Return the matrix of gathered rows that are zero after some, and the number of these."""
        order, support = take.order, take.source.support
        assert order is not None and support is not None  # noqa: PT018
        num = support.count
        matrix = self.lists.matrix(order, self.order.index, num, to_rows(order, num))
        return *matrix.transpose(), num

    def times(self, x: Value) -> Tensor | None:
        """Return its transpose times x, where it is a gradient of sums that x was summed up for.

        ``(A^T g)^T x = g^T (A x)``, and A x is known.
        """
        if self.product is None or self.product[0].source.support is None:
            return None
        take, weight = self.product
        rows = cast(Rows, take.source.support).count
        for order, index, by, given, summed in self.lists.deferred:
            same = order is take.order and index is self.order.index
            same = same and (_memory(by), _memory(given)) == (_memory(weight), _memory(x))
            if same and len(summed) >= rows:
                product: Tensor = compute_rows(take.source, Rows(rows)).t() @ summed[:rows]
                return product
        return None


class EdgeDot(Value):
    """Dot products by head of the rows at both ends of messages (SDDMM); no product is written.

    Args:
        first, second: gathered rows, [E, H, C].
        keepdim: whether it is [E, H, 1], and not [E, H].
    """

    __slots__ = ("first", "second")

    def __init__(self, first: Gather, second: Gather, keepdim: bool) -> None:
        shape = (*first.shape[:2], 1) if keepdim else first.shape[:2]
        super().__init__(shape, first.dtype, first.device, 0)
        self.first, self.second = first, second
        self.reads(first.source, second.source)
        known = [v.support for v in (first, second) if v.support is not None]
        self.support = min(known, key=lambda rows: rows.count) if known else None

    def parents(self) -> tuple[Value, ...]:
        """Return the operands of the operations that made it."""
        return self.first, self.second

    def sources(self, rows: Rows) -> list[tuple[Value, Rows]]:
        """Return the rows to compute first."""
        pair = self.first, self.second
        return [(v.source, v.source.rows_read(v.lists.part(v.index, rows)[1])) for v in pair]

    def compute(self, rows: Rows) -> Tensor:
        """Return some rows from those of the sources."""
        index, parts = [], []
        for take in (self.first, self.second):
            taken, bound = take.lists.part(take.index, rows)
            index.append(taken)
            parts.append(take.source.at(Rows(bound)))
        return dot_by_heads(*index, *parts).view(rows.count, *self.shape[1:])


def dot_of(products: Value, dims: list[int], keepdim: bool) -> EdgeDot | None:
    """Return the sum of products over the last dimension, if both factors are gathered rows."""
    if type(products) is not Operation or products.func is not aten.mul.Tensor:
        return None
    if dims != [2] or products.have is not None or products.dim != 0:
        return None
    wide = can_sum_by_heads(products.shape, products.dtype, products.device)
    pair = [v for v in products.inputs if type(v) is Gather and v.dim == 0]
    if not wide or len(pair) != 2 or len(products.inputs) != 2:
        return None
    same = all(v.dtype == products.dtype and tuple(v.shape) == tuple(products.shape) for v in pair)
    return EdgeDot(pair[0], pair[1], keepdim) if same else None


def _memory(value: Value | None) -> Any:
    if value is None:
        return None
    if isinstance(value, Leaf):
        return value.tensor.data_ptr(), value.tensor.shape
    return id(value)
