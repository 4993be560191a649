"""Times of nodes, from which the neighbour lists of a graph in files are sorted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ...core.journal import Journal
from ...graph.attributes import check_times
from ..arrays import ArrayWriter, map_array
from ..directory import FileNames
from ..header import ArrayFile
from .rows import FileRows
from .spec import GraphSpec
from .workplace import Workplace

Ints = npt.NDArray[Any]

STEP_ROWS = 1 << 20


@dataclass(frozen=True)
class TimesToSort:
    """What neighbour lists are to be sorted by.

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
