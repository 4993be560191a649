"""The order of work of layer-wise inference: phases of independent tasks, and their memory."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..core.units import size_text
from .blocks import Scope, blocks_of
from .layers import Layer, nbytes
from .spaces import Nodes, ends

TEMPORARIES = 6  # copies of a block's rows and messages that layers hold at a time
MIN_ROWS = 64  # of a block, whatever its rows take
REDUCED_EDGES = 1 << 16  # of a block without messages, so that threads get like shares
REDUCED_BYTES = 5 << 20  # of a block without messages: rows that stay in a core's cache
HELD = 2  # bytes that the allocator holds for one of a block: blocks differ in size
THREAD_BYTES = 16 << 20  # of a thread besides its block: scratch memory of matrix products
RUN_BYTES = 48 << 20  # besides graph, layers and threads


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
    """Tasks that do not depend on each other: a stage, or a round of what is prepared for one."""

    stage: int
    layers: list[Layer]  # of a stage: its convolutions; of a round: those that it prepares for
    round: int | None  # of `Layer.prepare`; None for the stage itself
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
        return self.graph_bytes + self.work_bytes + self.peak(in_file=False)

    @property
    def work_bytes(self) -> int:
        """Memory of all threads and their blocks."""
        return RUN_BYTES + self.threads * (HELD * self.block_bytes + THREAD_BYTES)

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
            f"{size_text(self.graph_bytes)}, blocks {size_text(self.work_bytes)}, "
            f"layers {size_text(self.peak(in_file=False))}; files "
            f"{size_text(self.peak(in_file=True))}"
        ]
        for phase in self.phases:
            what = ", ".join(f"{x.conv.target} ({type(x).__name__.lower()})" for x in phase.layers)
            kind = "compute" if phase.round is None else "prepare"
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
        for table in _prepare(scope, own, phases, stage):
            tables[table.name] = table
        row_wise = [s for s in scope.cut.segments(stage) if isinstance(s.space, Nodes)]
        if own or row_wise:
            of_stage[stage] = len(phases)
            phases.append(Phase(stage, own, None))
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


def _prepare(scope: Scope, layers: list[Layer], phases: list[Phase], stage: int) -> list[Table]:
    """Add the phases that prepare sources for a stage, and return the tables that they make."""
    phase_of: dict[int, int] = {}
    for round_ in range(max((layer.rounds for layer in layers), default=0)):
        own = [layer for layer in layers if layer.prepared_in(round_)]
        if own:
            phase_of[round_] = len(phases)
            phases.append(Phase(stage, own, round_))
    tables = []
    for layer in layers:
        for round_ in range(layer.rounds):
            for source in layer.prepared_in(round_).values():
                last = layer.last_round(source.table)
                read = len(phases) if last == layer.rounds else phase_of[last]
                shape = (scope.num_nodes(layer.source_type), *source.shape)
                made = phase_of[round_]
                tables.append(
                    Table(source.table, layer.source_type, shape, source.dtype, made, read)
                )
    return tables


def _tasks(scope: Scope, phase: Phase, block_bytes: int, hubs: list[int]) -> Iterator[Task]:
    """Yield the blocks of a phase; `hubs` gets the degrees of nodes that exceed a block."""
    for node_type in scope.types:
        own, lists = _layers_and_lists(scope, phase, node_type)
        if own is None:
            continue
        row_bytes = _row_bytes(scope, phase.stage, node_type) + sum(x.row_bytes() for x in own)
        edge_bytes = max((x.edge_bytes(whole=False) for x in own), default=0) if lists else 0
        for_rows = block_bytes if edge_bytes else min(block_bytes, REDUCED_BYTES)
        max_rows = max(MIN_ROWS, for_rows // max(1, TEMPORARIES * row_bytes))
        max_edges = REDUCED_EDGES
        if edge_bytes:
            max_edges = min(max_edges, block_bytes // (TEMPORARIES * edge_bytes) or 1)
        for layer in own:
            if layer.splits:
                layer.max_edges = max_edges
        of_list = max((x.edge_bytes(whole=True) for x in own), default=0)
        for first, last, edges in blocks_of(scope.num_nodes(node_type), lists, max_rows, max_edges):
            if edges > max_edges and edges * TEMPORARIES * of_list > block_bytes:
                hubs.append(edges)
            yield Task(0, 0, node_type, first, last, edges)


def _layers_and_lists(
    scope: Scope, phase: Phase, node_type: Any
) -> tuple[list[Layer] | None, list[Any]]:
    """Return what a phase runs for a node type, and the bounds of the lists that it reads.

    None in place of the layers if the phase computes nothing for the type.
    """
    if phase.round is not None:
        own = [x for x in phase.layers if x.source_type == node_type]
        into = [x.conv.edge_types[0] for x in own] if phase.round > 0 else []
    else:
        own = [x for x in phase.layers if node_type in x.conv.outputs]
        into = [e for x in own for e in x.conv.edge_types if ends(e)[1] == node_type]
        spaces = [s.space for s in scope.cut.segments(phase.stage)]
        if not own and Nodes(node_type) in spaces:
            return [], []
    return own or None, [scope.list_ends(edge_type) for edge_type in into]


def _row_bytes(scope: Scope, stage: int, node_type: Any) -> int:
    """Bytes of a row of everything that a stage reads and makes for a node type."""
    values = [
        v
        for v in scope.cut.values.values()
        if isinstance(v.space, Nodes) and v.space.node_type == node_type and v.dtype
        if v.stage <= stage <= v.last_stage
    ]
    return sum(nbytes(v) for v in values)


def _graph_bytes(scope: Scope) -> int:
    csc = scope.graph.csc
    arrays = [a for a in (csc.indptr, csc.indices, csc.perm) if a is not None]
    return sum(int(a.nbytes) for a in arrays)
