"""Arrays in files of all formats, by the name of the file."""

from __future__ import annotations

from pathlib import Path

import torch

from .array_rows import open_npy, open_npz, open_pt
from .rows import FileRows
from .spec import ArraySource
from .tables import open_table


def open_rows(source: ArraySource, name: str, are_ends: bool = False) -> FileRows:
    """Look into a file and return an array of it; no more than its beginning is read.

    Args:
        source: where it is.
        name: of the attribute, which finds the array in a file of several.
        are_ends: it holds the ends of edges: integers, returned as [E, 2].

    Raises:
        ValueError: a file of another kind, no such array in it, or one of another shape or dtype.
        OSError: the file cannot be opened.
        ImportError: it takes pyarrow, which is missing.
    """
    path = Path(source.file)
    if path.exists() and not path.is_file():
        raise ValueError(
            f"{path} is not a regular file. Files are read more than once, and from several "
            f"places: write what a pipe or device gives to a file first."
        )
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file.")
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    wanted = "edge_index" if are_ends else name
    if kind == "npy":
        rows = open_npy(path, are_ends)
    elif kind == "npz":
        rows = open_npz(path, source.key, wanted, are_ends)
    elif kind in ("pt", "pth"):
        rows = open_pt(path, source.key, wanted, are_ends)
    elif kind in ("csv", "tsv", "parquet"):
        rows = open_table(path, kind, source, name, are_ends)
    else:
        raise ValueError(
            f"{path} is of no known kind: .npy, .npz, .pt, .csv, .csv.gz, .tsv or .parquet."
        )
    floating = rows.dtype.is_floating_point or rows.dtype == torch.bool
    if are_ends and (rows.row_shape != (2,) or floating):
        raise ValueError(
            f"{rows.name} must hold the ends of edges, integers of shape [2, E] or [E, 2], got "
            f"{rows.dtype} {['E', *rows.row_shape]}."
        )
    return rows
