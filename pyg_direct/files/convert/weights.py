"""Tables of weighted draws and times of nodes, for edges that are in the order of the CSC."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.journal import Journal
from ...graph.attributes import check_times
from ...graph.weights import fill_alias_tables, weights_and_sums
from ..arrays import ArrayWriter, Written, map_array
from ..directory import FileNames
from ..header import ArrayFile, EdgeGroup, WeightsFile
from ..progress import Advance
from .rows import FileRows
from .spec import GraphSpec
from .workplace import Workplace, writer_behind

STEP_EDGES = 1 << 20  # whose tables are made at a time, and whole lists of them
STEPS_A_RECORD = 8  # made before they are put on disk for certain


@dataclass(frozen=True)
class WeightTables:
    """The files of the tables.

    Args:
        attribute: the name of the weights.
        files: names of those of the weights, their running sums and the alias tables.
        aliased: of each edge type, whether all of a list may be drawn, for which there is a table.
    """

    attribute: str
    files: tuple[str, str, str]
    aliased: Sequence[bool]

    @staticmethod
    def new_files(names: FileNames) -> tuple[str, str, str]:
        """Return names of the files."""
        return names.new("weight"), names.new("cumulative"), names.new("alias")

    @property
    def _dtypes(self) -> dict[str, str]:
        kept = 3 if any(self.aliased) else 2
        return dict(list(zip(self.files, ("float64", "float64", "int64"), strict=True))[:kept])

    @property
    def edge_bytes(self) -> int:
        """Bytes of an edge."""
        return 8 * len(self._dtypes)

    def write(
        self,
        edges: Sequence[EdgeGroup],
        pointers: Sequence[Tensor],
        workplace: Workplace,
        journal: Journal,
        advance: Advance,
    ) -> WeightsFile:
        """Write the tables, or the rest of them; return their entry in the header.

        In memory are some ten megabytes, and 40 bytes for each edge of the longest list.

        Args:
            edges: of all types, as they were written; their weights are known to be valid.
            pointers: where the lists of each type begin and end.
            workplace: where.
            journal: of the finished steps.
            advance: is called with numbers of edges whose tables are made.
        """
        state = journal.get(self.files[0]) or {"positive": True, "files": {}}
        with ExitStack() as stack:
            writers = {
                name: stack.enter_context(
                    writer_behind(
                        workplace.graph / name,
                        dtype,
                        (),
                        Written(*state["files"].get(name, (0, 0))),
                    )
                )
                for name, dtype in self._dtypes.items()
            }
            positive, steps = state["positive"], 0
            weight_writer = writers[self.files[0]]
            advance(weight_writer.num_rows)

            def record() -> None:
                found = {name: writer.sync() for name, writer in writers.items()}
                journal.record(self.files[0], {"positive": positive, "files": found})

            base = 0
            for group, ptr, aliased in zip(edges, pointers, self.aliased, strict=True):
                given = group.attributes.get(self.attribute)
                values = None if given is None else map_array(workplace.graph, given)
                for lists in _ranges(ptr, max(base, weight_writer.num_rows)):
                    weight = _weights(values, int(lists[0]) - base, int(lists[-1]) - base)
                    positive = positive and (values is None or bool((weight > 0).all()))
                    tables = _tables(lists - lists[0], weight, aliased)
                    for writer, table in zip(writers.values(), tables, strict=False):
                        writer.write(table)
                    advance(len(weight))
                    steps += 1
                    if steps % STEPS_A_RECORD == 0:
                        record()
                base += group.num_edges
            record()
            found = [writer.close() for writer in writers.values()]
        return self._entry(found, edges, positive)

    def _entry(
        self, found: list[ArrayFile], edges: Sequence[EdgeGroup], positive: bool
    ) -> WeightsFile:
        return WeightsFile(
            attribute=self.attribute,
            weight=found[0],
            cumulative=found[1],
            alias=found[2] if len(found) == 3 else None,
            relations=tuple(self.attribute in group.attributes for group in edges),
            positive=positive,
        )


def _ranges(ptr: Tensor, done: int) -> Iterator[npt.NDArray[np.int64]]:
    """Yield the bounds int64 [n + 1] of n lists at a time, from position `done` on."""
    num_lists = len(ptr) - 1
    first = int(torch.searchsorted(ptr, torch.tensor(done, dtype=ptr.dtype), right=True)) - 1
    while first < num_lists:
        ends = ptr[first : first + STEP_EDGES + 1].to(torch.int64)
        count = int(torch.searchsorted(ends, ends[0] + STEP_EDGES, right=True)) - 1
        count = max(1, min(count, len(ends) - 1))
        yield ends[: count + 1].numpy()
        first += count


def _weights(values: Tensor | None, first: int, last: int) -> npt.NDArray[np.float64]:
    if values is None:
        return np.zeros(last - first)
    return values[first:last].to(torch.float64).reshape(-1).numpy()


def _tables(
    lists: npt.NDArray[np.int64], weight: npt.NDArray[np.float64], aliased: bool
) -> tuple[npt.NDArray[Any], ...]:
    weight, cumulative = weights_and_sums(lists, weight)
    alias = np.zeros(len(weight), np.int64)
    if aliased:
        fill_alias_tables(lists, weight, cumulative, alias)
    return weight, cumulative, alias


Ints = npt.NDArray[Any]

STEP_ROWS = 1 << 20


@dataclass(frozen=True)
class TimesToSort:
    """The times that neighbour lists are sorted by.

    Args:
        attribute: its name.
        of_nodes: whether nodes have it, or edges.
        file: name of the file of all times, in the order of the types; of edges in that of the CSC.
    """

    attribute: str
    of_nodes: bool
    file: str


def times_of(spec: GraphSpec, names: FileNames) -> TimesToSort | None:
    """Return what a conversion sorts by; None without times."""
    if spec.time_attr is None:
        return None
    of_nodes = any(spec.time_attr in node.attributes for node in spec.nodes)
    return TimesToSort(spec.time_attr, of_nodes, names.new("sorted_times"))


def check_time_rows(rows: Mapping[str, FileRows], name: str | None) -> None:
    """Raise a ValueError if the attribute `name` is there, but can hold no times."""
    if name is not None and name in rows:
        found = rows[name]
        check_times(name, found.name, found.dtype, (found.length or "N", *found.row_shape))


class NodeTimes:
    """The times of all nodes: a file of the graph, which edges are looked up in.

    Args:
        times: how it is called.
        rows: of the node types in their order; None for one without times, which gets zeros.
        counts: numbers of nodes.
    """

    def __init__(
        self, times: TimesToSort, rows: Sequence[FileRows | None], counts: Sequence[int]
    ) -> None:
        self._times, self._rows, self._counts = times, rows, counts

    def write(self, workplace: Workplace, journal: Journal) -> ArrayFile:
        """Write the file, unless it is known to be there; return its entry in the header.

        Raises:
            ValueError: another number of times than of nodes.
            OSError: it cannot be read or written.
        """
        path = workplace.graph / self._times.file
        known = journal.get(self._times.file)
        if known is not None:
            return self._entry(known)
        path.unlink(missing_ok=True)
        with ArrayWriter(path, "int64") as writer:
            for rows, count in zip(self._rows, self._counts, strict=True):
                first = writer.num_rows
                if rows is None:
                    for at in range(0, count, STEP_ROWS):
                        writer.write(np.zeros(min(STEP_ROWS, count - at), np.int64))
                    continue
                for piece in rows.read(0, STEP_ROWS):
                    writer.write(piece.to(torch.int64))
                if writer.num_rows - first != count:
                    raise ValueError(
                        f"{rows.name} has {writer.num_rows - first} entries, but there are {count} "
                        f"nodes."
                    )
            entry = writer.close()
        journal.record(self._times.file, entry.crc32)
        return entry

    def of_type(self, number: int, workplace: Workplace) -> Ints | None:
        """Return the times of a node type, mapped to the file; None if it has none."""
        if self._rows[number] is None:
            return None
        first = sum(self._counts[:number])
        times = map_array(workplace.graph, self._entry(0)).numpy()
        return times[first : first + self._counts[number]]

    def _entry(self, crc32: int) -> ArrayFile:
        return ArrayFile(self._times.file, "int64", (sum(self._counts),), crc32)
