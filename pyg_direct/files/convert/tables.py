"""CSV and parquet files, read by pyarrow, some rows at a time."""

from __future__ import annotations

import csv as text_csv
import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .packages import convert_package
from .rows import FileRows
from .spec import ArraySource

BLOCK_BYTES = 8 << 20  # of a CSV file that are parsed at a time
BATCH_ROWS = 1 << 16  # of a parquet file
EXACT_END = 2.0**53  # whole numbers below it are float64s
LIKE_A_NUMBER = re.compile(r"[+-]?\.?[0-9]")  # how a field begins that is hardly a column's name


class TableRows(FileRows):
    """Columns of a table: [N] of one column of numbers, otherwise [N, F].

    Args:
        name: of the file, for errors.
        batches: opens the table at its front; yields record batches of only these columns.
        missing: what replaces empty fields; None if they are an error.
        dtype: of the result, which can hold all elements; None for what the table has.
        width: number of columns.
        length: number of rows, if it is known.
    """

    def __init__(
        self,
        name: str,
        batches: Callable[[], Iterator[Any]],
        missing: float | None,
        dtype: torch.dtype | None,
        width: int,
        length: int | None,
    ) -> None:
        self._batches, self._missing, self._dtype = batches, missing, dtype
        super().__init__(name, dtype or torch.int64, () if width == 1 else (width,), length)
        first = next(self._tensors(), None)
        if first is None:
            self.length = 0
        else:
            self.dtype, self.row_shape = first.dtype, tuple(first.shape[1:])

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        kept: list[Tensor] = []
        count, skip = 0, first
        for rows in self._tensors():
            if skip >= len(rows):
                skip -= len(rows)
                continue
            rows, skip = rows[skip:], 0
            while count + len(rows) >= step:
                cut = step - count
                yield torch.cat([*kept, rows[:cut]])
                kept, count, rows = [], 0, rows[cut:]
            if len(rows) > 0:
                kept.append(rows)
                count += len(rows)
        if kept:
            yield torch.cat(kept)

    def _tensors(self) -> Iterator[Tensor]:
        pa = convert_package("pyarrow")
        try:
            for batch in self._batches():
                if batch.num_rows > 0:
                    yield self._tensor(batch)
        except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError) as error:
            raise ValueError(
                f"{self.name} cannot be read: {error}. (Whole numbers that floats follow need "
                f'"dtype": "float32" in the JSON file of --spec.)'
            ) from None
        except OSError as error:
            if error.errno is not None:
                raise
            raise ValueError(f"{self.name} is damaged: {error}.") from None  # a packed file

    def _tensor(self, batch: Any) -> Tensor:
        columns = []
        for column, field in zip(batch.columns, batch.schema, strict=True):
            if column.null_count > 0 and self._missing is None:
                raise ValueError(
                    f"The column {field.name!r} of {self.name} has empty entries. Fill them, or "
                    f'say what they stand for: "missing" in the JSON file of --spec.'
                )
            columns.append(_values(column, self._missing, f"{field.name!r} of {self.name}"))
        table = columns[0] if len(columns) == 1 else np.stack(columns, axis=1)
        tensor = torch.from_numpy(np.require(table, requirements=["C", "W"]))
        return tensor if self._dtype is None else tensor.to(self._dtype)


class WholeFloats(TableRows):
    """Whole numbers of a CSV file with empty entries, which may be written as 3 or 3.0.

    Raises:
        ValueError: one that a float64 does not hold exactly, as some from 2^53 on.
    """

    def _tensor(self, batch: Any) -> Tensor:
        rows = super()._tensor(batch)
        if (rows.isfinite() & (rows.abs() >= EXACT_END)).any():
            raise ValueError(
                f'{self.name} has whole numbers of 2^53 or more. With "missing" they are read as '
                f"float64, where they lose digits: fill the empty entries, and leave it out."
            )
        return rows


def _values(column: Any, missing: float | None, name: str) -> Any:
    """Return a column of numbers [N], or of lists of numbers [N, F]."""
    pa = convert_package("pyarrow")
    if pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type):
        values = column.flatten()
        width = len(values) // len(column)
        lengths = np.asarray(column.value_lengths())
        if (lengths != width).any() or values.null_count > 0:
            raise ValueError(f"The lists in column {name} must all have the same length.")
        return values.to_numpy(zero_copy_only=False).reshape(len(column), width)
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
    if not any(kind(column.type) for kind in kinds):
        raise ValueError(f"The column {name} must hold numbers, got {column.type}.")
    if column.null_count > 0:
        column = column.fill_null(pa.scalar(missing).cast(column.type))
    return column.to_numpy(zero_copy_only=False)


def open_table(path: Path, kind: str, source: ArraySource, name: str, are_ends: bool) -> FileRows:
    """Look into a CSV or parquet file and return some of its columns.

    Raises:
        ValueError: there are no such columns, or they hold no numbers.
        ImportError: pyarrow is missing.
    """
    if kind == "parquet":
        parquet = convert_package("pyarrow.parquet")
        try:
            file = parquet.ParquetFile(path)
        except convert_package("pyarrow").ArrowInvalid as error:
            raise ValueError(f"{path} is not a parquet file: {error}.") from None
        columns = _columns(file.schema_arrow.names, source, name, are_ends, path)
        length = file.metadata.num_rows

        def batches() -> Iterator[Any]:
            for batch in parquet.ParquetFile(path).iter_batches(BATCH_ROWS, columns=columns):
                yield batch.select(columns)  # in the order that was asked for

        return TableRows(str(path), batches, source.missing, None, len(columns), length)
    return _open_csv(path, "\t" if kind == "tsv" else ",", source, name, are_ends)


