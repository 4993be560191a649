"""Convolutions on the in-edges of a block: their messages, or sums of rows where these lie."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import torch
from torch import Tensor

from ..core.quantized import QuantizedTensor, rows_of
from .blocks import Block, Scope
from .calls import Calls, Source, calls_of, first_of, last_of, run_forward
from .cutter import Convolution
from .layers import Layer, nbytes
from .normalisation import Normalisation
from .pieces import Pieces
from .spaces import Connectivity, Edges, Nodes, ends

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}


class _Enough(Exception):  # noqa: N818
    """Ends a forward of which only the first part is needed."""


class Messages(Layer):
    """Runs the module's messages and aggregation on the in-edges of the block.

    Args:
        conv: the call of a module, of one edge type.
        scope: all nodes of a small graph, with the inputs of the convolution.
        norm: how it normalises by degree, if it does.

    Raises:
        NotImplementedError: several hops between nodes of two types.
    """

    def __init__(self, conv: Convolution, scope: Scope, norm: Normalisation | None = None) -> None:
        super().__init__(conv, norm)
        (self._edge_type,) = conv.edge_types
        self._source_type, self._target_type = ends(self._edge_type)
        given = {n: scope.tables[n] for n in conv.inputs if n in scope.tables}
        arguments = conv.bound(lambda n: given.get(n, scope.constants.get(n)))
        self._calls: Calls = calls_of(conv.name, conv.module, given, arguments)
        self._pieces = Pieces(conv.module)
        self.rounds = self._calls.rounds
        if self.rounds > 1 and self._source_type != self._target_type:
            raise NotImplementedError("several hops between nodes of two types")

    @property
    def several_hops(self) -> bool:
        """Whether a call reads of the sources what an earlier call gave."""
        return self.rounds > 1

    @property
    def splits(self) -> bool:
        """Whether it computes a list in pieces of `max_edges`."""
        return self._pieces.right

    @splits.setter
    def splits(self, right: bool) -> None:
        self._pieces.right = right

    def prepared_in(self, round_: int) -> dict[str, Source]:
        """Return the tables that a round computes."""
        return self._calls.prepared_in(round_)

    def last_round(self, table: str) -> int:
        """Return the last round that reads a table; `rounds` for that of the output."""
        return self._calls.last_round(table)

    def row_bytes(self) -> int:
        """Return the bytes of the prepared rows of a node."""
        return sum(nbytes(s) for s in self._calls.sources.values() if s.prepared)

    def edge_bytes(self, whole: bool) -> int:
        """Return the bytes that are stored for an edge: its ends, and the rows of its source."""
        if whole and self.splits:
            between = (c for c in self._calls.calls if c.function == "edge_updater")
            return 64 + sum(nbytes(c) for c in between)
        return 64 + sum(nbytes(s) for s in self._calls.sources.values())

    def prepare(self, block: Block, round_: int) -> dict[str, Tensor]:
        """Run the first part of the forward, up to what the sources give to the next call."""
        wanted, found = self.prepared_in(round_), {}
        count = itertools.count()

        def keep(original: Any, given: Tensor, size: Any, kwargs: dict[str, Any]) -> Any:
            i = next(count)
            for key, value in kwargs.items():
                source = self._calls.sources.get((i, key))
                if source is not None and source.table in wanted:
                    found[source.table] = first_of(value)
            if len(found) == len(wanted):
                raise _Enough
            return self._answer(block, i, round_, original, given, kwargs)

        with contextlib.suppress(_Enough):
            # What round 0 prepares does not depend on edges.
            node_type, edges = self._source_type, round_ > 0
            self._forward(block, node_type, edges, keep)
        return found

    def run(self, block: Block) -> Tensor:
        """Return the rows of the block."""
        count = itertools.count()

        def call(original: Any, given: Tensor, size: Any, kwargs: dict[str, Any]) -> Any:
            return self._answer(block, next(count), self.rounds, original, given, kwargs)

        return self._forward(block, self._target_type, True, call)

    def _forward(self, block: Block, node_type: Any, edges: bool, replacement: Any) -> Tensor:
        """Run the forward on a block of a type, with its in-edges or without any."""
        scope = block.scope
        none = torch.empty(0, dtype=torch.int64)
        edge_index = self._numbered(block) if edges else none.expand(2, 0)
        ids = block.in_edges(self._edge_type).ids if edges else none

        def lookup(name: str) -> Any:
            value = scope.cut.values[name]
            if isinstance(value.space, Connectivity):
                return edge_index
            if isinstance(value.space, Edges):
                return scope.edge_rows(name, ids)
            if isinstance(value.space, Nodes) and value.space.node_type != node_type:
                return torch.zeros(1, *value.shape, dtype=value.dtype)  # not read of this type
            return block.own(name)

        names = self.norm.names(block if edges else None) if self.norm is not None else None
        return run_forward(self.conv.module, self.conv.bound(lookup), replacement, names)

    def _numbered(self, block: Block) -> Tensor:
        """Return the in-edges, int64 [2, E], as the forward sees them.

        A target is its position in the block. A source is ``block.size`` plus the position of the
        edge, or in a self loop the target, so that the forward can recognise self loops.
        """
        edges = block.in_edges(self._edge_type)
        slot = torch.arange(block.size, block.size + len(edges.source))
        if self._source_type == self._target_type:
            slot = torch.where(edges.source == block.first + edges.target, edges.target, slot)
        return torch.stack([slot, edges.target])

    def _answer(
        self, block: Block, i: int, round_: int, original: Any, given: Tensor, kwargs: Any
    ) -> Any:
        """Return the result of a call; zeros if this round does not need it."""
        call, name = self._calls.calls[i], self._calls.known(i, round_)
        if self._calls.computed_in(i, round_):
            return self._call(block, i, original, given, kwargs)
        if name is not None and i in self._calls.needed[round_]:
            return block.own(name)
        rows = block.size if call.function == "propagate" else given.size(1)
        return torch.zeros(rows, *call.shape, dtype=call.dtype)

    def _call(
        self, block: Block, i: int, original: Any, given: Tensor, kwargs: dict[str, Any]
    ) -> Any:
        """Call `propagate` or `edge_updater` with the tables of the sources and their ids."""
        edges, scope = block.in_edges(self._edge_type), block.scope
        place = (given[0] - block.size).clamp(min=0)
        source = edges.source[place] if len(edges.source) else place
        source = torch.where(given[0] < block.size, given[0] + block.first, source)
        used = {
            key: self._calls.sources[i, key] for key in kwargs if (i, key) in self._calls.sources
        }

        def on(part: slice, of_edges: dict[str, Any]) -> tuple[Tensor, Any, dict[str, Any]]:
            """Return the arguments for some of the edges."""
            ids = rows = source[part]
            size = scope.num_nodes(self._source_type)
            if any(is_narrow(scope.tables[s.table], s.dtype) for s in used.values()):
                # A row for each edge.
                size, ids = len(rows), torch.arange(len(rows))
            both = {**kwargs, **of_edges}
            for key, of in used.items():
                table = scope.tables[of.table]
                if ids is not rows:
                    table = rows_of(table, rows).to(of.dtype)
                both[key] = (table, self._own(block, i, key, kwargs[key]))
            return torch.stack([ids, given[1, part]]), (size, block.size), both

        limit = self.max_edges
        if limit is not None and self.splits and given.size(1) > limit:
            function = self._calls.calls[i].function
            per_edge = {
                key: value
                for key, value in kwargs.items()
                if key not in used and isinstance(value, Tensor) and value.dim() > 0
                if len(value) == given.size(1)
            }
            return self._pieces.run(function, on, per_edge, block.size, given.size(1), limit)
        edge_index, size, both = on(slice(None), {})
        return original(edge_index, size=size, **both)

    def _own(self, block: Block, i: int, key: str, value: Any) -> Any:
        """Return the block's rows of what a call reads of sources and targets."""
        source = self._calls.sources[i, key]
        if source.shared and source.round > 0:  # `value` is not computed in later rounds
            return block.own(source.table)
        return last_of(value)


