"""Writing the parts of a graph: each array of it is read once, in order, and split on the way."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.types import Csc
from ..files.arrays import ArrayWriter, dtype_name, write_array
from ..files.directory import FileNames
from ..files.header import (
    ArrayFile,
    EdgeGroup,
    Header,
    NodeGroup,
    array_of,
    header_checksum,
    write_header,
)
from ..files.parts import EDGE_IDS, MANIFEST, RowFormat, all_type, own_type, part_folder
from ..graph.coo_to_csc import narrow

STEP_BYTES = 64 << 20  # of rows that are in memory at a time
STEP_EDGES = 4 << 20  # about 100 bytes each are in memory at a time
DONE = f"{MANIFEST}.unfinished"

Ints = npt.NDArray[Any]


class PartitionJournal:
    """Which arrays are written, so that an interrupted run goes on behind them.

    Args:
        folder: the unfinished directory; made if it is not there.
        asked: what decides all that is written, as JSON holds it. Another one begins anew, in an
            empty directory.
        parts: how many.
    """

    def __init__(self, folder: Path, asked: Any, parts: int) -> None:
        self.folder, self._asked = folder, json.loads(json.dumps(asked))
        self.folders = [part_folder(folder, p) for p in range(parts)]
        self._done: dict[str, list[Any]] = {}
        if (folder / DONE).exists():
            kept = json.loads((folder / DONE).read_text())
            if kept["asked"] == self._asked:
                self._done = kept["done"]
            else:
                shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for part in self.folders:
            part.mkdir(exist_ok=True)
        self._names = FileNames()

    def files(self, label: str, write: Callable[[str], Sequence[ArrayFile]]) -> list[ArrayFile]:
        """Return the files of a step, which are written unless an earlier run did.

        Args:
            label: the same in each run, and of no other step. Steps come in the same order.
            write: called with a file name to write to, and perhaps names that begin with it.
        """
        name = self._names.new(label)
        if label not in self._done:
            for folder in [self.folder, *self.folders]:
                for left in folder.glob(f"{name.removesuffix('.bin')}*"):
                    left.unlink()
            self._done[label] = [asdict(entry) for entry in write(name)]
            self._keep()
        return [array_of(entry) for entry in self._done[label]]

    def value(self, label: str, make: Callable[[], Any]) -> Any:
        """Return a value that JSON holds, which is made unless an earlier run did."""
        if label not in self._done:
            self._done[label] = make()
            self._keep()
        return self._done[label]

    def _keep(self) -> None:
        new = self.folder / f"{DONE}.new"
        new.write_text(json.dumps({"asked": self._asked, "done": self._done}))
        os.replace(new, self.folder / DONE)

    def discard_if_empty(self) -> None:
        """Remove the directory, unless a step of it is done."""
        if not self._done:
            shutil.rmtree(self.folder)

    def close(self) -> None:
        """End: everything is written."""
        (self.folder / DONE).unlink()


def write_rows(journal: PartitionJournal, label: str, value: Tensor, part: Ints) -> list[ArrayFile]:
    """Write the rows of an attribute [N, ...] to the parts that own them, by ascending id.

    Args:
        journal: of the run.
        label: of the attribute.
        value: in memory or mapped to a file.
        part: int16 [N].
    """

    def write(name: str) -> list[ArrayFile]:
        dtype, shape = dtype_name(value.dtype), tuple(value.shape[1:])
        writers = [ArrayWriter(folder / name, dtype, shape) for folder in journal.folders]
        step = max(1, STEP_BYTES // max(1, value[:1].nbytes))
        for first in range(0, len(part), step):
            rows, owners = value[first : first + step].detach(), part[first : first + step]
            for p, writer in enumerate(writers):
                writer.write(rows[torch.from_numpy(np.flatnonzero(owners == p))])
        return [writer.close() for writer in writers]

    return journal.files(label, write)


def write_whole(journal: PartitionJournal, label: str, value: Ints | Tensor) -> ArrayFile:
    """Write an array that all ranks read."""
    return journal.files(label, lambda name: [write_array(journal.folder / name, value)])[0]


def rows_in_parts(part: Ints, parts: int) -> Ints:
    """Return for each node how many before it are in the same part: its row there.

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

    def write(self, journal: PartitionJournal) -> list[tuple[ArrayFile, ArrayFile, list[Any]]]:
        """Return of each part indptr, indices, and of each relation its attributes by name."""
        parts, csc = len(journal.folders), self._csc
        counts = np.stack([self._edges_of(r, parts) for r in range(csc.num_relations)])
        dtypes = [narrow(int(total) + 1) for total in counts.sum(0)]

        def topology(name: str) -> list[ArrayFile]:
            stem = name.removesuffix(".bin")
            pointers = [
                ArrayWriter(folder / f"{stem}_indptr.bin", np.dtype(dtype).name)
                for folder, dtype in zip(journal.folders, dtypes, strict=True)
            ]
            lists = [
                ArrayWriter(folder / f"{stem}_indices.bin", csc.indices.dtype.name)
                for folder in journal.folders
            ]
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
        """Return how many edges of a relation each part has, int64 [K]."""
        count = np.zeros(parts, np.int64)
        for p, _, position in self._lists(relation, parts):
            count[p] += len(position)
        return count

    def _write_columns(
        self, journal: PartitionJournal, r: int, parts: int
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
            writers = [ArrayWriter(folder / name, dtype, shape) for folder in journal.folders]
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
    journal: PartitionJournal,
    types: tuple[Sequence[Any], Sequence[Any]],
    part: Sequence[Ints],
    parted: Sequence[dict[str, list[ArrayFile]]],
    edges: Sequence[tuple[ArrayFile, ArrayFile, list[Any]]],
) -> list[int]:
    """Write the header of each part, which makes it a saved graph, and return their checksums.

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
    """Return what the rows of parted attributes are."""
    return {
        name: RowFormat(entries[0].dtype, entries[0].shape[1:])
        for name, entries in files.items()
        if name != EDGE_IDS
    }
