"""Values that are computed for some rows when asked, of what a forward makes of tables.

A `Node` is a value one of whose dimensions has rows. It never changes: an operation in place makes
a new one (`table_tensor`). A `RowSelection` has the rows that are asked for.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor, rows_of
from ...core.private_torch import schema_of, tree_leaves
from ...core.types import Table
from ...ops.backend import Backend
from .lists import Order
from .modes import modes_now


class RowSelection:
    """Some rows of a table: from `first` to before `last`, or those that `index` lists."""

    def __init__(
        self, backend: Backend, first: int, last: int, index: Tensor | None = None
    ) -> None:
        self.backend, self.first, self.last, self.index = backend, first, last, index
        self.known: dict[Node, Any] = {}
        self._others: dict[Hashable, tuple[Any, RowSelection]] = {}

    def __len__(self) -> int:
        return self.last - self.first if self.index is None else self.index.numel()

    def of(self, table: Tensor, dim: int) -> Tensor:
        """Return these rows of a tensor, where the model computes."""
        device = self.backend.device
        if isinstance(table, RowTensor):
            index = slice(self.first, self.last) if self.index is None else self.index
            return rows_of(table, index).to(device)
        if self.index is None:
            return table.narrow(dim, self.first, len(self)).to(device)
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
            return RowSelection(self.backend, 0, 0, self.of(index, 0).long().contiguous())
        start, step = index
        if self.index is None and step == 1:
            return RowSelection(self.backend, self.first + start, self.last + start)
        own = self.index
        if own is None:
            own = torch.arange(self.first, self.last, device=self.backend.device)
        return RowSelection(self.backend, 0, 0, own * step + start)

    def messages(self, order: Order, first: int, last: int) -> RowSelection:
        """Return the messages at some places of an order; the latest are kept for other sums."""
        key = order, first, last
        if key not in self._others:
            position = order.position[first:last].to(self.backend.device).long()
            rows = RowSelection(self.backend, 0, 0, position)
            self._others = {k: v for k, v in self._others.items() if not isinstance(k, tuple)}
            self._others[key] = None, rows
        return self._others[key][1]


class Node:
    """A value whose dimension `dim` has the rows.

    Attributes:
        meta: a meta tensor of its shape, or a tuple or list of them.
        inputs: the nodes that it is computed from.
        table: all rows, once they are computed; of another dtype if tables are kept narrow.
        users: nodes and users' tensors that still need it.
        costly: not to be computed twice.
        is_fill: it is one number, whose rows are where those of others are.
        modes: of torch, in which it is computed.
    """

    costly = is_fill = False

    def __init__(self, meta: Any, dim: int, inputs: tuple[Node, ...] = ()) -> None:
        self.meta, self.dim, self.inputs = meta, dim, inputs
        self.table: Tensor | None = None
        self.key, self.modes = "", modes_now()
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()
        for node in inputs:
            node.users.add(self)

    @property
    def num_rows(self) -> int:
        """Number of its rows."""
        return int(self.meta.size(self.dim)) if self.meta.dim() > 0 else 1

    @property
    def kind(self) -> Any:
        """What calls depend on of it, beside the number of its rows."""
        return self.dim, self.meta.dtype, self.meta.shape, self.meta.stride(), self.is_fill

    @property
    def row_bytes(self) -> int:
        """Bytes of a row; 0 for several results, each of which is a node of its own."""
        if not isinstance(self.meta, Tensor):
            return 0
        return self.meta.numel() // max(1, self.num_rows) * self.meta.element_size()

    def read(self, rows: RowSelection) -> Any:
        """Return some rows, for computing only."""
        if self not in rows.known:
            rows.known[self] = self.compute(rows) if self.table is None else self._taken(rows)
        return rows.known[self]

    def _taken(self, rows: RowSelection) -> Tensor:
        assert self.table is not None
        found = rows.of(self.table, self.dim)
        return found if found.dtype == self.meta.dtype else found.to(self.meta.dtype)

    def compute(self, rows: RowSelection) -> Any:
        """Return some rows from those of the inputs."""
        raise NotImplementedError

    def settle(self, table: Tensor) -> None:
        """Take the computed rows, and let go of what they were computed from."""
        self.table = table
        for node in self.inputs:
            node.users.discard(self)
        self.inputs = ()
        self.release()

    def release(self) -> None:
        """Let go of tensors."""

    def described(self) -> list[Any]:
        """Return what the value depends on, beside the inputs: text and tensors."""
        return []


class LeafNode(Node):
    """A tensor."""

    def __init__(self, table: Tensor, dim: int) -> None:
        super().__init__(meta_of(table), dim)
        self.table = table

    def described(self) -> list[Any]:
        """Return the tensor."""
        return [self.table]


class FillNode(Node):
    """One number."""

    is_fill = True

    def __init__(self, meta: Tensor, dim: int, value: Any) -> None:
        super().__init__(meta, dim)
        self.value = value

    def compute(self, rows: RowSelection) -> Tensor:
        """Return some rows of the number."""
        size = list(self.meta.shape)
        size[self.dim] = len(rows)
        return torch.full(size, self.value, dtype=self.meta.dtype, device=rows.backend.device)

    def described(self) -> list[Any]:
        """Return the number."""
        return [self.value]


class ConstantTensor:
    """A plain tensor that every row reads, as it was when the operation was called."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


