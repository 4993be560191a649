"""The opened files of a conversion: numbers of nodes, their ids, and edges."""

from __future__ import annotations

import logging
import os
import re
from dataclasses import replace
from pathlib import Path

from .columns import named
from .ids import IdRows, NodeIds
from .node_files import open_attribute
from .opening import is_table, open_ends
from .rows import FileRows
from .spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec, check_edge
from .table_rows import WantedRows
from .tables import FileTable, files_of

logger = logging.getLogger("pyg_direct")


class NodeInputs:
    """The nodes of all types.

    Args:
        spec: of the graph. Names of nodes are numbered, for which all are read.

    Raises:
        ValueError: files that do not hold what `spec` says, or do not fit each other.
        OSError: a file cannot be read.
    """

    def __init__(self, spec: GraphSpec) -> None:
        self._spec, self.time_attr = spec, spec.time_attr
        self.ids = {
            node.type: NodeIds(node.first_id, {} if node.ids == "names" else None)
            for node in spec.nodes
        }
        self._number()
        self.counts: dict[str | None, int] = {}
        self.rows: dict[str | None, dict[str, FileRows]] = {}
        for node in spec.nodes:
            rows = self.rows[node.type] = {}
            count = self.counts[node.type] = self._count(node, rows)
            for name, source in node.attributes.items():
                if name not in rows:
                    timed = name == spec.time_attr
                    asked = WantedRows(name, self.ids[node.type], count, are_times=timed)
                    rows[name] = open_attribute(source, asked)

    def _number(self) -> None:
        """Number the names of nodes: those in columns of keys, or else in the edges."""
        for node in self._spec.nodes:
            ids = self.ids[node.type]
            keyed = [s for s in node.attributes.values() if s.key and is_table(s)]
            if ids.names is not None and keyed:
                table = FileTable(Path(keyed[0].file), keyed[0].header)
                IdRows(table, named(table, [keyed[0].key or ""]), [ids]).number()
                ids.closed = True
        for edge in self._spec.edges:
            pair = self.of_ends(edge)
            if any(part.names is not None and not part.closed for part in pair):
                rows = open_ends(edge, pair)
                assert isinstance(rows, IdRows)  # else it was refused
                rows.number()

    def of_ends(self, edge: EdgeSpec) -> tuple[NodeIds, NodeIds]:
        """Return the ids of the sources and of the destinations of an edge type."""
        src, dst = _ends(edge)
        return self.ids[src], self.ids[dst]

    def _count(self, node: NodeSpec, rows: dict[str, FileRows]) -> int:
        """Return the number of nodes of a type; what was opened to find out is put into `rows`."""
        ids = self.ids[node.type]
        if node.num_nodes is not None:
            return node.num_nodes
        if ids.names is not None:
            return len(ids.names)
        for name, source in node.attributes.items():
            if not source.lists_ids:
                timed = name == self._spec.time_attr
                rows[name] = open_attribute(source, WantedRows(name, ids, None, are_times=timed))
                return rows[name].counted()
        for edge in self._spec.edges:
            form = open_ends(edge, self.of_ends(edge)).form
            if form is not None and form.matrix is not None:
                sizes = zip(_ends(edge), form.matrix[:2], strict=True)
                return max(size for end, size in sizes if end == node.type)
        raise ValueError(
            f"The number of nodes {f'of type {node.type!r} ' if node.type else ''}is not known: "
            f"give num_nodes (--num-nodes of the command), or an attribute of all of them; or let "
            f"the nodes be those that the edges name, numbered as they come (--ids names)."
        )

    def maps(self, out: Path) -> dict[Path, str]:
        """Return the files that map names to nodes, beside the graph, and their texts."""
        found = {}
        for kind, ids in self.ids.items():
            if ids.names is not None:
                part = "" if kind is None else "." + re.sub(r"[^A-Za-z0-9_-]", "_", kind)
                found[out.with_name(f"{out.name}{part}.ids.csv")] = ids.text()
        return found


def _ends(edge: EdgeSpec) -> tuple[str | None, str | None]:
    return (edge.type[0], edge.type[2]) if edge.type else (None, None)


def open_edges(edge: EdgeSpec, nodes: NodeInputs) -> tuple[EdgeSpec, FileRows, dict[str, FileRows]]:
    """Open the files of an edge type; return it with what their format says, ends and attributes.

    Raises:
        ValueError: the files do not hold what `edge` says, or the format says that edges are
            others than they seem to be.
    """
    ends = open_ends(edge, nodes.of_ends(edge))
    if ends.understood:
        logger.warning("%s", ends.understood)
    edge = replace(edge, symmetrise=_is_mirrored(edge, ends))
    check_edge(edge, [*nodes.counts])
    attributes = {
        name: open_attribute(
            source,
            WantedRows(
                name,
                NodeIds(),
                ends.length,
                source.file == edge.ends.file,
                name == nodes.time_attr,
            ),
        )
        for name, source in edge.attributes.items()
    }
    return edge, ends, attributes


def _is_mirrored(edge: EdgeSpec, ends: FileRows) -> bool:
    """Whether reverse edges are added."""
    form, given = ends.form, edge.symmetrise
    if form is None:
        return bool(given)
    src, dst = _ends(edge)
    if form.bipartite and src == dst:
        raise ValueError(
            f"{ends.name} says that its sources and destinations are of two types "
            f"({form.bipartite}), each with ids of its own: convert it with two node types, in the "
            f"JSON file of --spec."
        )
    if given is None and form.undirected and form.matrix is None:
        raise ValueError(
            f"{ends.name} says that its edges have no direction ({form.undirected}), with each "
            f"there once: give --symmetrise to add the reverse of each, or --no-symmetrise for the "
            f'edges as they are (--spec: "symmetrise").'
        )
    if given is None and form.undirected:
        logger.warning("%s is a symmetric matrix: the reverse of every edge is added.", ends.name)
        return True
    if given is None and form.note:
        logger.warning(
            "%s says of itself: %s. Its edges are converted as they are; --symmetrise adds the "
            "reverse of each.", ends.name, form.note.strip(),
        )  # fmt: skip
    return bool(given)


def check_maps(maps: dict[Path, str], overwrite: bool) -> None:
    """Check that the files of names may be written.

    Raises:
        FileExistsError: another file is there, and `overwrite` is not given.
    """
    for path, text in maps.items():
        other = os.path.lexists(path) and not (path.is_file() and path.read_text("utf-8") == text)
        if other and not (overwrite and path.is_file() and not path.is_symlink()):
            raise FileExistsError(
                f"{path}, where the names of the nodes would be written, exists: move it, or "
                f"replace it with overwrite=True (--overwrite)."
            )


def write_maps(maps: dict[Path, str]) -> None:
    """Write the files of names, each of them atomically."""
    for path, text in maps.items():
        new = path.with_name(f"{path.name}.new")
        with open(new, "w", encoding="utf-8", newline="") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, path)


def states_of(spec: GraphSpec) -> dict[str, dict[str, int]]:
    """Return the states of input files, to detect changes.

    Raises:
        FileNotFoundError: there is no such file.
    """
    found: dict[str, dict[str, int]] = {}

    def look(source: ArraySource) -> None:
        for file in files_of(Path(source.file)):
            status = os.stat(file)
            found[str(file)] = {"bytes": status.st_size, "modified_ns": status.st_mtime_ns}

    for node in spec.nodes:
        for source in node.attributes.values():
            look(source)
    for edge in spec.edges:
        for source in (edge.ends, *edge.attributes.values()):
            look(source)
    return found
