"""Writing the parts of a graph: each array is read once, in order, and split."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.journal import LOCK, WorkFolder, WorkKind, sync_directory
from ..core.types import Csc
from ..graph.coo_to_csc import narrow
from .arrays import ArrayWriter, dtype_name, write_array
from .directory import ARRAY_NAME, FileNames, publish
from .header import (
    HEADER,
    ArrayFile,
    EdgeGroup,
    Header,
    NodeGroup,
    array_of,
    header_checksum,
    write_header,
)
from .parts import EDGE_IDS, MANIFEST, RowFormat, all_type, own_type, part_folder

STEP_BYTES = 64 << 20  # of rows that are in memory at a time
STEP_EDGES = 4 << 20  # about 100 bytes each are in memory at a time
ARRAYS = rf"{ARRAY_NAME.pattern}"
PARTITION = WorkKind(
    "partition",
    f"{MANIFEST}.unfinished",
    rf"{re.escape(MANIFEST)}|{ARRAYS}|part_[0-9]{{3,}}(/({ARRAYS}|{re.escape(HEADER)}))?",
    "graph and arguments",
)

Ints = npt.NDArray[Any]


class PartitionFolder:
    """``.OUT.unfinished``, where the parts of a graph are written until all are there.

    As a context, it is held for this process only. An error that arguments are to blame for ends
    the work for good; what else ends it, such as a full disk, leaves what is written.

    Args:
        target: where the partition is to be.
        asked: what decides all that is written, as JSON holds it.
        parts: how many.

    Raises:
        ValueError: the folder has an unfinished partition of something else, or a damaged journal.
        FileExistsError: the folder holds what no partition wrote.
        BlockingIOError: another process is at work there.
    """

    def __init__(self, target: Path, asked: Any, parts: int) -> None:
        self._target, self._asked = target, json.loads(json.dumps(asked))
        self.folder = target.parent / f".{target.name}.unfinished"
        self.folders = [part_folder(self.folder, p) for p in range(parts)]
        self._work = WorkFolder(self.folder, PARTITION)
        self._names = FileNames()

    def __enter__(self) -> PartitionFolder:
        self._work.hold()
        try:
            self._journal = self._work.journal(self._asked)
            for part in self.folders:
                part.mkdir(exist_ok=True)
        except BaseException:
            self._work.release()
            raise
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        try:
            if isinstance(error, (ValueError, TypeError, ImportError)):
                self._work.remove()  # there is nothing to resume
        finally:
            self._work.release()

    def files(self, label: str, write: Callable[[str], Sequence[ArrayFile]]) -> list[ArrayFile]:
        """Return the files of a step, which are written unless an earlier run did.

        Args:
            label: the same in each run, and of no other step. Steps come in the same order.
            write: called with a file name to write to, and perhaps names that begin with it.
        """
        name = self._names.new(label)
        if self._journal.get(label) is None:
            places = [self.folder, *self.folders]
            for folder in places:
                for left in folder.glob(f"{name.removesuffix('.bin')}*"):
                    left.unlink()
            entries = [asdict(entry) for entry in write(name)]
            for folder in places:
                sync_directory(folder)
            self._journal.record(label, entries)
        return [array_of(entry) for entry in self._journal.get(label)]

    def value(self, label: str, make: Callable[[], Any]) -> Any:
        """Return a value for JSON, computed unless an earlier run did."""
        if self._journal.get(label) is None:
            self._journal.record(label, make())
        return self._journal.get(label)

    def publish(self) -> None:
        """Move the directory to its place: everything is written."""
        for part in self.folders:
            sync_directory(part)
        publish(self.folder, self._target, overwrite=False)
        for name in (PARTITION.state, LOCK):
            (self._target / name).unlink(missing_ok=True)
        sync_directory(self._target)


def write_rows(journal: PartitionFolder, label: str, value: Tensor, part: Ints) -> list[ArrayFile]:
    """Write the rows of an attribute [N, ...] to the parts that own them, by ascending id.

    Args:
        journal: of the run.
        label: of the attribute.
        value: in memory or mapped to a file.
        part: int16 [N].
    """

    def write(name: str) -> list[ArrayFile]:
        dtype, shape = dtype_name(value.dtype), tuple(value.shape[1:])
        step = max(1, STEP_BYTES // max(1, value[:1].nbytes))
        with ExitStack() as stack:
            writers = _writers(stack, journal, name, [dtype] * len(journal.folders), shape)
            for first in range(0, len(part), step):
                rows, owners = value[first : first + step].detach(), part[first : first + step]
                for p, writer in enumerate(writers):
                    writer.write(rows[torch.from_numpy(np.flatnonzero(owners == p))])
            return [writer.close() for writer in writers]

    return journal.files(label, write)


def _writers(
    stack: ExitStack,
    journal: PartitionFolder,
    name: str,
    dtypes: Sequence[str],
    shape: tuple[int, ...] = (),
) -> list[ArrayWriter]:
    """Open a file of that name in each part, until `stack` closes them."""
    places = zip(journal.folders, dtypes, strict=True)
    return [stack.enter_context(ArrayWriter(f / name, dtype, shape)) for f, dtype in places]


def write_whole(journal: PartitionFolder, label: str, value: Ints | Tensor) -> ArrayFile:
    """Write an array that all ranks read."""
    return journal.files(label, lambda name: [write_array(journal.folder / name, value)])[0]


def rows_in_parts(part: Ints, parts: int) -> Ints:
    """Return the row of each node in its part: the number of nodes before it there.

    Example: the parts 1, 0, 1, 1 give 0, 0, 1, 2.
    """
    row = np.empty(len(part), narrow(len(part)))
    for p in range(parts):
        own = np.flatnonzero(part == p)
        row[own] = np.arange(len(own))
    return row


class EdgeWriter:
    """Writes the lists of all relations to the parts that own their destinations.

    Args:
        csc: the whole graph, verified.
        part: T x int16 [N_t].
        attributes: R x the attributes of the edges, by name.
    """

    def __init__(self, csc: Csc, part: Sequence[Ints], attributes: Sequence[Any]) -> None:
        self._csc, self._part, self._attributes = csc, part, attributes

    def write(self, journal: PartitionFolder) -> list[tuple[ArrayFile, ArrayFile, list[Any]]]:
        """Return of each part indptr, indices, and of each relation its attributes by name."""
        parts, csc = len(journal.folders), self._csc
        counts = np.stack([self._edges_of(r, parts) for r in range(csc.num_relations)])
        dtypes = [narrow(int(total) + 1) for total in counts.sum(0)]

        def topology(name: str) -> list[ArrayFile]:
            stem, of_lists = name.removesuffix(".bin"), [csc.indices.dtype.name] * parts
            of_pointers = [np.dtype(dtype).name for dtype in dtypes]
            with ExitStack() as stack:
                pointers = _writers(stack, journal, f"{stem}_indptr.bin", of_pointers)
                lists = _writers(stack, journal, f"{stem}_indices.bin", of_lists)
                for r in range(csc.num_relations):
                    ends = counts[:r].sum(0)
                    for p, writer in enumerate(pointers):
                        writer.write(ends[p : p + 1].astype(dtypes[p]))
                    for p, degrees, position in self._lists(r, parts):
                        lists[p].write(csc.indices[position])
                        pointers[p].write((ends[p] + np.cumsum(degrees)).astype(dtypes[p]))
                        ends[p] += len(position)
                return [writer.close() for writer in [*pointers, *lists]]

        found = journal.files("topology", topology)
        columns = [self._write_columns(journal, r, parts) for r in range(csc.num_relations)]
        return [
            (found[p], found[parts + p], [
                {name: files[p] for name, files in of_relation.items()} for of_relation in columns
            ])
            for p in range(parts)
        ]  # fmt: skip

    def _edges_of(self, relation: int, parts: int) -> Ints:
        """Return the number of edges of a relation in each part, int64 [K]."""
        count = np.zeros(parts, np.int64)
        for p, _, position in self._lists(relation, parts):
            count[p] += len(position)
        return count

    def _write_columns(
        self, journal: PartitionFolder, r: int, parts: int
    ) -> dict[str, list[ArrayFile]]:
        """Write the ids of the edges of a relation, and their attributes."""
        csc, (first, last) = self._csc, self._csc.edge_base[r : r + 2].tolist()
        id_dtype = narrow(last - first)

        def columns(position: Ints) -> Ints:
            found: Ints = position - first if csc.perm is None else csc.perm[position]
            return found

        def write(value: Tensor | None, name: str) -> list[ArrayFile]:
            dtype = np.dtype(id_dtype).name if value is None else dtype_name(value.dtype)
            shape = () if value is None else tuple(value.shape[1:])
            with ExitStack() as stack:
                writers = _writers(stack, journal, name, [dtype] * parts, shape)
                for p, _, position in self._lists(r, parts):
                    edge = columns(position)
                    if value is None:
                        writers[p].write(edge.astype(id_dtype))
                    else:
                        writers[p].write(value.detach()[torch.from_numpy(edge.astype(np.int64))])
                return [writer.close() for writer in writers]

        return {
            name: journal.files(f"edge {r} {name}", partial(write, value))
            for name, value in {EDGE_IDS: None, **self._attributes[r]}.items()
        }

    def _lists(self, relation: int, parts: int) -> Iterator[tuple[int, Ints, Ints]]:
        """Yield some lists at a time of each part: part, degrees, positions of the edges."""
        csc, dst = self._csc, int(self._csc.dst_type[relation])
        base, count = int(csc.indptr_base[relation]), int(csc.num_nodes[dst])
        first = 0
        while first < count:
            limit = int(csc.indptr[base + first]) + STEP_EDGES
            last = int(np.searchsorted(csc.indptr[base : base + count + 1], limit, "right")) - 1
            last = min(count, max(last, first + 1), first + STEP_EDGES)
            pointers = csc.indptr[base + first : base + last + 1].astype(np.int64)
            owners = self._part[dst][first:last]
            for p in range(parts):
                node = np.flatnonzero(owners == p)
                start, degree = pointers[node], pointers[node + 1] - pointers[node]
                offset = np.repeat(start - (np.cumsum(degree) - degree), degree)
                yield p, degree, offset + np.arange(len(offset))
            first = last


def write_headers(
    journal: PartitionFolder,
    types: tuple[Sequence[Any], Sequence[Any]],
    part: Sequence[Ints],
    parted: Sequence[dict[str, list[ArrayFile]]],
    edges: Sequence[tuple[ArrayFile, ArrayFile, list[Any]]],
) -> list[int]:
    """Write the header of each part, and return their checksums.

    Args:
        journal: of the run.
        types: the node and edge types of the whole graph.
        part: T x int16 [N_t].
        parted: T x the files of the attributes of its nodes in each part, by name.
        edges: from `EdgeWriter.write`.
    """
    node_types, edge_types = types
    checksums = []
    for p, (folder, (indptr, indices, columns)) in enumerate(
        zip(journal.folders, edges, strict=True)
    ):
        own = [
            NodeGroup(
                own_type(kind), int((part[t] == p).sum()), True,
                {name: files[p] for name, files in parted[t].items()},
            )
            for t, kind in enumerate(node_types)
        ]  # fmt: skip
        whole = [NodeGroup(all_type(kind), len(part[t]), True) for t, kind in enumerate(node_types)]
        groups = []
        for kind, of_relation in zip(edge_types, columns, strict=True):
            src, name, dst = (None, "to", None) if kind is None else kind
            ends = (all_type(src), name, own_type(dst))
            groups.append(EdgeGroup(ends, of_relation[EDGE_IDS].shape[0], of_relation))
        header = Header([*own, *whole], groups, indptr, indices)
        write_header(header, folder)
        checksums.append(header_checksum(header))
    return checksums


def described(files: dict[str, list[ArrayFile]]) -> dict[str, RowFormat]:
    """Return the formats of parted attributes."""
    return {
        name: RowFormat(entries[0].dtype, entries[0].shape[1:])
        for name, entries in files.items()
        if name != EDGE_IDS
    }