COSTLY = {"mm", "addmm", "bmm", "baddbmm", "convolution", "mkldnn_rnn_layer", "_trilinear"}


class OperationNode(Node):
    """An operation that keeps rows apart.

    Args:
        plan: how it is called on some rows, a `CallPlan`.
        out: its results, on meta tensors.
        func, args, kwargs: the call; tables are nodes, other tensors nodes or constants.
    """

    def __init__(self, plan: Any, out: Any, func: Any, args: Any, kwargs: Any) -> None:
        nodes = (v for v in tree_leaves((args, kwargs)) if isinstance(v, Node))
        super().__init__(out, plan.first[2], tuple(dict.fromkeys(nodes)))
        self.call: Any = (plan, func, args, kwargs)
        self.costly = schema_of(func).name.split("::")[1] in COSTLY

    def is_call_of(self, func: Any) -> bool:
        """Whether it calls an operation, and is not computed yet."""
        return self.call is not None and self.call[1] is func

    def compute(self, rows: RowSelection) -> Any:
        """Call the operation on some rows."""
        plan, _, args, kwargs = self.call
        parts = [
            v.tensor if isinstance(v, ConstantTensor) else v.read(rows)
            for v in plan.tensors_in(args, kwargs)
        ]
        args, kwargs = plan.arguments(args, kwargs, plan.tensors, parts, len(rows))
        return plan.func(*args, *plan.more, **kwargs)

    def release(self) -> None:
        """Let go of the arguments."""
        self.call = None

    def described(self) -> list[Any]:
        """Return the call."""
        _, func, args, kwargs = self.call
        return [str(func), args, sorted(kwargs.items())]


class PickNode(Node):
    """One of several results."""

    def __init__(self, meta: Tensor, dim: int, several: Node, place: int) -> None:
        super().__init__(meta, dim, (several,))
        self.place = place

    def compute(self, rows: RowSelection) -> Tensor:
        """Return the result's rows."""
        found: Tensor = self.inputs[0].read(rows)[self.place]
        return found

    def described(self) -> list[Any]:
        """Return which it is."""
        return [self.place]


class TakeNode(Node):
    """Rows of a node, by a list (then all of them are computed before), or by (start, step)."""

    def __init__(
        self, meta: Tensor, dim: int, source: Node, index: ConstantTensor | tuple[int, int]
    ):
        super().__init__(meta, dim, (source,))
        self.index: Any = index

    @property
    def by_run(self) -> bool:
        """Whether it takes rows by (start, step)."""
        return isinstance(self.index, tuple)

    def compute(self, rows: RowSelection) -> Tensor:
        """Return the rows that are named for some rows."""
        index = self.index.tensor if isinstance(self.index, ConstantTensor) else self.index
        found: Tensor = self.inputs[0].read(rows.through(index))
        return found

    def release(self) -> None:
        """Let go of the list."""
        self.index = None

    def described(self) -> list[Any]:
        """Return the list."""
        return [self.index]


def meta_of(tensor: Tensor) -> Tensor:
    """Return a meta tensor like a tensor."""
    if tensor.layout != torch.strided or isinstance(tensor, RowTensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
