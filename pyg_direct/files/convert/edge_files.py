"""The edges of all types: read into tables, and written in the order of the CSC."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...core.journal import Journal
from ...graph.attributes import weights_of
from ...graph.coo_to_csc import narrow
from ..arrays import ArrayWriter, Written, dtype_name
from ..header import ArrayFile, EdgeGroup
from ..progress import Advance
from .edge_table import EdgeTable, EdgeTableLayout
from .node_files import check_range
from .rows import FileRows
from .spec import EdgeSpec
from .workplace import ENDS, Workplace, writer_behind

Ints = npt.NDArray[Any]

STEP_EDGES = 1 << 20  # that are written at a time
SORTED = "sorted"


@dataclass(frozen=True)
class EdgeInput:
    """The edges of one type.

    Args:
        spec: what to do with them.
        ends: [E, 2] sources and destinations.
        attributes: by name, each [E, ...].
        files: names of the files of the attributes.
        layout: of the table that they are sorted in.
        piece_edges: how many of them are read at a time.
        weight_attr: which attribute must be valid weights, if it is there.
    """

    spec: EdgeSpec
    ends: FileRows
    attributes: dict[str, FileRows]
    files: dict[str, str]
    layout: EdgeTableLayout
    piece_edges: int
    weight_attr: str | None = None

    @property
    def given(self) -> int:
        """The number of edges in the file, or an estimate."""
        return self.ends.about

    @property
    def most(self) -> int:
        """The largest number of edges of the graph, if `given` is right."""
        loops = self.layout.num_dst if self.spec.self_loops == "add" else 0
        return self.given * (2 if self.spec.symmetrise else 1) + loops

    def pieces(self, first: int) -> Iterator[tuple[torch.Tensor, ...]]:
        """Yield sources, destinations and attributes, from edge `first` on.

        Raises:
            ValueError: ids out of range, another number of entries of an attribute, or weights
                that cannot be such.
        """
        parts = [self.ends, *self.attributes.values()]
        at = first
        for found in zip_longest(*(part.read(first, self.piece_edges) for part in parts)):
            lengths = [0 if rows is None else len(rows) for rows in found]
            for part, length in zip(parts, lengths, strict=True):
                if length != lengths[0]:
                    shorter, longer = sorted((at + lengths[0], at + length))
                    raise ValueError(
                        f"{part.name} must have as many entries as {self.ends.name} has edges, but "
                        f"one has {shorter}, and the other at least {longer}."
                    )
            sizes = (self.layout.num_src, self.layout.num_dst)
            ids = [
                check_range(
                    found[0][:, i].contiguous(),
                    sizes[i],
                    f"{name}s in {parts[0].name}",
                    at,
                    self.ends.first_ids[i],
                )
                for i, name in enumerate(("source", "destination"))
            ]
            for name, rows in zip(self.attributes, found[1:], strict=True):
                if name == self.weight_attr:
                    weights_of(rows, name, self.attributes[name].name, at)
            yield *ids, *found[1:]
            at += lengths[0]


class WrittenEdges(NamedTuple):
    """Entries in the header."""

    groups: list[EdgeGroup]
    indices: ArrayFile
    times: ArrayFile | None  # of all edges, where they have times


class EdgeFiles:
    """Writes the edges of all types.

    Args:
        inputs: one an edge type.
        workplace: where.
        journal: of the finished steps.
        names: of the files of the sources and, if edges have times, of those in their order.
        source_times: of each edge type, int64 [num_src] if edges are sorted by those.
        advance: is called with numbers of edges that are read, and that are written.
    """

    def __init__(
        self,
        inputs: Sequence[EdgeInput],
        workplace: Workplace,
        journal: Journal,
        names: tuple[str, str | None],
        source_times: Sequence[Ints | None],
        advance: Advance,
    ) -> None:
        self._inputs, self._workplace, self._journal = inputs, workplace, journal
        self._indices, self._times = names
        self._source_times, self._advance = source_times, advance
        sources = [edges.layout.num_src for edges in inputs]
        self._id_dtype = narrow(max(sources)) if len(inputs) == 1 else None

    def write(self, num_nodes: int) -> WrittenEdges:
        """Write all remaining files; `num_nodes` is the largest of any type."""
        id_dtype = np.dtype(self._id_dtype or narrow(num_nodes)).name
        state = self._journal.get(SORTED) or {"edges": [], "partition": 0, "files": {}}
        for done, edges in enumerate(self._inputs[: len(state["edges"])]):
            self._drop_table(done)
            self._advance(edges.given + state["edges"][done])
        for number in range(len(state["edges"]), len(self._inputs)):
            state = self._write_type(number, id_dtype, state)
            self._drop_table(number)
        files = {name: Written(*found) for name, found in state["files"].items()}
        groups = []
        for edges, count in zip(self._inputs, state["edges"], strict=True):
            entries = {}
            for name, rows in edges.attributes.items():
                shape = (files[edges.files[name]].rows, *rows.row_shape)
                crc32 = files[edges.files[name]].crc32
                entries[name] = ArrayFile(edges.files[name], dtype_name(rows.dtype), shape, crc32)
            groups.append(EdgeGroup(edges.spec.type, count, entries))

        def entry(name: str, dtype: str) -> ArrayFile:
            return ArrayFile(name, dtype, (files[name].rows,), files[name].crc32)

        times = None if self._times is None else entry(self._times, "int64")
        return WrittenEdges(groups, entry(self._indices, id_dtype), times)

    def write_indptr(self, name: str, num_edges: int) -> ArrayFile:
        """Write where the neighbour lists begin and end, in the narrowest dtype."""
        dtype, path = np.dtype(narrow(num_edges + 1)), self._workplace.graph / name
        path.unlink(missing_ok=True)
        with (
            ArrayWriter(path, dtype.name) as writer,
            open(self._workplace.part / ENDS, "rb") as file,
        ):
            while len(ends := np.fromfile(file, np.int64, STEP_EDGES)) > 0:
                writer.write(ends.astype(dtype))
            return writer.close()

    def _write_type(self, number: int, id_dtype: str, state: dict[str, Any]) -> dict[str, Any]:
        edges, files = self._inputs[number], state["files"]

        def writer(
            name: str, dtype: str, row_shape: tuple[int, ...] = (), folder: Path | None = None
        ) -> ArrayWriter:
            path = (folder or self._workplace.graph) / name
            written = Written(*files.get(name, (0, 0)))
            return stack.enter_context(writer_behind(path, dtype, row_shape, written))

        with ExitStack() as stack:
            table = EdgeTable(self._table_path(number), edges.layout, self._source_times[number])
            stack.callback(table.close)
            self._ingest(table, number)
            cuts = self._cuts(table, number)
            writers = {
                self._indices: writer(self._indices, id_dtype),
                ENDS: writer(ENDS, "int64", folder=self._workplace.part),
            }
            if self._times is not None:
                writers[self._times] = writer(self._times, "int64")
            for column in edges.layout.columns:
                name = edges.files[column.name]
                writers[name] = writer(name, dtype_name(column.dtype), column.row_shape)
            base = sum(state["edges"])
            self._advance(writers[self._indices].num_rows - base)
            for i, (first, last) in enumerate(pairwise(cuts)):
                if i < state["partition"]:
                    continue
                if i == 0:
                    writers[ENDS].write(np.array([base], np.int64))
                self._write_partition(table, edges, (first, last), writers)
                files = {**files, **{name: writers[name].sync() for name in writers}}
                state = {**state, "partition": i + 1, "files": files}
                if i + 2 == len(cuts):
                    count = writers[self._indices].num_rows - base
                    state = {**state, "edges": [*state["edges"], count], "partition": 0}
                self._journal.record(SORTED, state)
        return state

    def _write_partition(
        self,
        table: EdgeTable,
        edges: EdgeInput,
        bounds: tuple[int, int],
        writers: dict[str, ArrayWriter],
    ) -> None:
        """Write the edges to the destinations [first, last)."""
        first, last = bounds
        degree = np.zeros(last - first, np.int64)
        end = writers[self._indices].num_rows
        for dst, src, attributes in table.sorted_edges(first, last, STEP_EDGES):
            low, high = int(dst[0]), int(dst[-1]) + 1
            degree[low - first : high - first] += np.bincount(dst - low, minlength=high - low)
            writers[self._indices].write(src.astype(writers[self._indices].dtype, copy=False))
            for column, rows in zip(edges.layout.columns, attributes, strict=True):
                writers[edges.files[column.name]].write(rows)
            if self._times is not None:
                at = edges.layout.time_column
                time = np.zeros(len(src), np.int64) if at is None else attributes[at]
                writers[self._times].write(torch.as_tensor(time).to(torch.int64))
            self._advance(len(src))
        writers[ENDS].write(end + np.cumsum(degree))

    def _ingest(self, table: EdgeTable, number: int) -> None:
        """Insert the edges that the table lacks."""
        edges, step = self._inputs[number], f"ingested/{number}"
        first = table.ingested()
        self._advance(first)
        if self._journal.get(step) is not None:
            return
        for src, dst, *attributes in edges.pieces(first):
            table.ingest(first, src, dst, attributes)
            first += len(src)
            self._advance(len(src))
        self._journal.record(step, first)

    def _cuts(self, table: EdgeTable, number: int) -> list[int]:
        step = f"cuts/{number}"
        cuts: list[int] | None = self._journal.get(step)
        if cuts is None:
            cuts = table.partitions()
            self._journal.record(step, cuts)
        return cuts

    def _table_path(self, number: int) -> Path:
        return self._workplace.part / f"edges_{number}.duckdb"

    def _drop_table(self, number: int) -> None:
        for path in self._workplace.part.glob(f"{self._table_path(number).name}*"):
            path.unlink()
