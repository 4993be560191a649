"""One forward over all nodes: its operations are deferred, and run block by block."""

from __future__ import annotations

import weakref
from typing import Any, ClassVar

import torch
from torch import Tensor

from ...core.lazy_tensor import RowTensor
from ...core.private_torch import storage_of, tree_leaves
from ...ops.products import on_host
from ..lazy.lists import Orders
from ..lazy.moves import MOVES, SCATTERS, Move, named_rows, scatter
from ..lazy.operations import Gather, Narrow, Operation
from ..lazy.rules import Operator, bound, on_meta
from ..lazy.run import LazyRun
from ..lazy.tensor import TableTensor, seen, written
from ..lazy.values import Leaf, Value
from .blocks import BlockScatter, projected_first
from .executor import MANY_BYTES, Executor

STREAMED = {"sum", "mean", "amax", "amin", "max", "min", "any", "all"}


class CopiedOnWrite:
    """Plain tensors that deferred operations read; each is copied when it is about to change.

    Args:
        orders: of lists, to which tensors may belong.
    """

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._readers: dict[int, weakref.WeakSet[Value]] = {}  # by storage

    def kept(self, tensor: Tensor, whole: bool = False) -> Tensor:
        """Return a tensor with its present numbers, once `read_by` says which value reads it."""
        return _safe(tensor.detach())

    def table(self, tensor: Tensor, dim: int) -> Leaf:
        """Return the value of a tensor with rows in a dimension, with its present numbers."""
        return self.leaf(_safe(tensor.detach()), dim)

    def leaf(self, tensor: Tensor, dim: int) -> Leaf:
        """Return the value of a tensor whose writes are all seen."""
        made = Leaf(tensor, dim)
        self.read_by(made, tensor)
        return made

    def read_by(self, value: Value, read: Any) -> None:
        """Remember that a value reads tensors."""
        for tensor in tree_leaves(read):
            if isinstance(tensor, Tensor) and _has_storage(tensor):
                self._readers.setdefault(storage_of(tensor), weakref.WeakSet()).add(value)

    def protect(self, memory: Tensor) -> None:
        """Let values keep their numbers, before memory that they read is written to."""
        if memory.layout == torch.strided:
            storage = storage_of(memory)
            self._orders.forget(storage)
            for value in self._readers.pop(storage, ()):
                value.copy_held(storage)

    def leave_plain(self, values: Any) -> None:
        """Do nothing: there are no gradients."""


