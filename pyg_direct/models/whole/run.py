"""What happens to the operations of one forward: each is deferred, or runs on whole tables."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor
from ...core.private_torch import storage_of, to_copy, tree_leaves, tree_map
from ...ops.products import on_host
from ..lazy.calls import Operator, exactly_planned, operator
from ..lazy.forms import Forms
from ..lazy.moves import MOVES, SCATTERS, named_rows, scatter
from ..lazy.projecting import projected_first
from ..lazy.reducing import ScatterNode
from ..lazy.rules import bound, on_meta
from ..lazy.tables import (
    ConstantTensor,
    FillNode,
    LeafNode,
    Node,
    OperationNode,
    PickNode,
    TakeNode,
)  # fmt: skip
from ..lazy.tensor import (
    TableTensor,
    Token,
    join_views,
    plain_of,
    result_of,
    seen,
    written,
)
from .computing import MANY_BYTES, Computer

aten = torch.ops.aten
STREAMED = {"sum", "mean", "amax", "amin", "max", "min", "any", "all"}

R = TypeVar("R", LeafNode, ConstantTensor)


class Run:
    """One forward.

    Args:
        computer: of its tables.

    Attributes:
        device: where the model computes.
        forms: how it ran.
    """

    def __init__(self, computer: Computer) -> None:
        self.computer, self.device = computer, computer.backend.device
        self._readers: dict[int, weakref.WeakSet[Any]] = {}  # of plain tensors, by storage
        self._tensors: weakref.WeakValueDictionary[int, Token] = weakref.WeakValueDictionary()
        self._made = 0  # tensors so far
        self.forms = Forms()

    # --- tensors and nodes ---

    def wrap(self, node: Node) -> TableTensor:
        """Return a tensor for the user's forward."""
        found = TableTensor(self, node)
        self._tensors[self._made] = found.token
        self._made += 1
        return found

    def leaf(self, tensor: Tensor, dim: int, own: bool = False) -> LeafNode:
        """Return a node of a tensor as it is now; `own`: nobody else can write to it."""
        return self._remembered(LeafNode(tensor if own else _safe(tensor), dim), tensor)

    def constant(self, tensor: Tensor) -> ConstantTensor:
        """Return a tensor as it is now, for all rows."""
        return self._remembered(ConstantTensor(_safe(tensor)), tensor)

    def _remembered(self, reader: R, tensor: Tensor) -> R:
        if tensor.layout == torch.strided and not isinstance(tensor, RowTensor):
            storage = storage_of(tensor)
            self._readers.setdefault(storage, weakref.WeakSet()).add(reader)
        return reader

    def protect(self, changing: list[Tensor]) -> None:
        """Keep what plain tensors hold for what reads them, before they change."""
        for tensor in changing:
            if isinstance(tensor, TableTensor) or tensor.layout != torch.strided:
                continue
            self.computer.orders.forget(storage_of(tensor))
            for reader in self._readers.pop(storage_of(tensor), ()):
                name = "table" if isinstance(reader, LeafNode) else "tensor"
                setattr(reader, name, getattr(reader, name).clone())

    def count(self, found: Any) -> None:
        """Count new plain tensors that are not small.

        Raises:
            ValueError: they exceed the memory of the run.
        """
        for value in tree_leaves(found):
            counted = type(value) is Tensor and value.layout == torch.strided
            if counted and on_host(value) and value.nbytes >= MANY_BYTES:
                self.computer.budget.count(value)
                self.computer.budget.check(0, "a tensor that the model's forward makes of edges")

    def whole(self, table: TableTensor) -> Tensor:
        """Return all of a table as a plain tensor, which must not be written to."""
        if table.plain is not None:
            return table.plain
        with torch.no_grad():
            found = self.computer.complete(table.node)
            if isinstance(found, RowTensor):
                found = found.dense()
            return found.to(self.device, table.dtype)

    def finish(self) -> None:
        """Compute what the model has kept, as its tensors are used later."""
        kept = {made: token.tensor() for made, token in self._tensors.items()}
        tables = {made: table for made, table in kept.items() if table is not None}
        # What one rank still holds and another does not is garbage that was not collected yet.
        ranks = self.computer.ranks.exchange("what the model keeps", set(tables))
        for made in sorted(set.intersection(*ranks)):
            self.computer.complete(tables[made].node)

    # --- operations ---

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the result of an operation with tables."""
        known = operator(func)
        if known.is_mutable:
            return self._change(known, args, kwargs)
        found = None
        if kwargs.get("device") is None or torch.device(kwargs["device"]) == self.device:
            found = self._deferred(known, args, kwargs)
        if found is None:
            return self._on_whole_tables(known, args, kwargs)
        found = tree_map(lambda n: self.wrap(n) if isinstance(n, Node) else n, found)
        if known.is_view or known.name == "_unsafe_view":
            join_views(func, args, kwargs, found)
        return found

    def _deferred(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Return the node of a result, or several; None if the operation cannot be deferred."""
        found = None
        if known.name in MOVES:
            found = MOVES[known.name](self, known, args, kwargs)
        elif known.name in ("mm", "addmm"):
            found = projected_first(self, args, kwargs)
        return found if found is not None else self.row_wise(known.func, args, kwargs)

    def filled(self, call: Any, shape: Any, dim: int, value: Any) -> FillNode:
        """Return a node that is one number, as a call (operation, args, kwargs) makes it."""
        func, args, kwargs = call
        options = {k: v for k, v in kwargs.items() if k not in ("pin_memory", "device")}
        out = on_meta(func, args, {**options, "device": torch.device("meta")}, seen)
        return FillNode(out, dim, value)

    def taken(self, table: TableTensor, dim: int, index: Tensor) -> TakeNode:
        """Return the rows of a table that a list names."""
        index, rows, size = index.detach(), table.node.num_rows, list(table.shape)
        _, low, high = self.computer.orders.narrowed(index)
        index = index % rows if named_rows(low, high, rows) else index
        size[dim] = index.numel()
        self.computer.complete(table.node, narrow=True)
        meta = torch.empty(size, dtype=table.dtype, device="meta")
        return TakeNode(meta, dim, table.node, self.constant(index.long()))

    def part(self, table: TableTensor, dim: int, run: tuple[int, int], rows: int) -> Any:
        """Return a run (start, step) of rows."""
        if rows == table.size(dim):
            return self.row_wise(aten.alias.default, (table,), {})
        size, stride = list(table.node.meta.shape), list(table.node.meta.stride())
        size[dim], stride[dim] = rows, stride[dim] * run[1]
        meta = torch.empty_strided(size, stride, dtype=table.dtype, device="meta")
        return TakeNode(meta, dim, table.node, run)

    def scattered(
        self, base: Tensor, source: Tensor, at: tuple[int, Tensor], reduce: str, include: bool
    ) -> ScatterNode:
        """Return rows that messages are reduced into, in a dimension and by a list."""
        dim, index = at
        order = self.computer.order_of(index.detach(), base.size(dim))
        return ScatterNode(
            self.operand(base, dim), self.operand(source, dim), order, reduce, include
        )

    def row_wise(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Return the node of an operation with a rule."""
        found = exactly_planned(operator(func), args, kwargs, TableTensor)
        if found is None:
            return None
        plan, out = found
        given = plan.tensors_in(args, kwargs)
        operands = [self.operand(v, p[2]) for v, p in zip(given, plan.tensors, strict=True)]
        args, kwargs = plan.arguments(args, kwargs, plan.tensors, operands)
        node = OperationNode(plan, out, func, args, kwargs)
        if plan.container is None:
            return node
        return plan.container(
            PickNode(meta, of[2], node, i)
            if of[2] is not None
            else torch.empty(0, device=self.device)
            for i, (meta, of) in enumerate(zip(out, plan.outs, strict=True))
        )

    def operand(self, value: Tensor, row: int | None) -> Any:
        """Return what a deferred operation reads: a node, or a constant for all rows."""
        if isinstance(value, TableTensor):
            if row is not None and value.node.dim == row and value.plain is None:
                return value.node
            if row is not None and isinstance(value.node, FillNode):
                return FillNode(value.node.meta, row, value.node.value)
            value = value.whole()
        return self.constant(value.detach()) if row is None else self.leaf(value.detach(), row)

    # --- whole tables ---

    def _on_whole_tables(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operation on whole tables, as torch does."""
        func = known.func
        streamed = self._streamed(known, args, kwargs) if known.name in STREAMED else None
        if streamed is not None:
            self.forms.by_blocks.add(str(func))
            return streamed
        self.forms.count(known)
        self._afford(func, args, kwargs)
        if known.name == "as_strided":  # its numbers are places in memory
            args[0].make_plain()
        new_args, new_kwargs = plain_of((args, kwargs))
        found = func(*new_args, **new_kwargs)
        if func.is_view and isinstance(args[0], TableTensor):
            found = tree_map(lambda v: self._wrapped(v) if isinstance(v, Tensor) else v, found)
            join_views(func, args, kwargs, found)
            return found
        return tree_map(self._new(args, kwargs), found)

    def _new(self, args: Any, kwargs: Any) -> Callable[[Any], Any]:
        """Return what makes a table of a new tensor that has as many rows as the arguments."""
        tables = [v for v in tree_leaves((args, kwargs)) if isinstance(v, TableTensor)]
        counts = {table.node.num_rows for table in tables}
        return lambda v: self._wrapped(v) if _is_large(v, counts) else v

    def _wrapped(self, tensor: Tensor) -> Tensor:
        """Return a table of a plain tensor."""
        return self.wrap(self.leaf(tensor, 0, own=True))

    def _afford(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise ValueError for an operation on whole tables that exceeds the memory of the run."""
        if self.computer.budget.limit is None:
            return
        tables = {id(v): v for v in tree_leaves((args, kwargs)) if isinstance(v, TableTensor)}
        try:
            metas = tree_leaves(on_meta(func, args, kwargs, seen))
        except (NotImplementedError, RuntimeError):
            metas = []
        size = sum(v.nbytes for v in metas if isinstance(v, Tensor))
        size += sum(v.nbytes for v in tables.values() if v.node.table is None)
        self.computer.budget.check(size, f"{func}, which needs all rows at a time,")

    def _streamed(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Return a reduction over the rows of a table that is not there, block by block."""
        func, name, table = known.func, known.name, args[0]
        named = bound(func, args, kwargs)
        if not isinstance(table, TableTensor) or table.node.table is not None:
            return None
        dim, dtype = named.get("dim"), named.get("dtype")
        ahead = [v for v in tree_leaves((args[1:], kwargs)) if isinstance(v, TableTensor)]
        if ahead or table.plain is not None or (dim is not None and name in ("max", "min")):
            return None
        row, rank = table.node.dim, table.dim()
        dims = list(range(rank)) if dim in (None, []) else [dim] if isinstance(dim, int) else dim
        if row not in [d % rank for d in dims] or table.node.num_rows < 2:
            return None
        scale = name == "mean"
        if scale and not table.dtype.is_floating_point:
            return None
        parts, counts = [], []
        for part in self.computer.blocks_of(table.node):
            parts.append(func(part, *args[1:], **kwargs))
            counts.append(part.size(row))
        stacked = torch.stack(parts)
        if scale:
            share = torch.tensor(counts, dtype=torch.float64, device=stacked.device)
            shape = [-1] + [1] * (stacked.dim() - 1)
            return (stacked * (share / share.sum()).view(shape)).sum(0).to(stacked.dtype)
        if name == "sum":
            return stacked.sum(0, dtype=dtype)
        combined = getattr(stacked, {"max": "amax", "min": "amin"}.get(name, name))(dim=0)
        return combined

    # --- in place ---

    def _change(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operation that writes to arguments."""
        func = known.func
        changing = written(func, args, kwargs)
        target: Any = changing[0] if changing else None
        if len(changing) == 1 and isinstance(target, TableTensor) and target is args[0]:
            node = self._changed(known, target, args, kwargs)
            if node is not None:
                target.hold(node)
                return target
        name = known.name.removesuffix("_")
        if len(changing) == 1 and not isinstance(target, TableTensor) and name in SCATTERS:
            node = scatter(self, name, bound(func, args, kwargs))
            if node is not None:
                return target.copy_(self.computer.complete(node))
        self.forms.count(known)
        for tensor in changing:
            if isinstance(tensor, TableTensor):
                tensor.make_plain()
        self._afford(func, args, kwargs)
        new_args, new_kwargs = plain_of((args, kwargs))
        self.protect(written(func, new_args, new_kwargs))
        new = self._new(args, kwargs)
        found = func(*new_args, **new_kwargs)
        for tensor in changing:
            for view in tensor.members() if isinstance(tensor, TableTensor) else ():
                view.hold_plain(partial(self.leaf, own=True))
        return result_of(func, args, kwargs, found, new)

    def _changed(self, known: Operator, target: TableTensor, args: Any, kwargs: Any) -> Node | None:
        """Return the new value of a table that shares no memory, if the change can be deferred."""
        func, name = known.func, known.name
        if len(target.members()) > 1 or target.plain is not None or not name:
            return None
        given = bound(func, args, kwargs)
        if name in ("zero_", "fill_") and not isinstance(given.get("value", 0), Tensor):
            return FillNode(target.node.meta, target.node.dim, given.get("value", 0))
        if not name.endswith("_"):
            return None
        if name == "copy_":
            found = self._copied(given["src"], target)
        else:
            if known.pure is None:
                return None
            found = self._deferred(known.pure, args, kwargs)
        if not isinstance(found, Node) or found.dim != target.node.dim:
            return None
        if found.meta.shape != target.shape:
            return None
        if found.meta.dtype != target.dtype:
            found = self.row_wise(to_copy, (self.wrap(found),), {"dtype": target.dtype})
        return found  # type: ignore[no-any-return]

    def _copied(self, source: Tensor, target: TableTensor) -> Any:
        if source.shape != target.shape or source.device != self.device:
            return None
        if isinstance(source, TableTensor):
            return self.row_wise(to_copy, (source,), {"dtype": target.dtype})
        return None


def _safe(tensor: Tensor) -> Tensor:
    """Return a tensor whose changes `Watch` sees: not one in the memory of NumPy."""
    if tensor.layout != torch.strided or isinstance(tensor, RowTensor):
        return tensor
    return tensor if tensor.untyped_storage().resizable() else tensor.clone()


def _is_large(value: Any, counts: set[int]) -> bool:
    if not isinstance(value, Tensor) or value.dim() == 0:
        return False
    return value.size(0) in counts and value.nbytes >= MANY_BYTES
