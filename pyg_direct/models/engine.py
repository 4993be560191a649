"""Runs a schedule: blocks in producer threads, rows into tables, marks for finished blocks."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..loading.prefetcher import Prefetcher
from .blocks import Block, Scope
from .schedule import Phase, Schedule, Table, Task
from .spaces import Nodes
from .store import Store

logger = logging.getLogger("pyg_direct")

AHEAD = 2  # blocks under way for each thread


def run(
    scope: Scope, schedule: Schedule, store: Store, advance: Callable[[int], None] | None = None
) -> None:
    """Compute all tables of a schedule; those that are returned are left in ``scope.tables``.

    Args:
        scope: model and graph, with the inputs as tables.
        schedule: what to compute.
        store: where tables lie, and which tasks are finished.
        advance: told after each block how many edges and rows it had.
    """
    threads = torch.get_num_threads()

    def start(number: int) -> None:
        torch.set_num_threads(1)  # blocks are what runs in parallel

    work = _Worker(scope, schedule)
    prefetcher = Prefetcher(work.do, schedule.threads, AHEAD * schedule.threads, start)
    try:
        for i, phase in enumerate(schedule.phases):
            left = [t for t in phase.tasks if not store.finished[t.number]]
            _open_tables(scope, schedule, store, i)
            if advance is not None and len(left) < len(phase.tasks):
                done = set(phase.tasks) - set(left)
                advance(sum(t.edges + t.last - t.first for t in done))
            if left:
                _measure_degrees(scope, phase)
                begin = time.perf_counter()
                prefetcher.begin(iter(left))
                for task in _results(prefetcher):
                    store.finished[task.number] = 1
                    if advance is not None:
                        advance(task.edges + task.last - task.first)
                logger.debug("phase %d: %.2f s", i, time.perf_counter() - begin)
            _close_tables(scope, schedule, store, i)
    finally:
        prefetcher.close()
        torch.set_num_threads(threads)


def _results(prefetcher: Prefetcher[Task, Task]) -> Iterator[Task]:
    while True:
        try:
            yield next(prefetcher)
        except StopIteration:
            return


class _Worker:
    """What producer threads do with a task."""

    def __init__(self, scope: Scope, schedule: Schedule) -> None:
        self._scope, self._schedule = scope, schedule

    def do(self, task: Task) -> Task:
        """Compute a block and write its rows."""
        with torch.inference_mode():
            phase = self._schedule.phases[task.phase]
            block = Block(self._scope, task.node_type, task.first, task.last)
            found = prepared(block, phase) if phase.round is not None else computed(block, phase)
            for name, rows in found.items():
                table = self._schedule.tables.get(name)
                if table is not None:
                    self._scope.tables[name][task.first : task.last].copy_(rows)
        return task


def prepared(block: Block, phase: Phase) -> dict[str, Tensor]:
    """Return the block's rows of what is prepared for the layers of a phase."""
    assert phase.round is not None
    found: dict[str, Tensor] = {}
    for layer in phase.layers:
        if block.node_type == layer.source_type:
            found.update(layer.prepare(block, phase.round))
    return found


def computed(block: Block, phase: Phase) -> dict[str, Tensor]:
    """Return the block's rows of the values of a stage."""
    found: dict[str, Any] = {}
    for layer in phase.layers:
        if block.node_type in layer.conv.outputs:
            found[layer.conv.outputs[block.node_type]] = layer.run(block)
    for segment in block.scope.cut.segments(phase.stage):
        if segment.space != Nodes(block.node_type):
            continue
        given = {}
        for name in segment.inputs:
            given[name] = found[name] if name in found else block.own(name)
            if name in segment.mutates and name not in found:
                given[name] = given[name].clone()
        found.update(segment.run(given))
    return found


def _measure_degrees(scope: Scope, phase: Phase) -> None:
    """Measure the degrees of the whole graph for layers that normalise by them."""
    for layer in phase.layers:
        norm = layer.norm
        if norm is None or phase.round == 0 or norm.key in scope.degrees:
            continue
        blocks = (
            Block(scope, t.node_type, t.first, t.last)
            for t in phase.tasks
            if t.node_type == layer.source_type
        )
        scope.degrees[norm.key] = norm.measured(blocks)


def _open_tables(scope: Scope, schedule: Schedule, store: Store, phase: int) -> None:
    """Make the tables of a phase, or open those of an earlier run that are still read."""
    made = [t for t in schedule.tables.values() if t.made == phase]
    marks = store.finished.tolist()
    finished = [[marks[task.number] for task in p.tasks] for p in schedule.phases]
    for table in made:
        is_read = table.read >= len(finished) or not all(map(all, finished[phase : table.read + 1]))
        if is_read or store.path(table.name).exists():
            scope.tables[table.name] = _table(store, table, begun=any(finished[phase]))
    scope.backend.memory.place_tables(
        (t.name, scope.tables[t.name]) for t in made if t.name in scope.tables
    )


def _table(store: Store, table: Table, begun: bool) -> Tensor:
    if table.in_file:
        return store.in_file(table.name, table.shape, table.dtype, begun)
    return store.in_memory(table.shape, table.dtype)


def _close_tables(scope: Scope, schedule: Schedule, store: Store, phase: int) -> None:
    """Let go of what no later phase reads."""
    for table in schedule.tables.values():
        if table.read == phase and scope.tables.pop(table.name, None) is not None and table.in_file:
            store.remove(table.name)
