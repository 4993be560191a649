"""Rows of nodes that a layer reads from a table of earlier steps or from other ranks.

A layer reads rows of nodes where it gathers a value by the sources of sampled edges. An exchange
(`RowExchange`) replaces some of these rows, and routes their gradients. `Exchanges` inserts them
into a step: above autograd, which then runs their backward, and on values of the step, so that only
needed rows are computed and exchanged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ...batch.edges import SampledEdges
from ...core.private_torch import writes_to
from ..lazy.batch_run import BatchRun
from ..lazy.sums import NOT_CUT, Missing, NotCutError
from ..lazy.tensor import TableTensor
from ..lazy.values import Value
from .messages import AgreedExchange
from .values import RowExchange, exchanged

# Functions with the arguments (table, dim, index), and those with (table, index).
BY_DIM = {torch.index_select, Tensor.index_select}
BY_INDEX = {Tensor.__getitem__}
# That sum plain tensors up, with the arguments (sums, dim, index).
SUMS = {
    torch.scatter_add, Tensor.scatter_add, Tensor.scatter_add_, torch.index_add, Tensor.index_add,
    Tensor.index_add_, Tensor.scatter_reduce, Tensor.scatter_reduce_,
}  # fmt: skip


class Gathered(NamedTuple):
    """A value that a layer gathers by sources of edges.

    Attributes:
        edge_type: of the edges; None where all are of one type.
        layer: how many layers have gathered for it before, on the longest way; 0 for inputs.
        shape: [N, ...], N the nodes of the source type in the batch.
        dtype: of its elements.
        of_edges: a plain tensor, which the forward has made of the edges alone, such as degrees.
            Its exchange is called under autograd, and needs no `backward`.
        is_input: whether it is an argument of the model, and not made by an operation.
    """

    edge_type: Any
    layer: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    of_edges: bool = False
    is_input: bool = False


class Exchanges(TorchFunctionMode):
    """Puts exchanges into a step, whose forward runs within it.

    Args:
        run: the step.
        edges: of the batch, each with its edge type or None.
        exchange_of: returns the exchange of a gathered value, a `RowExchange` or an
            `AgreedExchange`, or None to gather it without one. It is called once for each value, in
            the order of the forward.
        missing: rows of nodes that lack edges, with which sums by source are wrong; None for none.
    """

    def __init__(
        self,
        run: BatchRun,
        edges: list[tuple[Any, SampledEdges]],
        exchange_of: Callable[[Gathered], RowExchange | AgreedExchange | None],
        missing: Missing | None = None,
    ) -> None:
        super().__init__()
        self.missing = missing
        self._exchange_of = exchange_of
        self._sources: list[tuple[Any, int, Tensor]] = []
        self._destinations = [sampled.as_tensor()[1] for _, sampled in edges]
        for key, sampled in edges:
            source, destination = sampled.as_tensor()
            lists = [run.lists.one(source)]
            edge_type = key if type(key) is tuple else None  # else the name of an argument
            num_nodes, num_destinations = sampled.num_ends
            if num_nodes == num_destinations:
                lists += [run.lists.one(source[source != destination])]
            self._sources += [(edge_type, num_nodes, v) for v in {id(v): v for v in lists}.values()]
        self._layers: dict[Value, int] = {}
        self._made: dict[Any, tuple[TableTensor, Any]] = {}
        self.exchanged: set[Value] = set()
        self.waiting: dict[Value, None] = {}  # gradients that are to go to other ranks
        self.inputs: set[Value] = set()  # what the arguments of the forward hold
        run.exchanges = self

    def __exit__(self, *error: Any) -> None:
        """Forget the tensors of the forward: they lead back here, and would not be freed."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._layers.clear()
        self._made.clear()
        self.inputs.clear()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let a gather read exchanged rows."""
        kwargs = kwargs or {}
        table: Any = args[0] if args else None
        if func in SUMS and len(args) > 2 and type(args[2]) is Tensor:
            self.check_sum(args[2], len(table))
        if type(table) not in (TableTensor, Tensor) or func not in BY_DIM | BY_INDEX:
            return func(*args, **kwargs)
        given = [*args[1:], *(kwargs[n] for n in ("dim", "index") if n in kwargs)]
        in_rows = func in BY_INDEX or given[0] in (0, -table.dim())
        num_rows = table.size(0) if in_rows and table.dim() else -1
        by_sources, edge_type = self._read(num_rows, given[-1])
        if not by_sources:
            return func(*args, **kwargs)
        if type(table) is Tensor:
            return func(self._of_edges(table, edge_type), *args[1:], **kwargs)
        layer = self._layer(table.node)
        found = func(self._through(table, edge_type, layer), *args[1:], **kwargs)
        if type(found) is TableTensor:  # a batch without edges gathers nothing
            self._layers[found.node] = layer + 1
        return found

    def check_sum(self, index: Tensor, rows: int) -> None:
        """Raise a RuntimeError if sums would lack edges, as a step has not those of all nodes."""
        if self.missing is None or len(index) == 0 or not self._read(rows, index)[0]:
            return
        if not any(torch.equal(index[: len(ends)], ends) for ends in self._destinations):
            raise NotCutError(NOT_CUT)

    def check(self, value: Value, index: Tensor) -> None:
        """Raise a RuntimeError if a value is gathered by sources in a way that is not seen here."""
        if value not in self.exchanged and self._read(value.num_rows, index)[0]:
            raise self.refused(
                "rows of nodes are gathered by other means than index_select(0, index) or x[index]"
            )

    def refused(self, what: str) -> RuntimeError:
        """Return the error of a model that cannot run with these exchanges."""
        return RuntimeError(what)

    def _of_edges(self, table: Tensor, edge_type: Any) -> Tensor:
        """Return what the forward has made of edges, with its exchanged rows."""
        if not table.is_floating_point():
            return table
        gathered = Gathered(edge_type, 0, tuple(table.shape), table.dtype, of_edges=True)
        exchange = self._exchange_of(gathered)
        assert not isinstance(exchange, AgreedExchange)
        return table if exchange is None else exchange.forward(table, len(table))

    def _read(self, rows: int, index: Any) -> tuple[bool, Any]:
        """Return whether a list is one of sources of so many nodes, and of which edge type.

        Self-loops may follow the sources, and those of the batch may be left out.
        """
        if type(index) is Tensor and index.dim() == 1 and index.dtype in (torch.int64, torch.int32):
            for edge_type, num_nodes, sources in self._sources:
                count = len(sources)
                fits = num_nodes == rows and count <= len(index)
                fits = fits and (count > 0 or len(index) == 0)
                if fits and torch.equal(index[:count].long(), sources):
                    return True, edge_type
        return False, None

    def layer_of(self, values: list[Value]) -> int:
        """Return the layer of what is computed from some values."""
        return max(map(self._layer, values), default=0)

    def at_layer(self, value: Value, layer: int) -> Value:
        """Say of which layer a value is whose parents are not known."""
        self._layers[value] = layer
        return value

    def _layer(self, value: Value) -> int:
        """Return how many gathers by sources a value is made of, one after another."""
        ahead = [value]
        while ahead:  # without recursion, as models are deep
            one = ahead[-1]
            parents = [] if one in self._layers else one.parents()
            missing = [v for v in parents if v not in self._layers]
            if missing:
                ahead += missing
                continue
            ahead.pop()
            self._layers.setdefault(one, max((self._layers[v] for v in parents), default=0))
        return self._layers[value]

    def _through(self, table: TableTensor, edge_type: Any, layer: int) -> TableTensor:
        """Return a tensor with its exchanged rows; the same for all gathers of it."""
        written = 0 if table.plain is None else writes_to(table.plain)
        node_type = None if edge_type is None else edge_type[0]
        key = id(table), id(table.node), written, node_type, torch.is_grad_enabled()
        if key not in self._made:
            shape = tuple(table.shape)
            is_input = table.node in self.inputs
            gathered = Gathered(edge_type, layer, shape, table.dtype, is_input=is_input)
            exchange = self._exchange_of(gathered)
            made = table if exchange is None else exchanged(table, exchange)
            self.exchanged.add(made.node)
            self._made[key] = made, (table, table.node)  # which live on, at these addresses
        return self._made[key][0]