def _open_csv(
    path: Path, delimiter: str, source: ArraySource, name: str, are_ends: bool
) -> FileRows:
    pa, csv = convert_package("pyarrow"), convert_package("pyarrow.csv")
    packed = path.name.lower().endswith(".gz")
    front = _front(path, delimiter, packed)
    if front is None:  # an empty file, which does not show how many columns it has
        return TableRows(str(path), lambda: iter(()), None, None, 2 if are_ends else 1, 0)
    columns = _columns(front.names, source, name, are_ends, path)
    if front.is_empty:
        return TableRows(str(path), lambda: iter(()), None, None, len(columns), 0)
    types, exact, are_whole = {}, False, False
    if are_ends or source.dtype not in (None, "bool"):
        are_whole = are_ends or not getattr(torch, source.dtype or "").is_floating_point
        exact = are_whole and source.missing is None
        types = {column: pa.int64() if exact else pa.float64() for column in columns}
    reading = csv.ReadOptions(
        block_size=BLOCK_BYTES,
        column_names=front.names,
        skip_rows=front.skipped_lines,
        use_threads=False,
    )
    converting = csv.ConvertOptions(
        include_columns=columns, column_types=types, strings_can_be_null=True
    )

    def batches() -> Iterator[Any]:
        with pa.input_stream(path, compression="gzip" if packed else None) as stream:
            yield from csv.open_csv(
                stream,
                read_options=reading,
                parse_options=csv.ParseOptions(delimiter=delimiter),
                convert_options=converting,
            )

    kind = WholeFloats if are_whole and not exact else TableRows
    rows = kind(str(path), batches, source.missing, None, len(columns), None)
    if source.dtype is None and rows.dtype == torch.float64:
        return TableRows(str(path), batches, source.missing, torch.float32, len(columns), None)
    return rows


class _Front(NamedTuple):
    """What the first lines of a CSV file say."""

    names: list[str]  # of the columns; f0, f1, ... without a header
    skipped_lines: int  # before the data
    is_empty: bool  # no data behind the header


def _front(path: Path, delimiter: str, packed: bool) -> _Front | None:
    """Read the first lines of a CSV file; None if it has none but empty ones.

    Raises:
        ValueError: text of another encoding, a damaged archive, or a first line that may be names
            of columns or data.
    """
    lines: list[tuple[int, list[str]]] = []
    try:  # utf-8-sig leaves out a byte-order mark, as pyarrow does
        with (gzip.open if packed else open)(path, "rt", encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):
                if line.strip("\r\n"):
                    fields = next(text_csv.reader([line], delimiter=delimiter))
                    lines.append((number, [field.strip() for field in fields]))
                if len(lines) == 2:
                    break
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text: {error}. Convert it first.") from None
    except (gzip.BadGzipFile, EOFError, zlib.error, text_csv.Error) as error:
        raise ValueError(f"{path} is damaged: {error}.") from None
    if not lines:
        return None
    (number, first), second = lines[0], lines[1][1] if len(lines) == 2 else []
    if not _is_header(first, second, path):
        return _Front([f"f{i}" for i in range(len(first))], 0, False)
    return _Front(first, number, not second)


def _is_header(first: Sequence[str], second: Sequence[str], path: Path) -> bool:
    """Whether the first line has the names of columns, which may also look like numbers.

    If only some do, a name above a number in the second line decides.

    Raises:
        ValueError: none does.
    """
    if all(map(_is_value, first)):
        return False
    is_name = [not _is_value(field) and not LIKE_A_NUMBER.match(field) for field in first]
    below = [field != "" and _is_value(field) for field in second]
    if all(is_name) or any(a and b for a, b in zip(is_name, below, strict=False)):
        return True
    raise ValueError(
        f"The first line of {path} has neither numbers nor names of columns: {', '.join(first)!r}. "
        f"Write numbers as decimals, or names that do not begin with a digit."
    )


def _is_value(text: str) -> bool:
    """Whether pyarrow reads a field as a number, a boolean or an empty entry."""
    options = convert_package("pyarrow.csv").ConvertOptions()
    if text in {*options.null_values, *options.true_values, *options.false_values}:
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def _columns(
    names: Sequence[str], source: ArraySource, name: str, are_ends: bool, path: Path
) -> list[str]:
    """Return the names of the columns that are meant, each of one column.

    Raises:
        ValueError: no such column, several of one name, or one that is named twice.
    """
    found = _named_columns(names, source, name, are_ends, path)
    counts = Counter(names)
    for column, times in Counter(found).items():
        if counts[column] > 1:
            raise ValueError(
                f"{path} has {counts[column]} columns that are called {column!r}: rename them."
            )
        if times > 1:
            raise ValueError(
                f"The column {column!r} of {path} is named {times} times: name it once."
            )
    return found


def _named_columns(
    names: Sequence[str], source: ArraySource, name: str, are_ends: bool, path: Path
) -> list[str]:
    if source.columns is None:
        if are_ends:
            if len(names) < 2:
                raise ValueError(f"{path} must have two columns of ids, got {', '.join(names)}.")
            return list(names[:2])
        return [name] if name in names else list(names)
    found = []
    for column in source.columns:
        is_position = column not in names and str(column).isdigit() and int(column) < len(names)
        if column not in names and not is_position:
            raise ValueError(
                f"{path} has no column {column!r}; it has {len(names)}: {', '.join(names)}."
            )
        found.append(names[int(column)] if is_position else str(column))
    return found
