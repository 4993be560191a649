"""The steps of a conversion, and errors of the system that libraries report as their own."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from ...core.journal import Journal
from ...core.pyg import N_KEYS
from ..arrays import map_array
from ..directory import FileNames
from ..header import (
    ArrayFile,
    EdgeGroup,
    Header,
    NodeGroup,
    TimesFile,
    WeightsFile,
    write_header,
)
from ..progress import Advance
from .edge_files import EdgeFiles, EdgeInput
from .edge_table import SOURCE_TIME, Column, EdgeTableLayout
from .inputs import NodeInputs, check_maps, open_edges, states_of, write_maps
from .node_files import NodeFile
from .packages import convert_package
from .rows import FileRows
from .spec import EdgeSpec, GraphSpec
from .weights import Ints, NodeTimes, WeightTables, check_time_rows, times_of
from .workplace import Workplace

LEAST_MEMORY_BYTES = 10**9
PROGRAM_BYTES = 600 << 20  # of memory that the program takes itself, measured
SHARE_OF_DUCKDB, SHARE_OF_A_PIECE = 0.6, 0.15  # of the memory beyond that
PIECE_BYTES = 72  # of memory for an edge on its way into the table, beyond its attributes
COPIES = 4  # of the attributes of an edge on that way


def convert(
    spec: GraphSpec,
    out: str | os.PathLike[str],
    *,
    memory_bytes: int = 4 * 10**9,
    overwrite: bool = False,
    progress: Callable[[int | None], Advance] | None = None,
) -> None:
    """Write a graph for `pyg_direct.open` from files of edges and features.

    Ids that are names are numbered; ``OUT.ids.csv`` (``OUT.TYPE.ids.csv``) says how.

    The result has the same bits as `pyg_direct.save` of the same graph. A conversion that was
    interrupted, at any moment and by anything, resumes when it is called again; until it is
    finished, ``OUT.part`` holds what it has.

    Args:
        spec: what to read.
        out: the new directory.
        memory_bytes: that the process may use, at least 1 GB. (Pages of files that the system keeps
            in memory beyond that are given back when something else needs it.) With little of it,
            edges are sorted in more and smaller parts.
        overwrite: replace a saved graph at `out`; never anything else.
        progress: called with the number of edges and rows in all (edges are read and written; None:
            unknown), returns what is called with those done since the last call.

    Raises:
        ValueError: files that do not hold what `spec` says, or do not fit each other; an unfinished
            conversion of other files or options, or a damaged journal of one.
        FileExistsError: there is something at `out`; with `overwrite`, something else than a saved
            graph or an empty directory. Or ``OUT.part`` holds what no conversion wrote, or there
            is another file where names are to be written.
        BlockingIOError: another process is converting to `out`.
        OSError: something cannot be read or written, or there is too little room on the disk, which
            is looked at before anything is written.
        ImportError: DuckDB or pyarrow is missing.
    """
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise ValueError(f"A conversion needs at least 1 GB of memory, got {memory_bytes} bytes.")
    convert_package("duckdb")
    convert_package("pyarrow")
    with as_os_errors():
        inputs = {"graph": spec.description(), "files": states_of(spec)}
        plan, workplace = _Conversion(spec, memory_bytes), Workplace(Path(out), overwrite)
        maps = plan.maps(workplace.out)
        check_maps(maps, overwrite)
        _run(plan, workplace, inputs, maps, progress or (lambda total: lambda count: None))


def _run(
    plan: _Conversion,
    workplace: Workplace,
    inputs: object,
    maps: dict[Path, str],
    progress: Callable[[int | None], Advance],
) -> None:
    with workplace:
        workplace.check_space(plan.disk_bytes)
        journal = workplace.begin(inputs)
        if journal.get("finished") is None:
            header = plan.write(workplace, journal, progress(plan.num_rows))
            write_header(header, workplace.graph)
        write_maps(maps)
        workplace.publish(journal)


class _Conversion:
    """All opened inputs, and their output files."""

    def __init__(self, spec: GraphSpec, memory_bytes: int) -> None:
        names = self._names = FileNames()
        self._spec, beyond = spec, memory_bytes - PROGRAM_BYTES
        self._nodes = NodeInputs(spec)
        self._num_nodes = self._nodes.counts
        self._node_files: dict[tuple[str | None, str], NodeFile] = {}
        node_times: list[FileRows | None] = []
        for node in spec.nodes:
            count, rows = self._num_nodes[node.type], self._nodes.rows[node.type]
            check_time_rows(rows, spec.time_attr)
            node_times.append(rows.get(spec.time_attr or ""))
            for name, found in rows.items():
                self._node_files[node.type, name] = NodeFile(
                    found, count, names, name, (spec.feature_dtype, spec.feature_scale)
                )
        self._edges = [self._edge_input(edge, beyond) for edge in spec.edges]
        self._indptr, self._indices = names.new("indptr"), names.new("indices")
        self._times = times_of(spec, names)
        self._node_times = None
        if self._times is not None and self._times.of_nodes:
            counts = list(self._num_nodes.values())
            self._node_times = NodeTimes(self._times, node_times, counts)
        self._weights = None
        if spec.weight_attr is not None:
            self._weights = WeightTables(
                spec.weight_attr,
                WeightTables.new_files(names),
                [
                    spec.weight_attr in edges.attributes and edges.layout.time is None
                    for edges in self._edges
                ],
            )

    def _edge_input(self, spec: EdgeSpec, memory_bytes: int) -> EdgeInput:
        spec, ends, attributes = open_edges(spec, self._nodes)
        check_time_rows(attributes, self._spec.time_attr)
        src, dst = (spec.type[0], spec.type[2]) if spec.type else (None, None)
        layout = EdgeTableLayout(
            spec,
            self._num_nodes[src],
            self._num_nodes[dst],
            [Column(name, rows.dtype, rows.row_shape) for name, rows in attributes.items()],
            int(memory_bytes * SHARE_OF_DUCKDB),
            self._sorted_by(spec),
        )
        edge_bytes = PIECE_BYTES + COPIES * layout.row_bytes
        piece = int(memory_bytes * SHARE_OF_A_PIECE) // (edge_bytes * (1 + bool(spec.symmetrise)))
        files = {name: self._names.new(name) for name in attributes}
        return EdgeInput(
            spec, ends, attributes, files, layout, max(1, piece), self._spec.weight_attr
        )

    def _sorted_by(self, edge: EdgeSpec) -> str | None:
        """Return the times that the lists of an edge type are sorted by."""
        name = self._spec.time_attr
        if name is None or name in edge.attributes:
            return name
        source = edge.type[0] if edge.type else None
        by_type = {node.type: node.attributes for node in self._spec.nodes}
        return SOURCE_TIME if name in by_type[source] else None

    def write(self, workplace: Workplace, journal: Journal, advance: Advance) -> Header:
        """Write all remaining files but the header; return the header."""
        node_times = None
        source_times: list[Ints | None] = [None] * len(self._edges)
        if self._node_times is not None:
            node_times = self._node_times.write(workplace, journal)
            types = list(self._num_nodes)
            source_times = [
                self._node_times.of_type(types.index(e.type[0] if e.type else None), workplace)
                for e in self._spec.edges
            ]
        files = EdgeFiles(
            self._edges,
            workplace,
            journal,
            (self._indices, self._times.file if self._times and not self._node_times else None),
            source_times,
            advance,
        )
        edges = files.write(max(self._num_nodes.values()))
        num_edges = [group.num_edges for group in edges.groups]
        indptr = files.write_indptr(self._indptr, sum(num_edges))
        return Header(
            nodes=[
                NodeGroup(
                    node.type,
                    self._num_nodes[node.type],
                    node.num_nodes is not None or not any(k in N_KEYS for k in node.attributes),
                    {
                        name: self._node_files[node.type, name].write(workplace, journal, advance)
                        for name in node.attributes
                    },
                )
                for node in self._spec.nodes
            ],
            edges=edges.groups,
            indptr=indptr,
            indices=edges.indices,
            times=self._times_entry(node_times or edges.times),
            weights=self._weights_entry(edges.groups, indptr, workplace, journal, advance),
        )

    def _times_entry(self, table: ArrayFile | None) -> TimesFile | None:
        if self._times is None or table is None:
            return None
        return TimesFile(self._times.attribute, self._times.of_nodes, table)

    def _weights_entry(
        self,
        edges: Sequence[EdgeGroup],
        indptr: ArrayFile,
        workplace: Workplace,
        journal: Journal,
        advance: Advance,
    ) -> WeightsFile | None:
        if self._weights is None:
            return None
        lists = [edge.layout.num_dst + 1 for edge in self._edges]
        pointers = torch.split(map_array(workplace.graph, indptr), lists)
        return self._weights.write(edges, pointers, workplace, journal, advance)

    def maps(self, out: Path) -> dict[Path, str]:
        """Return the files of the names of nodes, and their texts."""
        return self._nodes.maps(out)

    @property
    def disk_bytes(self) -> int:
        """Most bytes that are on disk at a time: those of the result, and of one table."""
        lists = sum(edges.layout.num_dst + 1 for edges in self._edges)
        tables = [edges.most * edges.layout.file_bytes for edges in self._edges]
        edges = sum(e.most * (8 + e.layout.attribute_bytes) for e in self._edges)
        nodes = sum(file.num_bytes for file in self._node_files.values())
        if self._node_times is not None:
            edges += 8 * sum(self._num_nodes.values())
        elif self._times is not None:
            edges += 8 * sum(e.most for e in self._edges)
        if self._weights is not None:
            nodes += self._weights.edge_bytes * sum(e.most for e in self._edges)
        # The tables are gone before attributes of nodes and tables of weights are written.
        return 16 * lists + edges + max(max(tables), nodes)

    @property
    def num_rows(self) -> int | None:
        """Edges to be read and written, and rows of attributes."""
        if any(edges.ends.length is None or edges.spec.deduplicate for edges in self._edges):
            return None
        passes = 2 if self._weights is not None else 1
        edges = sum(edges.given + passes * edges.most for edges in self._edges)
        return edges + sum(file.num_rows for file in self._node_files.values())


NAMED = (errno.ENOSPC, errno.EDQUOT, errno.EACCES)


@contextmanager
def as_os_errors() -> Iterator[None]:
    """Raise failures to read and write as an OSError, whichever library met them.

    Raises:
        OSError: in place of DuckDB's IOException, and of whatever says that too many files are
            open; that names the limit.
    """
    try:
        yield
    except Exception as error:
        text = str(error)
        if os.strerror(errno.EMFILE) in text:
            raise OSError(errno.EMFILE, _too_many_files(text)) from error
        if not isinstance(error, convert_package("duckdb").IOException):
            raise
        code = next((code for code in NAMED if os.strerror(code) in text), errno.EIO)
        raise OSError(code, text) from error


def _too_many_files(text: str) -> str:
    limit = "too few files"
    if os.name == "posix":
        import resource

        limit = f"at most {resource.getrlimit(resource.RLIMIT_NOFILE)[0]} files"
    return (
        f"This process may have {limit} open, and the conversion needs more ({text}). Raise the "
        f"limit, such as with ulimit -n 4096, and run it again: it resumes where it was"
    )
