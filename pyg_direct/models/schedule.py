"""The order of work of layer-wise inference: phases of independent tasks, and their memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..units import size_text
from .blocks import Scope, blocks_of
from .layers import Layer, Local, Reduced
from .spaces import Nodes, ends

TEMPORARIES = 3  # copies of a block's rows and messages that layers hold at a time
MIN_ROWS = 64  # of a block, whatever its rows take
REDUCED_EDGES = 1 << 19  # of a block without messages, so that threads get like shares


class Task(NamedTuple):
    """One block of one phase."""

    number: int  # over all phases
    phase: int
    node_type: Any
    first: int
    last: int
    edges: int


@dataclass
class Table:
    """Rows of all nodes of a type, of one value."""

    name: str
    node_type: Any
    shape: tuple[int, ...]  # with the number of nodes
    dtype: torch.dtype
    made: int  # phase that computes it
    read: int  # last phase that reads it; the number of phases for outputs
    in_file: bool = False

    @property
    def nbytes(self) -> int:
        """Size of the rows."""
        return int(torch.Size(self.shape).numel()) * self.dtype.itemsize


@dataclass
class Phase:
    """Tasks that do not depend on each other: a stage, or what is prepared for one."""

    stage: int
    layers: list[Layer]  # of a stage: its convolutions; else those to prepare
    prepares: bool
    tasks: list[Task] = field(default_factory=list)

    @property
    def edges(self) -> int:
        """Edges and rows to visit."""
        return sum(t.edges + t.last - t.first for t in self.tasks)


@dataclass
class Schedule:
    """All phases, and the tables they exchange.

    `str` gives what will be computed, and what memory it takes.
    """

    phases: list[Phase]
    tables: dict[str, Table]
    threads: int
    block_bytes: int  # that one thread's block may take
    graph_bytes: int  # of the CSC, made for the run

    @property
    def in_memory_bytes(self) -> int:
        """Memory that the run takes at its peak, files and the user's data apart."""
        return self.graph_bytes + self.threads * self.block_bytes + self.peak(in_file=False)

    def peak(self, in_file: bool) -> int:
        """Return the largest sum of the tables that are held at a time, by where they lie."""
        return max(
            (
                sum(
                    table.nbytes
                    for table in self.tables.values()
                    if table.made <= phase <= table.read and table.in_file == in_file
                )
                for phase in range(len(self.phases))
            ),
            default=0,
        )

    def __str__(self) -> str:
        lines = [
            f"{len(self.phases)} phases, {sum(len(p.tasks) for p in self.phases)} blocks, "
            f"{self.threads} threads; {size_text(self.in_memory_bytes)} of memory: graph "
            f"{size_text(self.graph_bytes)}, blocks {size_text(self.threads * self.block_bytes)}, "
            f"layers {size_text(self.peak(in_file=False))}; files "
            f"{size_text(self.peak(in_file=True))}"
        ]
        for phase in self.phases:
            what = ", ".join(f"{x.conv.target} ({type(x).__name__.lower()})" for x in phase.layers)
            kind = "prepare" if phase.prepares else "compute"
            lines.append(f"  stage {phase.stage}: {kind} {what or 'row-wise'}")
        return "\n".join(lines)


