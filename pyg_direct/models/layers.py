"""How one convolution runs on a block of destination nodes.

Three ways, from fast to general; `choose` takes the first that gives, on the example of the cut,
what the module itself gives on the whole graph.

* `Reduced`: the messages are the rows of the sources, or those times a weight, and their sum, mean,
  maximum or minimum is taken. The backend reduces straight from the table of all sources: no
  message is stored, whatever the length of a list.
* `Messages`: the module's own messages and aggregation on the block's in-edges. Sources are read by
  their ids in the table of all nodes, so none is renumbered or copied first.
* `Local`: the module as it is, on the renumbered one-hop subgraph. For modules that do not fit the
  others (several edge types at once, as HGTConv).

For the first two, PyG's ``forward`` of the module is run with ``propagate`` and ``edge_updater``
replaced. What it hands to them for the sources (for GATConv: transformed features and attention
terms) is computed once for all nodes beforehand; the table of it is a *prepared* value.

Layers that normalise by degree, with PyG's `gcn_norm` (Kipf and Welling, 2017), get the weights of
the whole graph from `normalisation` and are run without a normalisation of their own.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .blocks import Block, Scope, blocks_of
from .cutter import Convolution
from .normalisation import Normalisation, normalisation_of
from .spaces import Connectivity, CutError, Edges, Nodes, ends, same

REDUCTIONS = {"add": "sum", "sum": "sum", "mean": "mean", "max": "max", "min": "min"}


class Source(NamedTuple):
    """What the sources give to one call of `propagate` or `edge_updater`."""

    table: str  # name of the table with a row for each source
    prepared: bool  # whether it has to be computed first
    shape: tuple[int, ...]  # of one row
    dtype: torch.dtype


class _Enough(Exception):  # noqa: N818
    """Ends a forward of which only the first part is needed."""


class Layer:
    """One convolution, ready to run on blocks of a destination type."""

    sources: dict[tuple[int, str], Source]

    def __init__(self, conv: Convolution, norm: Normalisation | None = None) -> None:
        self.conv, self.norm, self.sources = conv, norm, {}

    @property
    def source_type(self) -> Any:
        """The node type of the sources (of the first edge type)."""
        return ends(self.conv.edge_types[0])[0]

    def run(self, block: Block) -> Tensor:
        """Return the rows of the block."""
        raise NotImplementedError

    def prepare(self, block: Block) -> dict[str, Tensor]:
        """Return the block's rows of the prepared tables; the block is of the source type."""
        raise NotImplementedError

    @property
    def prepared(self) -> dict[str, Source]:
        """The tables to compute before the layer can run."""
        return {s.table: s for s in self.sources.values() if s.prepared}


class Local(Layer):
    """Runs the module on the one-hop subgraph; right for every module that reaches one hop."""

    def run(self, block: Block) -> Tensor:
        """Return the rows of the block."""
        part, scope = block.one_hop(), block.scope

        def lookup(name: str) -> Any:
            space = scope.cut.values[name].space
            if isinstance(space, Nodes):
                return scope.rows(name, part.node[space.node_type])
            if isinstance(space, Edges):
                return scope.edge_rows(name, part.edge[space.edge_type])
            if isinstance(space, Connectivity):
                return part.edge_index[space.edge_type]
            return scope.constants[name]

        args, kwargs = self.conv.arguments(lookup)
        found = self.conv.named(self.conv.module(*args, **kwargs))
        rows: Tensor = found[self.conv.outputs[block.node_type]]
        return rows[: block.size]


