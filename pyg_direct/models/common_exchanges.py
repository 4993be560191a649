"""Exchanges of a step in which each rank has some rows only, and what is refused in it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.private_torch import writes_to
from .batch_tensor import BatchTensor
from .needed import Fill, Value
from .row_exchange import BY_DIM, BY_INDEX, Exchanges

SUMS = {
    getattr(of, name)
    for of, names in (
        (torch, ("scatter_add", "scatter_reduce", "index_add", "index_reduce")),
        (Tensor, ("scatter_add", "scatter_reduce", "index_add", "index_reduce")),
        (Tensor, ("scatter_add_", "scatter_reduce_", "index_add_", "index_reduce_")),
    )
    for name in names
}

COUNTS = {torch.bincount, Tensor.bincount}


class MixedRowsError(RuntimeError):
    """A model that cannot run on a batch which ranks make together."""


def refusal(what: str) -> MixedRowsError:
    """Return the error of a model that mixes rows."""
    return MixedRowsError(
        f"This model cannot run on a cooperative batch, of which each rank has some rows only: "
        f"{what}. Leave cooperative=True out; share_rows=True shares the loading for any model."
    )


class CommonExchanges(Exchanges):
    """Exchanges of a step in which each rank has some rows only.

    Args:
        run: the step, a `CooperativeRun`.
        edges: see `Exchanges`.
    """

    def __init__(self, run: Any, edges: Any) -> None:
        super().__init__(run, edges, run.exchange_of)
        self._common, self._ends = run, []
        self.edge_counts: set[int] = set()  # with and without self-loops
        for _, sampled in edges:
            source, destination = sampled.as_tensor()
            for kept in (destination, destination[source != destination]):
                rows = sampled.num_ends[1]
                self._ends.append((rows, kept))
                self.edge_counts |= {len(kept), len(kept) + rows}
        self._known: dict[int, bool] = {}
        self._entered: dict[tuple[int, int], tuple[Tensor, BatchTensor]] = {}

    def __exit__(self, *error: Any) -> None:
        """Forget the tensors of the forward."""
        super().__exit__(*error)
        self._entered.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let a gather read exchanged rows, also of what is computed of the edges alone."""
        table: Any = args[0] if args else None
        plain = type(table) in (Tensor, torch.nn.Parameter) and table.dim() > 0
        if plain and func in COUNTS and len(table) in self.edge_counts:
            self._check_count(table)
        if plain and self._common.type_of(len(table)):
            if func in SUMS:
                self._check_plain_sum(table, *args[1:], **(kwargs or {}))
            elif func in BY_DIM | BY_INDEX and self._is_by_sources(table, args, kwargs or {}):
                args = (self._enter(table), *args[1:])
        return super().__torch_function__(func, types, args, kwargs)

    def _is_by_sources(self, table: Tensor, args: Any, kwargs: Any) -> bool:
        index = kwargs.get("index", args[-1])
        return self._read(len(table), index)[0]

    def _enter(self, table: Tensor) -> BatchTensor:
        """Return a tensor of the step with the rows of a plain one."""
        key = id(table), writes_to(table)
        if key not in self._entered:
            run = self._common
            made: Any = run.enter(table if table.requires_grad else run.numbers.kept(table))
            self._entered[key] = table, made
        return self._entered[key][1]

    def _check_plain_sum(self, table: Tensor, dim: int, index: Any, *_: Any, **__: Any) -> None:
        if type(index) is Tensor and table.size(dim) > 0:
            listed = index if index.dim() < 2 else index.movedim(dim, 0).flatten(1)[:, 0]
            self.check_sum(listed, table.size(dim))

    def check(self, value: Value, index: Tensor) -> None:
        """Raise a RuntimeError if a value is gathered in a way that would miss rows of others."""
        super().check(value, index)
        is_known = value in self.inputs or value in self.exchanged or isinstance(value, Fill)
        if not self._common.is_in_forward or is_known:
            return
        if value.num_rows in self.edge_counts and not self._common.type_of(value.num_rows):
            return
        if not self._goes_to(value.num_rows, index):
            raise refusal("rows are picked neither by sources nor by destinations of edges")

    def check_sum(self, index: Tensor, rows: int) -> None:
        """Raise a RuntimeError if messages are summed by anything but destinations."""
        listed = index.dim() == 1 and self._common.is_in_forward
        if listed and not self._goes_to(rows, index):
            raise refusal("messages are summed by other lists than the destinations of edges")

    def _check_count(self, index: Tensor) -> None:
        """Raise a RuntimeError if edges are counted by anything but destinations."""
        if not any(self._goes_to(rows, index) for rows, _ in self._ends):
            raise refusal("edges are counted by other lists than their destinations")

    def refused(self, what: str) -> RuntimeError:
        """See `Exchanges`."""
        return refusal(what)

    def _goes_to(self, num_rows: int, index: Tensor) -> bool:
        """Whether a list is one of destinations, behind which self-loops may follow."""
        index = self._common.lists.one(index)
        if id(index) not in self._known:
            self._known[id(index)] = any(
                rows == num_rows and _is_list(index, listed, rows) for rows, listed in self._ends
            )
        return self._known[id(index)]


def _is_list(index: Tensor, listed: Tensor, num_rows: int) -> bool:
    loops = index[len(listed) :]
    if len(loops) not in (0, num_rows) or not torch.equal(index[: len(listed)], listed.long()):
        return False
    return len(loops) == 0 or torch.equal(loops, torch.arange(num_rows, device=loops.device))