class InferenceRun(LazyRun):
    """One forward.

    Args:
        executor: of its tables.
    """

    deferred: ClassVar[dict[str, Move]] = {
        **MOVES,
        "mm": projected_first,
        "addmm": projected_first,
    }
    needs_unread = False
    saved: CopiedOnWrite

    def __init__(self, executor: Executor) -> None:
        super().__init__(executor.backend.device, CopiedOnWrite(executor.orders))
        self.executor = executor
        self._tensors: list[weakref.ref[TableTensor]] = []  # that were made

    # --- tensors and values ---

    def wrap(self, node: Value) -> TableTensor:
        """Return a tensor for the user's forward."""
        found = super().wrap(node)
        self._tensors.append(weakref.ref(found))
        return found

    def protect(self, changing: list[Tensor]) -> None:
        """Keep what plain tensors hold for what reads them, before they change."""
        for tensor in changing:
            if not isinstance(tensor, TableTensor):
                self.saved.protect(tensor)

    def count(self, found: Any) -> None:
        """Count new plain tensors that are not small: weights of edges, and what is made of them.

        Raises:
            ValueError: they exceed the memory of the run.
        """
        for value in tree_leaves(found):
            counted = type(value) is Tensor and value.layout == torch.strided
            if counted and on_host(value) and value.nbytes >= MANY_BYTES:
                self.executor.budget.count(value, "a tensor with an entry for each edge")

    def whole(self, table: TableTensor) -> Tensor:
        """Return all of a table as a plain tensor, which must not be written to."""
        if table.plain is not None:
            return table.plain
        with torch.no_grad():
            found = self.executor.complete(table.node)
            if isinstance(found, RowTensor):
                found = found.dense()
            return found.to(self.device, table.dtype)

    def finish(self) -> None:
        """Compute what the model has kept, as its tensors are used later."""
        kept = {made: ref() for made, ref in enumerate(self._tensors)}
        tables = {made: table for made, table in kept.items() if table is not None}
        # What one rank still holds and another does not is garbage that was not collected yet.
        ranks = self.executor.ranks.exchange("what the model keeps", set(tables))
        for made in sorted(set.intersection(*ranks)):
            self.executor.complete(tables[made].node)

    # --- operations ---

    def taken(self, table: TableTensor, dim: int, index: Tensor) -> Gather:
        """Return the rows of a table that a list names."""
        rows = table.node.num_rows
        index, low, high = self.executor.orders.narrowed(index.detach())
        index = index % rows if named_rows(low, high, rows) else index
        self.executor.complete(table.node, narrow=True)
        return Gather(table.node, dim, index)

    def part(self, table: TableTensor, dim: int, run: tuple[int, int], rows: int) -> Value:
        """Return a run (start, step) of rows."""
        source: Value = table.node
        start, step = run
        return source if rows == source.num_rows else Narrow(source, start, rows, step)

    def scattered(
        self, base: Tensor, source: Tensor, at: tuple[int, Tensor], reduce: str, include: bool
    ) -> BlockScatter:
        """Return rows that messages are reduced into, in a dimension and by a list."""
        dim, index = at
        order = self.executor.orders.of(index.detach(), base.size(dim))
        values = self.operand(base, dim), self.operand(source, dim)
        return BlockScatter(*values, order, reduce, include)

    def row_wise(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Return the value of an operation with a rule, or several."""
        found = super().row_wise(known, args, kwargs)
        for value in tree_leaves(found):
            if isinstance(value, Value):
                made: Any = value if isinstance(value, Operation) else value.inputs[0]
                self.saved.read_by(made, (made.args, made.kwargs))
        return found

    # --- whole tables ---

    def _on_whole(self, known: Operator, args: Any, kwargs: Any) -> Any:
        """Run an operation on whole tables, or a reduction block by block."""
        streamed = self._streamed(known, args, kwargs) if known.name in STREAMED else None
        if streamed is None:
            return super()._on_whole(known, args, kwargs)
        self.forms.by_blocks.add(str(known.func))
        return streamed

    def _is_table(self, tensor: Tensor, counts: set[int]) -> bool:
        """Whether a tensor has rows, and is not small."""
        return super()._is_table(tensor, counts) and tensor.nbytes >= MANY_BYTES

    def afford(self, func: Any, args: Any, kwargs: Any) -> None:
        """Raise ValueError for an operation on whole tables that exceeds the memory of the run."""
        if self.executor.budget.limit is None:
            return
        tables = {id(v): v for v in tree_leaves((args, kwargs)) if isinstance(v, TableTensor)}
        try:
            metas = tree_leaves(on_meta(func, args, kwargs, seen))
        except (NotImplementedError, RuntimeError):
            metas = []
        size = sum(v.nbytes for v in metas if isinstance(v, Tensor))
        size += sum(v.nbytes for v in tables.values() if v.node.table is None)
        self.executor.budget.check(size, f"{func}, which needs all rows at a time")

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
        for part in self.executor.blocks_of(table.node):
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
        """Run an in-place operation; scatters into a plain tensor run block by block."""
        name, changing = known.name.removesuffix("_"), written(known.func, args, kwargs)
        if name in SCATTERS and not isinstance(changing[0], TableTensor):
            node = scatter(self, name, bound(known.func, args, kwargs))
            if node is not None:
                return changing[0].copy_(self.executor.complete(node))
        return super()._change(known, args, kwargs)


def _has_storage(tensor: Tensor) -> bool:
    return tensor.layout == torch.strided and not isinstance(tensor, RowTensor)


def _safe(tensor: Tensor) -> Tensor:
    """Return a tensor whose changes `Watch` sees: not one in the memory of NumPy."""
    if not _has_storage(tensor):
        return tensor
    return tensor if tensor.untyped_storage().resizable() else tensor.clone()
