"""Text and parquet files as tables, which DuckDB reads, some rows at a time."""

from __future__ import annotations

import functools
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from .packages import convert_package
from .text import KINDS, SPACES, Format, check_archive, format_of, is_packed

BATCH_ROWS = 1 << 16
MEMORY = "400MB"  # that DuckDB may take to sort or to look at a table
CSV_ROW_BYTES = {True: 3, False: 8}  # of a file, packed or not, which at least a row may take
MIXED = (
    "The CSV Parser state machine reached an invalid state.",
    "Its lines end in different ways (\\n and \\r\\n), or a quote is not closed.",
)
LINES = "header = false, auto_detect = false, allow_quoted_nulls = false"


class FileTable:
    """Columns of a file, or of all files of a folder, in the order of their rows.

    Args:
        path: of the file or folder.
        header: whether text begins with names of columns; None to find out.
        are_ends: it holds the ends of edges.

    Raises:
        ValueError: it is not a table.
        ImportError: DuckDB or pyarrow is missing.
    """

    def __init__(self, path: Path, header: bool | None, are_ends: bool = False) -> None:
        self.path, self.name = path, str(path)
        self.files = files_of(path)
        self.format: Format | None = None
        self.is_blank = False  # without a line, which would show how many columns there are
        self.length: int | None = None
        self.is_text = not all(file.name.lower().endswith(".parquet") for file in self.files)
        if self.is_text:
            self._open_text(header, are_ends)
        else:
            self._open_parquet()

    def _open_parquet(self) -> None:
        parquet = convert_package("pyarrow.parquet")
        try:
            found = [parquet.ParquetFile(file) for file in self.files]
        except convert_package("pyarrow").ArrowInvalid as error:
            raise ValueError(f"{self.path} is not a parquet file: {error}.") from None
        schemas = [file.schema_arrow.names for file in found]
        _check_same(self.files, schemas)
        self.names, self.is_named = tuple(schemas[0]), True
        self.length = sum(file.metadata.num_rows for file in found)
        names = ", ".join(f"c{i}" for i in range(len(self.names)))
        self.sql = f"(SELECT * FROM read_parquet({_texts(self.files)}) AS files({names}))"
        self.types = [str(row[1]) for row in self.query(f"DESCRIBE SELECT * FROM {self.sql}")]
        self.example = ""

    def _open_text(self, header: bool | None, are_ends: bool) -> None:
        convert_package("pyarrow")
        convert_package("duckdb")
        formats = [format_of(file, header, are_ends) for file in self.files]
        found = [form for form in formats if form is not None]
        form = self.format = found[0] if found else None
        self.is_blank = form is None
        self.names = () if form is None else form.names
        self.is_named = form is not None and form.is_named
        self.types = ["VARCHAR"] * len(self.names)
        empty = form is None or not any(f.sample for f in found)
        self.length = 0 if empty else None
        self.example = "" if form is None or empty else ", ".join(form.sample[0])
        self.sql = ""
        if form is None or empty:
            return  # and nothing is asked
        _check_same(self.files, [form.names for form in found])
        if form.matrix is not None:
            self.length = form.matrix[2]
        packed = [is_packed(file) for file in self.files]
        for file in (f for f, is_one in zip(self.files, packed, strict=True) if is_one):
            check_archive(file)
        parts = [
            _text_sql(file, part, is_one)
            for file, part, is_one in zip(self.files, formats, packed, strict=True)
            if part is not None
        ]
        self.sql = f"({' UNION ALL '.join(parts)})"

    @property
    def about(self) -> int:
        """The number of rows, or an estimate."""
        if self.length is not None:
            return self.length
        return sum(f.stat().st_size // CSV_ROW_BYTES[is_packed(f)] for f in self.files)

    def query(self, sql: str, **tables: Any) -> list[tuple[Any, ...]]:
        """Return all rows of a query.

        Raises:
            ValueError: the file cannot be read as it seemed to be.
        """
        rows: list[tuple[Any, ...]] = []
        for batch in self.batches(sql, **tables):
            rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
        return rows

    def batches(self, sql: str, rows: int = BATCH_ROWS, **tables: Any) -> Iterator[Any]:
        """Yield record batches of a query, in which `tables` are Arrow tables."""
        duckdb = convert_package("duckdb")
        with closing(_database(os.getpid()).cursor()) as connection:
            connection.execute("SET TimeZone = 'UTC'")
            for name, table in tables.items():
                connection.register(name, table)
            try:
                yield from connection.sql(sql).to_arrow_reader(min(rows, BATCH_ROWS))
            except (duckdb.InvalidInputException, duckdb.ConversionException) as error:
                reason = " ".join(str(error).partition("Possible fixes")[0].split())
                reason = reason.replace(*MIXED)
                reason = re.sub(r"^(Invalid Input|Conversion) Error: ", "", reason)
                raise ValueError(f"{self.name} cannot be read: {reason}.") from None


@functools.lru_cache(maxsize=1)
def _database(process: int) -> Any:
    """Return the empty database of a process, kept as opening one is slow."""
    settings = {
        "threads": 1,  # rows stay in order, and memory small
        "memory_limit": MEMORY,
        "temp_directory": tempfile.gettempdir(),
    }
    return convert_package("duckdb").connect(config=settings)


def files_of(path: Path) -> list[Path]:
    """Return the file, or the parts in a folder, in the order of the numbers in their names.

    Raises:
        ValueError: a folder without parts, or with such of several kinds.
    """
    if not path.is_dir():
        return [path]
    entries = [entry for entry in path.iterdir() if entry.name[0] not in "._"]
    kinds = {entry.name.lower().removesuffix(".gz").rpartition(".")[2] for entry in entries}
    if not entries or len(kinds) > 1 or any(not entry.is_file() for entry in entries):
        raise ValueError(
            f"{path} is not a regular file, nor a folder of parts of one table, which are .parquet "
            f"files or text, all of one kind, and nothing else. {KINDS}"
        )
    return sorted(entries, key=_natural)


def _natural(path: Path) -> list[tuple[int, str]]:
    """Return a key that has part 10 after part 9."""
    parts = re.split(r"([0-9]+)", path.name)
    return [(int(part), "") if part.isdigit() else (-1, part) for part in parts]


def _check_same(files: Sequence[Path], names: Sequence[Sequence[str]]) -> None:
    for file, found in zip(files, names, strict=False):
        if list(found) != list(names[0]):
            raise ValueError(
                f"{file} has the columns {', '.join(found)}, but {files[0].name} beside it has "
                f"{', '.join(names[0])}: all parts of a table need the same."
            )


def _text_sql(path: Path, form: Format, packed: bool) -> str:
    """Return a SELECT of the columns of a text file, c0, c1, ..., without spaces around them."""
    width = range(len(form.names))
    compression = "gzip" if packed else "none"
    read = (
        f"read_csv({_text(str(path))}, {LINES}, compression = '{compression}', "
        f"skip = {form.skipped}"
    )
    quoted = any('"' in field for row in form.sample for field in row)
    if form.delimiter != SPACES and (not form.comment or quoted or len(form.names) == 1):
        kinds = ", ".join(f"'c{i}': 'VARCHAR'" for i in width)
        columns = ", ".join(f"trim(c{i}) AS c{i}" for i in width)
        found = (
            f"SELECT {columns} FROM {read}, delim = {_text(form.delimiter)}, quote = '\"', "
            f"escape = '\"', columns = {{{kinds}}})"
        )
    else:  # lines as a whole, as comments stand between them, or several spaces
        parts = (
            "string_split_regex(trim(line, ' ' || chr(9)), '\\s+')"
            if form.delimiter == SPACES
            else f"string_split(line, {_text(form.delimiter)})"
        )
        columns = ", ".join(f"trim(parts[{i + 1}]) AS c{i}" for i in width)
        error = "error('a line has other columns than the first: ' || line)"
        found = (
            f"SELECT {columns} FROM (SELECT line, CASE WHEN len({parts}) = {len(form.names)} THEN "
            f"{parts} ELSE {error} END AS parts FROM {read}, delim = '\x01', quote = '', escape = "
            f"'', columns = {{'line': 'VARCHAR'}}) WHERE trim(line) <> ''"
        )
        noted = f" AND NOT starts_with(ltrim(line), '{form.comment}')" if form.comment else ""
        return f"{found}{noted})"
    if form.comment:
        found += f" WHERE c0 IS NULL OR NOT starts_with(c0, '{form.comment}')"
    return found


def _text(value: str) -> str:
    """Return an SQL literal."""
    return "'" + value.replace("'", "''") + "'"


def _texts(paths: Sequence[Path]) -> str:
    return f"[{', '.join(_text(str(path)) for path in paths)}]"
