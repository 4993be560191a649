"""The steps of a conversion."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from torch_geometric.data.storage import N_KEYS

from ..header import EdgeGroup, Header, NodeGroup, write_header
from ..progress import Told
from ..save import FileNames
from .attributes import open_attribute
from .edge_files import EdgeFiles, EdgeInput
from .edge_table import Column, EdgeTableLayout
from .node_files import NodeFile
from .opening import open_rows
from .packages import convert_package
from .spec import EdgeSpec, GraphSpec, NodeSpec, Source
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
    progress: Callable[[int | None], Told] | None = None,
) -> None:
    """Write a graph for `pyg_direct.open` from files of edges and features.

    The result has the same bits as `pyg_direct.save` of the same graph. A conversion that was
    interrupted, at any moment and by anything, goes on when it is called again; until it is
    finished, ``OUT.part`` holds what it has.

    Args:
        spec: what to read.
        out: the new directory.
        memory_bytes: that the process may use, at least 1 GB. (Pages of files that the system keeps
            in memory beyond that are given back when something else needs it.) With little of it,
            edges are sorted in more and smaller parts.
        overwrite: replace what is at `out`.
        progress: called with the number of edges and rows in all (edges are read and written; None:
            unknown), returns what is called with those done since the last call.

    Raises:
        ValueError: files that do not hold what `spec` says, or do not fit each other; an unfinished
            conversion of other files or options.
        FileExistsError: there is something at `out`.
        BlockingIOError: another process is converting to `out`.
        OSError: something cannot be read or written, or there is too little room on the disk, which
            is looked at before anything is written.
        ImportError: DuckDB or pyarrow is missing.
    """
    if memory_bytes < LEAST_MEMORY_BYTES:
        raise ValueError(f"A conversion needs at least 1 GB of memory, got {memory_bytes} bytes.")
    convert_package("duckdb")
    convert_package("pyarrow")
    inputs, plan = {"graph": spec.description(), "files": _files(spec)}, _Plan(spec, memory_bytes)
    with Workplace(Path(out), overwrite) as workplace:
        workplace.check_space(plan.disk_bytes)
        journal = workplace.begin(inputs)
        if journal.get("finished") is None:
            told = (progress or (lambda total: lambda count: None))(plan.num_rows)
            edges = EdgeFiles(plan.edges, workplace, journal, plan.indices, told)
            indices, attributes, num_edges = edges.write(max(plan.num_nodes.values()))
            nodes = [
                NodeGroup(
                    node.type,
                    plan.num_nodes[node.type],
                    node.num_nodes is not None or not any(k in N_KEYS for k in node.attributes),
                    {
                        name: plan.node_files[node.type, name].write(workplace, journal, told)
                        for name in node.attributes
                    },
                )
                for node in spec.nodes
            ]
            header = Header(
                nodes=nodes,
                edges=[
                    EdgeGroup(edge.type, count, found)
                    for edge, count, found in zip(spec.edges, num_edges, attributes, strict=True)
                ],
                indptr=edges.write_indptr(plan.indptr, sum(num_edges)),
                indices=indices,
            )
            write_header(header, workplace.graph)
        workplace.publish(journal)


class _Plan:
    """All inputs, opened, and the files that they become."""

    def __init__(self, spec: GraphSpec, memory_bytes: int) -> None:
        names = FileNames()
        self.num_nodes: dict[str | None, int] = {}
        self.node_files: dict[tuple[str | None, str], NodeFile] = {}
        for node in spec.nodes:
            count = self.num_nodes[node.type] = _num_nodes(node)
            for name, source in node.attributes.items():
                rows = open_attribute(source, name, count)
                self.node_files[node.type, name] = NodeFile(
                    rows, count, names, name, spec.feature_dtype
                )
        beyond = memory_bytes - PROGRAM_BYTES
        self.edges = [self._edges(edge, beyond, names) for edge in spec.edges]
        self.indptr, self.indices = names.new("indptr"), names.new("indices")

    def _edges(self, spec: EdgeSpec, memory_bytes: int, names: FileNames) -> EdgeInput:
        ends = open_rows(spec.ends, "edge_index", are_ends=True)
        attributes = {
            name: open_attribute(source, name, ends.length)
            for name, source in spec.attributes.items()
        }
        src, dst = (spec.type[0], spec.type[2]) if spec.type else (None, None)
        layout = EdgeTableLayout(
            spec,
            self.num_nodes[src],
            self.num_nodes[dst],
            [Column(name, rows.dtype, rows.row_shape) for name, rows in attributes.items()],
            int(memory_bytes * SHARE_OF_DUCKDB),
        )
        edge_bytes = PIECE_BYTES + COPIES * layout.attribute_bytes
        piece = int(memory_bytes * SHARE_OF_A_PIECE) // (edge_bytes * (1 + spec.symmetrise))
        files = {name: names.new(name) for name in attributes}
        return EdgeInput(spec, ends, attributes, files, layout, max(1, piece))

    @property
    def disk_bytes(self) -> int:
        """Most bytes that are on disk at a time: those of the result, and of one table."""
        lists = sum(edges.layout.num_dst + 1 for edges in self.edges)
        edges = sum(e.most * (8 + e.layout.attribute_bytes) for e in self.edges)
        tables = [edges.most * edges.layout.file_bytes for edges in self.edges]
        nodes = sum(file.num_bytes for file in self.node_files.values())
        # The tables are gone before the attributes of nodes are written.
        return 16 * lists + edges + max(max(tables), nodes)

    @property
    def num_rows(self) -> int | None:
        """Edges to be read and written, and rows of attributes."""
        if any(edges.ends.length is None or edges.spec.deduplicate for edges in self.edges):
            return None
        edges = sum(edges.given + edges.most for edges in self.edges)
        return edges + sum(file.num_rows for file in self.node_files.values())


def _num_nodes(node: NodeSpec) -> int:
    """Return the number of nodes of a type."""
    if node.num_nodes is not None:
        return node.num_nodes
    for name, source in node.attributes.items():
        if not source.lists_ids:
            return open_attribute(source, name, None).counted()
    raise ValueError(
        f"The number of nodes {f'of type {node.type!r} ' if node.type else ''}is not known: give "
        f"num_nodes, or an attribute of all of them."
    )


def _files(spec: GraphSpec) -> dict[str, dict[str, int]]:
    """Return what tells whether an input file was changed.

    Raises:
        FileNotFoundError: there is no such file.
    """
    found: dict[str, dict[str, int]] = {}

    def look(source: Source) -> None:
        status = os.stat(source.file)
        found[source.file] = {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}

    for node in spec.nodes:
        for source in node.attributes.values():
            look(source)
    for edge in spec.edges:
        for source in (edge.ends, *edge.attributes.values()):
            look(source)
    return found