def make_schedule(
    scope: Scope,
    layers: Mapping[str, Layer],
    outputs: set[str],
    threads: int,
    block_bytes: int,
    dtype: torch.dtype | None,
) -> Schedule:
    """Plan the phases.

    Args:
        scope: model and graph.
        layers: how each convolution runs, by its name.
        outputs: names of the values that are returned.
        threads: that work at a time.
        block_bytes: that one block may take.
        dtype: of the layers that are kept between phases; None for the model's.
    """
    phases: list[Phase] = []
    tables: dict[str, Table] = {}
    of_stage: dict[int, int] = {}
    for stage in range(scope.cut.stages):
        own = [layers[c.name] for c in scope.cut.convolutions(stage)]
        to_prepare = [layer for layer in own if layer.prepared]
        if to_prepare:
            for layer in to_prepare:
                for source in layer.prepared.values():
                    kind = ends(layer.conv.edge_types[0])[0]
                    shape = (scope.num_nodes(kind), *source.shape)
                    tables[source.table] = Table(
                        source.table, kind, shape, source.dtype, len(phases), len(phases) + 1
                    )
            phases.append(Phase(stage, to_prepare, True))
        row_wise = [s for s in scope.cut.segments(stage) if isinstance(s.space, Nodes)]
        if own or row_wise:
            of_stage[stage] = len(phases)
            phases.append(Phase(stage, own, False))
    for name, value in scope.cut.values.items():
        if isinstance(value.space, Nodes) and name not in scope.cut.inputs and value.dtype:
            made = of_stage[value.stage]
            read = of_stage.get(value.last_stage, len(phases))
            if read > made:
                shape = (scope.num_nodes(value.space.node_type), *value.shape)
                narrow = dtype if value.dtype.is_floating_point and name not in outputs else None
                tables[name] = Table(
                    name, value.space.node_type, shape, narrow or value.dtype, made, read
                )
    schedule = Schedule(phases, tables, threads, block_bytes, _graph_bytes(scope))
    hubs: list[int] = []
    number = 0
    for i, phase in enumerate(phases):
        for task in _tasks(scope, phase, block_bytes, hubs):
            phase.tasks.append(task._replace(number=number, phase=i))
            number += 1
    if hubs:
        warnings.warn(
            f"{len(hubs)} nodes exceed the memory of a block, as their layers need all of up to "
            f"{max(hubs)} in-edges at once.",
            RuntimeWarning,
            stacklevel=2,
        )
    return schedule


def _tasks(scope: Scope, phase: Phase, block_bytes: int, hubs: list[int]) -> Iterator[Task]:
    """Yield the blocks of a phase; `hubs` gets the degrees of nodes that exceed a block."""
    for node_type in scope.types:
        lists, row_bytes, edge_bytes = [], _row_bytes(scope, phase.stage, node_type), 0
        if phase.prepares:
            own = [x for x in phase.layers if ends(x.conv.edge_types[0])[0] == node_type]
            if not own:
                continue
            row_bytes += sum(_bytes(s) for x in own for s in x.prepared.values())
        else:
            own = [x for x in phase.layers if node_type in x.conv.outputs]
            for layer in own:
                into = [e for e in layer.conv.edge_types if ends(e)[1] == node_type]
                lists += [scope.list_ends(edge_type) for edge_type in into]
                edge_bytes = max(edge_bytes, _edge_bytes(scope, layer))
            spaces = [s.space for s in scope.cut.segments(phase.stage)]
            if not own and Nodes(node_type) not in spaces:
                continue
        max_rows = max(MIN_ROWS, block_bytes // max(1, TEMPORARIES * row_bytes))
        max_edges = REDUCED_EDGES
        if edge_bytes:
            max_edges = min(max_edges, block_bytes // (TEMPORARIES * edge_bytes) or 1)
        for first, last, edges in blocks_of(scope.num_nodes(node_type), lists, max_rows, max_edges):
            if edge_bytes and edges > max_edges:
                hubs.append(edges)
            yield Task(0, 0, node_type, first, last, edges)


def _row_bytes(scope: Scope, stage: int, node_type: Any) -> int:
    """Bytes of a row of everything that a stage reads and makes for a node type."""
    values = [
        v
        for v in scope.cut.values.values()
        if isinstance(v.space, Nodes) and v.space.node_type == node_type and v.dtype
        if v.stage <= stage <= v.last_stage
    ]
    return sum(_bytes(v) for v in values)


def _edge_bytes(scope: Scope, layer: Layer) -> int:
    """Bytes of all that is stored for each edge of a block while a layer runs."""
    if isinstance(layer, Reduced):
        return 0 if layer.unweighted else 32
    values = [scope.cut.values[n] for n in layer.conv.inputs]
    if isinstance(layer, Local):
        return 48 + sum(_bytes(v) for v in values)
    return 64 + sum(_bytes(s) for s in layer.sources.values())


def _bytes(value: Any) -> int:
    return int(torch.Size(value.shape).numel()) * value.dtype.itemsize if value.dtype else 0


def _graph_bytes(scope: Scope) -> int:
    csc = scope.graph.csc
    arrays = [a for a in (csc.indptr, csc.indices, csc.perm) if a is not None]
    return sum(int(a.nbytes) for a in arrays)
