"""A training step on a sampled batch: the model's own forward, computed on the needed rows.

The forward gets tensors of full shape (`TableTensor`) that compute nothing until rows are asked
for. Autograd records the forward's operations above them, as on any tensors, and its backward runs
on them, too: the gradient of the seeds' outputs is zero for all other rows, and what follows from
it is computed where it is not zero.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core.private_torch import in_backward
from .batch_moves import DEFERRED
from .lists import Lists
from .moves import named_rows
from .operations import Gather, Narrow, NeededNorm, RandomRows
from .run import LazyRun
from .saved_tensors import SavedTensors
from .sums import Missing, Scatter
from .tensor import TableTensor, enter
from .values import Leaf, Rows, Value, compute_rows


class StepExchanges(Protocol):
    """Exchanges of rows with a table of earlier steps or with other ranks: `remote.Exchanges`."""

    missing: Missing | None
    inputs: set[Value]
    waiting: dict[Value, None]

    def check(self, value: Value, index: Tensor) -> None:
        """Raise a RuntimeError for rows that are gathered without their exchange."""

    def check_sum(self, index: Tensor, rows: int) -> None:
        """Raise a RuntimeError for sums that would lack edges."""

    def layer_of(self, values: list[Value]) -> int:
        """Return the layer of values that are computed from some values."""

    def at_layer(self, value: Value, layer: int) -> Value:
        """Set the layer of a value whose parents are not known."""


class BatchRun(LazyRun):
    """One step.

    Args:
        device: of the tensors.
        all_statistics: whether norms use all rows of the batch.
        draws_apart: whether dropout draws for the needed rows alone, and so other numbers than the
            plain model.

    Attributes:
        lists: the lists of rows that it has seen.
        entries: of the messages that are summed up.
        norms: those of the needed rows, by the address of their means.
        exchanges: of rows with other places; None for none.
    """

    deferred = DEFERRED
    saved: SavedTensors

    def __init__(
        self, device: torch.device, all_statistics: bool = True, draws_apart: bool = True
    ) -> None:
        super().__init__(device, SavedTensors())
        self.lists, self.entries = Lists(), 0
        self.all_statistics, self.draws_apart = all_statistics, draws_apart
        self.norms: dict[int, NeededNorm] = {}
        self.exchanges: StepExchanges | None = None
        self._seed = torch.initial_seed()

    # --- tensors and values ---

    def enter(self, x: Tensor) -> TableTensor:
        """Return a plain tensor as one of the step."""
        if x.requires_grad and torch.is_grad_enabled():
            return enter(x, self)
        return self.wrap(Leaf(x.detach(), 0, watched=True))

    def all_rows(self, node: Value) -> Tensor:
        """Return all rows of a value; not to be written to."""
        return compute_rows(node, Rows(node.num_rows))

    def rows_of(self, table: TableTensor, rows: int) -> Tensor:
        """Return the first rows; not to be written to."""
        if table.plain is not None:
            return table.plain[:rows]
        if table.node.dim != 0:
            return self.whole(table)[:rows]
        return compute_rows(table.node, Rows(rows))

    def whole(self, table: TableTensor) -> Tensor:
        """Return all rows; not to be written to."""
        if table.plain is not None:
            return table.plain
        return self.all_rows(table.node)

    # --- operations ---

    def taken(self, table: TableTensor, dim: int, index: Tensor) -> Gather:
        """Return the rows of a table that a list names."""
        node = table.node
        if self.exchanges is not None:
            self.exchanges.check(node, index)
        index = self.lists.one(index)
        if named_rows(*self.lists.bounds(index), node.num_rows):
            index = self.lists.one(index % node.num_rows)
        return Gather(node, dim, index, self.lists)

    def part(self, table: TableTensor, dim: int, run: tuple[int, int], rows: int) -> Value | None:
        """Return a run (start, step) of rows."""
        start, step = run
        if step == 1:
            return Narrow(table.node, start, rows)
        if self.exchanges is not None:
            return None
        index = torch.arange(start, start + step * rows, step, device=self.device)
        return Gather(table.node, dim, self.lists.one(index), self.lists)

    def scattered(
        self, base: Tensor, source: Tensor, at: tuple[int, Tensor], reduce: str, include: bool
    ) -> Scatter | None:
        """Return rows that messages are reduced into, in a dimension and by a list."""
        dim, index = at
        order = self.lists.order(self.lists.one(index), base.size(dim))
        if order is None:
            return None
        values = self.operand(base, dim), self.operand(source, dim)
        made = Scatter(self.lists, *values, order, reduce, include)
        if self.exchanges is not None and not in_backward():
            self.exchanges.check_sum(index, base.size(dim))
            made.missing = self.exchanges.missing
        if len(made.shape) > 1:
            self.forms.sums.add("messages" if made.product is None else "products")
            self.entries += source.numel()
        return made

    def norm(self, func: Any, x: Value, rest: Any) -> NeededNorm:
        """Return what is normalised by the statistics of needed rows."""
        return NeededNorm(func, x, rest)

    def _drawn(self, func: Any, node: Value, args: Any, kwargs: Any) -> Value | None:
        """Return random numbers for the needed rows, unless the model wants certain ones."""
        seeded = torch.initial_seed() != self._seed or kwargs.get("generator") is not None
        if seeded or not self.draws_apart or any(isinstance(v, Tensor) for v in args):
            return None
        return RandomRows(node, func, args, kwargs)

    def _leaves_of(self, tables: list[TableTensor]) -> Callable[[Tensor, int], Leaf]:
        """Return what makes the value of a plain tensor that was computed from some tables."""
        if self.exchanges is None or in_backward():
            return super()._leaves_of(tables)
        exchanges = self.exchanges
        layer = exchanges.layer_of([table.node for table in tables])

        def made(tensor: Tensor, dim: int) -> Leaf:
            leaf = self.saved.leaf(tensor, dim)
            exchanges.at_layer(leaf, layer)
            return leaf

        return made