class Reduced(Messages):
    """As `Messages`, but the backend reduces the rows of the sources where they lie."""

    def edge_bytes(self, whole: bool) -> int:
        """Return the bytes that are stored for an edge: those of weights."""
        weighted = self.norm is not None or "edge_weight" in self.conv.bound(lambda name: name)
        return 32 if weighted else 0

    def _numbered(self, block: Block) -> Tensor:
        """Return no edges: `propagate` does not need them here."""
        return torch.empty(2, 0, dtype=torch.int64)

    def _call(
        self, block: Block, i: int, original: Any, given: Tensor, kwargs: dict[str, Any]
    ) -> Any:
        """Reduce instead of calling `propagate`."""
        scope, weight = block.scope, kwargs.get("edge_weight")
        own = self._own(block, i, "x", kwargs["x"])
        table, loops = scope.tables[self._calls.sources[i, "x"].table], None
        if weight is not None:
            weight = weight.view(-1)
            if self.norm is not None and self.norm.add_self_loops:
                weight, loops = weight[: -block.size], weight[-block.size :]
        if isinstance(table, QuantizedTensor):
            raise NotImplementedError("its rows have to be decoded first")
        if table.dim() != 2:
            table, own = table.flatten(1), own.flatten(1)
        out = scope.backend.reduce(
            scope.graph.csc,
            scope.relations[self._edge_type],
            table,
            REDUCTIONS[self.conv.module.aggr],
            (block.first, block.last),
            weight,
        )
        if out is None:
            raise NotImplementedError("the backend does not reduce such rows")
        if loops is not None:
            out.addcmul_(loops.view(-1, 1), own)
        return out


def is_narrow(table: Tensor, dtype: torch.dtype) -> bool:
    """Whether rows are kept in fewer bits than messages are computed in."""
    return table.dtype != dtype or isinstance(table, QuantizedTensor)
