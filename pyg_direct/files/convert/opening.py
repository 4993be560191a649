"""Arrays and tables in files of all formats, by the name of the file."""

from __future__ import annotations

from pathlib import Path

import torch

from .array_rows import open_npy, open_npz, open_pt
from .columns import attribute_of, ends_of, understood
from .ids import IdRows, NodeIds
from .rows import FileRows
from .spec import ArraySource, EdgeSpec
from .table_rows import TableRows, WantedRows
from .tables import FileTable
from .text import KINDS

OTHER_KINDS = frozenset(
    [
        "json",
        "jsonl",
        "graph",
        "gml",
        "graphml",
        "gexf",
        "dot",
        "net",
        "xml",
        "xls",
        "xlsx",
        "pkl",
        "pickle",
        "mat",
        "h5",
        "hdf5",
        "feather",
        "arrow",
        "orc",
        "zip",
        "bz2",
        "xz",
        "zst",
        "7z",
        "rar",
        "tar",
        "tgz",
        "adjlist",
        "db",
        "sqlite",
    ]
)


def holds_arrays(name: str) -> bool:
    """Whether a file is one of NumPy or torch, by its name."""
    kind = name.lower().removesuffix(".gz").rpartition(".")[2]
    return kind in ("npy", "npz", "pt", "pth")


def is_table(source: ArraySource) -> bool:
    """Whether a file is text or parquet, or a folder of such.

    Raises:
        ValueError: a file of another kind.
        OSError: there is no such file.
    """
    path = Path(source.file)
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise ValueError(
            f"{path} is not a regular file. Files are read more than once, and from several "
            f"places: write what a pipe or device gives to a file first."
        )
    if not path.exists():
        raise FileNotFoundError(f"{path} is not a file.")
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind in OTHER_KINDS:
        raise ValueError(f"{path} is of no known kind. {KINDS}")
    return path.is_dir() or not holds_arrays(path.name)


def open_ends(edge: EdgeSpec, ids: tuple[NodeIds, NodeIds]) -> FileRows:
    """Open a file of edges, [E, 2], and read its beginning.

    Args:
        edge: where it is, and which of its columns are attributes.
        ids: of the sources and of the destinations.

    Raises:
        ValueError: a file of another kind, no such array in it, or one of another shape or dtype.
        OSError: the file cannot be opened.
        ImportError: it takes DuckDB or pyarrow, which is missing.
    """
    source = edge.ends
    if is_table(source):
        table = FileTable(Path(source.file), source.header, are_ends=True)
        columns = ends_of(table, edge)
        pairs = IdRows(table, columns, ids)
        pairs.understood = "" if table.is_blank else understood(table, edge, columns)
        return pairs
    rows = _open_array(source, "edge_index", are_ends=True)
    floating = rows.dtype.is_floating_point or rows.dtype == torch.bool
    if rows.row_shape != (2,) or floating:
        raise ValueError(
            f"{rows.name} must hold the ends of edges, integers of shape [2, E] or [E, 2], got "
            f"{rows.dtype} {[rows.length or 'E', *rows.row_shape]}."
        )
    return _numbers(rows, *ids)


def open_ids(source: ArraySource, name: str, ids: NodeIds, count: int) -> FileRows:
    """Open a file that lists ids, or holds a mask: zero or one for each node.

    Raises: as `open_ends`.
    """
    if not is_table(source):
        return _numbers(_open_array(source, name), ids)
    if source.key:
        return open_rows(source, WantedRows(name, ids, count))
    table = FileTable(Path(source.file), source.header)
    columns, _ = attribute_of(table, source, name, same_rows=True)
    if len(columns) == 1 and ids.names is not None:
        return IdRows(table, columns, [ids])
    rows = open_rows(source, WantedRows(name, ids, None))
    rows.first_ids = (ids.first,)
    return rows


def open_rows(source: ArraySource, asked: WantedRows) -> FileRows:
    """Open a file of an attribute.

    Raises: as `open_ends`.
    """
    if is_table(source):
        return TableRows(FileTable(Path(source.file), source.header), source, asked)
    return _open_array(source, asked.name)


def _open_array(source: ArraySource, wanted: str, are_ends: bool = False) -> FileRows:
    path = Path(source.file)
    kind = path.name.lower().rpartition(".")[2]
    if kind == "npy":
        return open_npy(path, are_ends)
    if kind == "npz":
        return open_npz(path, source.key, wanted, are_ends)
    if kind in ("pt", "pth"):
        return open_pt(path, source.key, wanted, are_ends)
    raise ValueError(f"{path} is an archive of an array: unpack it first. {KINDS}")


def _numbers(rows: FileRows, *ids: NodeIds) -> FileRows:
    if any(part.names is not None for part in ids):
        raise ValueError(
            f"Ids that are names are read from tables, but {rows.name} is an array: write it as "
            f"text or parquet."
        )
    rows.first_ids = tuple(part.first for part in ids)
    return rows