class Messages(Layer):
    """Runs the module's messages and aggregation on the in-edges of the block."""

    def __init__(self, conv: Convolution, norm: Normalisation | None = None) -> None:
        super().__init__(conv, norm)
        (self._edge_type,) = conv.edge_types
        self._source_type, self._target_type = ends(self._edge_type)
        names = {
            "propagate": conv.module._user_args,
            "edge_updater": conv.module._edge_user_args,
        }
        self._lifted = {
            function: {n[:-2] for n in arguments if n.endswith("_j")}
            for function, arguments in names.items()
        }
        self._calls = 0

    def learn(self, scope: Scope) -> None:
        """Find out, on all nodes of a small graph, what the sources hand over."""
        given = {n: scope.tables[n] for n in self.conv.inputs if n in scope.tables}
        calls: list[tuple[str, dict[str, Any]]] = []

        def record(original: Any, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Any:
            calls.append((original.__name__, kwargs))
            return original(edge_index, size=size, **kwargs)

        self._forward(self.conv.bound(lambda n: given.get(n, scope.constants.get(n))), record)
        self._calls = len(calls)
        for i, (function, kwargs) in enumerate(calls):
            for key in sorted(self._lifted[function] & kwargs.keys()):
                value = kwargs[key][0] if isinstance(kwargs[key], (tuple, list)) else kwargs[key]
                if isinstance(value, Tensor):
                    same = [n for n, v in given.items() if v is value]
                    table = same[0] if same else f"{self.conv.name}.{i}.{key}"
                    shape = tuple(value.shape[1:])
                    self.sources[i, key] = Source(table, not same, shape, value.dtype)

    def prepare(self, block: Block) -> dict[str, Tensor]:
        """Run the first part of the forward on source rows, without edges."""
        found: dict[str, Tensor] = {}
        count = itertools.count()

        def keep(original: Any, edge_index: Tensor, size: Any, kwargs: dict[str, Any]) -> Any:
            i = next(count)
            for key in sorted(self._lifted[original.__name__] & kwargs.keys()):
                source = self.sources.get((i, key))
                if source is not None and source.prepared:
                    value = kwargs[key]
                    found[source.table] = value[0] if isinstance(value, (tuple, list)) else value
            if i + 1 == self._calls:
                raise _Enough
            return original(edge_index, size=size, **kwargs)

        none = torch.empty(0, dtype=torch.int64, device=block.scope.backend.device)

        def lookup(name: str) -> Any:
            space = block.scope.cut.values[name].space
            if isinstance(space, Connectivity):
                return none.view(1, 0).expand(2, 0)
            if isinstance(space, Edges):
                return block.scope.edge_rows(name, none)
            return self._node_rows(block, name, self._source_type)

        with contextlib.suppress(_Enough):
            self._forward(self.conv.bound(lookup), keep)
        return found

    def run(self, block: Block) -> Tensor:
        """Return the rows of the block."""
        scope, count = block.scope, itertools.count()
        edge_index = self._numbered(block)

        def lookup(name: str) -> Any:
            space = scope.cut.values[name].space
            if isinstance(space, Connectivity):
                return edge_index
            if isinstance(space, Edges):
                return scope.edge_rows(name, block.in_edges(self._edge_type).ids)
            return self._node_rows(block, name, self._target_type)

        arguments = self.conv.bound(lookup)
        if self.norm is not None:
            edge_index, weight = self.norm.edges(block, edge_index, arguments.get("edge_weight"))
            arguments.update(edge_index=edge_index, edge_weight=weight)

        def call(original: Any, given: Tensor, size: Any, kwargs: dict[str, Any]) -> Any:
            return self._call(block, next(count), original, given, kwargs)

        return self._forward(arguments, call)

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

    def _call(
        self, block: Block, i: int, original: Any, given: Tensor, kwargs: dict[str, Any]
    ) -> Any:
        """Call `propagate` or `edge_updater` with the tables of the sources and their ids."""
        edges, scope = block.in_edges(self._edge_type), block.scope
        place = (given[0] - block.size).clamp(min=0)
        source = edges.source[place] if len(edges.source) else place
        source = torch.where(given[0] < block.size, given[0] + block.first, source)
        size, rows = scope.num_nodes(self._source_type), source
        used = {key: self.sources[i, key] for key in kwargs if (i, key) in self.sources}
        if any(scope.tables[s.table].dtype != s.dtype for s in used.values()):
            # Kept in a narrower dtype than messages are computed in: a row for each edge.
            size, source = len(source), torch.arange(len(source))
        for key, of in used.items():
            table = scope.tables[of.table]
            if source is not rows:
                table = table[rows].to(of.dtype)
            kwargs[key] = (table, _own(kwargs[key]))
        return original(torch.stack([source, given[1]]), size=(size, block.size), **kwargs)

    def _node_rows(self, block: Block, name: str, node_type: Any) -> Any:
        """Return the block's rows of a value of its type, one row of zeros of another type."""
        value = block.scope.cut.values[name]
        if isinstance(value.space, Nodes) and value.space.node_type != node_type:
            return torch.zeros(1, *value.shape, dtype=value.dtype)
        return block.own(name)

    def _forward(
        self, arguments: dict[str, Any], replacement: Callable[[Any, Tensor, Any, Any], Any]
    ) -> Tensor:
        """Run the module with `propagate` and `edge_updater` replaced."""
        module = self.conv.module
        clone = object.__new__(type(module))
        clone.__dict__.update(module.__dict__)

        def replaced(original: Any) -> Any:
            def run(edge_index: Tensor, size: Any = None, **kwargs: Any) -> Any:
                return replacement(original, edge_index, size, kwargs)

            return run

        for function in ("propagate", "edge_updater"):
            clone.__dict__[function] = replaced(getattr(module, function))
        if self.norm is not None:
            clone.__dict__["normalize"] = False
        out: Tensor = clone(**arguments)
        return out


class Reduced(Messages):
    """As `Messages`, but the backend reduces the rows of the sources where they lie."""

    @property
    def unweighted(self) -> bool:
        """Whether nothing is known of an edge but its ends."""
        return self.norm is None and "edge_weight" not in self.conv.bound(lambda name: name)

    def _numbered(self, block: Block) -> Tensor:
        """Return no edges: `propagate` does not need them here."""
        return torch.empty(2, 0, dtype=torch.int64)

    def _call(
        self, block: Block, i: int, original: Any, given: Tensor, kwargs: dict[str, Any]
    ) -> Any:
        """Reduce instead of calling `propagate`."""
        scope, weight, own = block.scope, kwargs.get("edge_weight"), _own(kwargs["x"])
        table, loops = scope.tables[self.sources[i, "x"].table], None
        if weight is not None:
            weight = weight.view(-1)
            if self.norm is not None and self.norm.add_self_loops:
                weight, loops = weight[: -block.size], weight[-block.size :]
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


def _own(value: Any) -> Any:
    """Return the rows of the targets."""
    return value[1] if isinstance(value, (tuple, list)) else value


def is_weighted_sum(conv: Convolution) -> bool:
    """Whether messages are rows of the sources, or those times a weight, and what they are only.

    Tried on numbers of several scales and both signs, so that an activation inside is noticed.
    """
    module = conv.module
    hooked = any(hooks for name, hooks in vars(module).items() if name.endswith("_hooks"))
    known = {"x_j", "edge_weight"}
    if hooked or module.explain or not isinstance(module.aggr, str):
        return False
    names = set(module._user_args)
    if module.aggr not in REDUCTIONS or names - known or "x_j" not in names:
        return False
    draw = torch.Generator().manual_seed(0)
    edge_index = torch.randint(9, (2, 40), generator=draw)
    edge_index = edge_index[:, edge_index[1].argsort(stable=True)]
    kind = REDUCTIONS[module.aggr]
    for scale in (1e-3, 1.0, 1e3):
        x = torch.randn(9, 4, generator=draw) * scale
        weights: list[Tensor | None] = [None]
        if "edge_weight" in module._user_args:
            weights.append(torch.randn(40, generator=draw))
        for weight in weights:
            message = x[edge_index[0]] if weight is None else weight.view(-1, 1) * x[edge_index[0]]
            reduce = {"max": "amax", "min": "amin"}.get(kind, kind)
            wanted = torch.zeros(11, 4).scatter_reduce_(
                0, edge_index[1].view(-1, 1).expand(-1, 4), message, reduce, include_self=False
            )
            given = {} if "edge_weight" not in module._user_args else {"edge_weight": weight}
            try:
                found = module.propagate(
                    edge_index, x=(x, x.new_zeros(11, 4)), size=(9, 11), **given
                )
            except Exception:
                return False
            if not same(found, wanted) or (weight is not None and kind != "sum"):
                return False
    return True


def choose(conv: Convolution, scope: Scope, expected: dict[str, Tensor]) -> Layer:
    """Return the fastest way to run a convolution that is right on the example.

    Args:
        conv: the call of a module.
        scope: all nodes of the example, with the inputs of the convolution.
        expected: what the module gives, by the names of the values.

    Raises:
        CutError: no way is right; the message says why.
    """
    reasons = []
    for make in _ways(conv, scope):
        try:
            layer = make()
            if _agrees(layer, scope, expected):
                return layer
            reasons.append("other numbers")
        except Exception as error:
            reasons.append(f"{type(error).__name__}: {error}")
    raise CutError(
        f"{conv.target!r} ({type(conv.module).__name__}) cannot be computed from one-hop "
        f"neighbourhoods: its rows depend on {conv.one_hop or reasons[-1]}."
    )


def _ways(conv: Convolution, scope: Scope) -> Iterator[Callable[[], Layer]]:
    """Yield constructors, the fastest first."""
    if len(conv.edge_types) == 1 and scope.reduces and conv.module.flow == "source_to_target":
        norm = normalisation_of(conv)

        def learned(make: type[Messages]) -> Layer:
            layer = make(conv, norm)
            layer.learn(scope)
            return layer

        if conv.one_hop == "" or norm is not None:
            if is_weighted_sum(conv):
                yield lambda: learned(Reduced)
            yield lambda: learned(Messages)
    if conv.one_hop == "":
        yield lambda: Local(conv)


def _agrees(layer: Layer, scope: Scope, expected: dict[str, Tensor]) -> bool:
    """Run a layer on small blocks of the example, and compare."""
    tables = dict(scope.tables)
    trial = replace(scope, tables=tables, constants=dict(scope.constants), degrees={})
    source_type = layer.source_type
    blocks = partial(blocks_of, max_rows=5, max_edges=9)
    if layer.norm is not None:
        count = trial.num_nodes(source_type)
        parts_of_it = [Block(trial, source_type, a, b) for a, b, _ in blocks(count, [])]
        trial.degrees[layer.norm.key] = layer.norm.measured(parts_of_it)
    if layer.prepared:
        count = trial.num_nodes(source_type)
        parts = [
            layer.prepare(Block(trial, source_type, first, last))
            for first, last, _ in blocks(count, [])
        ]
        for name in layer.prepared:
            tables[name] = torch.cat([part[name] for part in parts])
    for node_type, name in layer.conv.outputs.items():
        lists = [trial.list_ends(e) for e in layer.conv.edge_types if ends(e)[1] == node_type]
        for first, last, _ in blocks(trial.num_nodes(node_type), lists):
            rows = layer.run(Block(trial, node_type, first, last))
            if not same(rows.to(expected[name].device), expected[name][first:last]):
                return False
    return True
