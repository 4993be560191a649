"""Attributes in the columns of tables, which may have a column with the id of each row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from . import cells
from .columns import attribute_of, named
from .ids import HINT, NodeIds, name_sql
from .packages import convert_package
from .rows import FileRows, in_steps
from .spec import ArraySource
from .tables import FileTable

BATCH_BYTES = 16 << 20  # of numbers that are read at a time
SHOWN = 3  # of the entries that a message names


class WantedRows(NamedTuple):
    """The attribute that is wanted of a table.

    Args:
        name: of the attribute.
        ids: of the nodes that the rows are of.
        size: how many nodes or edges there are; None if it is not known.
        same_rows: rows are those of the edges, whatever other columns count.
        are_times: edges are sorted by them: whole numbers that are written as floats are integers.
    """

    name: str
    ids: NodeIds
    size: int | None
    same_rows: bool = False
    are_times: bool = False


class TableRows(FileRows):
    """Columns of a table: [N] of one column of numbers, otherwise [N, F].

    Args:
        table: where they are.
        source: which of them, and how they are stored.
        asked: what for.

    Raises:
        ValueError: no such columns, texts among numbers, or rows in another order than the nodes.
    """

    def __init__(self, table: FileTable, source: ArraySource, asked: WantedRows) -> None:
        self._table, self._source, self._asked = table, source, asked
        self._columns, counting = attribute_of(table, source, asked.name, asked.same_rows)
        width = len(self._columns)
        super().__init__(table.name, torch.int64, () if width == 1 else (width,), table.length)
        self.about = table.about
        for column in counting if table.length != 0 else []:
            self._check_counting(column)
        self._tables: dict[str, Any] = {}
        keyed = source.key and table.length != 0
        self._sql = self._ordered(source.key or "") if keyed else table.sql
        self._parts, self._dtype = self._look() if table.length != 0 else ([], None)
        first = next(self._tensors(), None) if table.length != 0 else None
        if first is not None:
            self.dtype, self.row_shape = first.dtype, tuple(first.shape[1:])

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        yield from self._counted(in_steps(self._tensors(), first, step), first)

    # --- whose rows they are ---

    def _check_counting(self, column: int) -> None:
        """Check that a column of ids has those of the rows, in their order.

        Raises:
            ValueError: it has not; or a column without a name has all ids in some order.
        """
        table = self._table
        number = cells.id_of(f"c{column}", table.types[column])
        ((count, ids, distinct, low, high, off),) = table.query(
            "SELECT count(*), count(id), count(DISTINCT id), min(id), max(id), count(DISTINCT id - "
            f"row) FROM (SELECT {number} AS id, row_number() OVER () - 1 AS row FROM {table.sql})"
        )
        if not table.is_named:
            counts = ids == distinct == count and high - low == count - 1 and low in (0, 1)
            if count > 2 and counts:
                raise ValueError(
                    f"{table.name} has columns without names, of which the first seems to be the "
                    f"ids of the rows (the first row is {table.example}). Name the columns of "
                    f"{self._asked.name!r}: FILE:1; and --key {self._asked.name}=0 if the ids are "
                    f"in the first, or --key {self._asked.name}= if none has ids."
                )
            return
        if ids != count or off != 1 or low not in (0, self._asked.ids.first):
            name, attribute = table.names[column], self._asked.name
            raise ValueError(
                f"The column {name!r} of {table.name} is not 0, 1, 2, ..., so that rows may be "
                f"those of other nodes. If it has the ids of the nodes: --key {attribute}={name} "
                f'(--spec: "key": "{name}"); if rows are in the order of the nodes: --key '
                f"{attribute}= (an empty key)."
            )

    def _ordered(self, key: str) -> str:
        """Return a query that has the rows in the order of the ids in a column.

        Raises:
            ValueError: ids that are missing, of no node, or there twice.
        """
        table, ids = self._table, self._asked.ids
        (column,) = named(table, [key])
        if ids.names is None:
            number = cells.id_of(f"c{column}", table.types[column])
            rows = f"(SELECT {number} - {ids.first} AS k, c{column} AS given, * FROM {table.sql})"
        else:
            self._tables = {"names": ids.table()}
            name = name_sql(table, column)
            rows = (
                f"(SELECT names.id AS k, c{column} AS given, rows.* FROM {table.sql} AS rows LEFT "
                f"JOIN names ON {name} = names.name)"
            )
        ((total,),) = self._query(f"SELECT count(*) FROM {rows}")
        count = total if self._asked.size is None else self._asked.size
        outside = f"SELECT given FROM {rows} WHERE k IS NULL OR k < 0 OR k >= {count}"
        twice = f"SELECT any_value(given) FROM {rows} GROUP BY k HAVING count(*) > 1 ORDER BY k"
        for what, query in (("ids of no node", outside), ("ids that are there twice", twice)):
            if bad := self._query(f"{query} LIMIT {SHOWN}"):
                found = ", ".join(repr(row[0]) for row in bad)
                raise ValueError(f"The column {key!r} of {table.name} has {what}: {found}. {HINT}")
        if total < count and self._source.missing is None:
            absent = self._query(
                f"SELECT n.k FROM range({count}) n(k) ANTI JOIN {rows} r ON n.k = r.k ORDER BY 1 "
                f"LIMIT {SHOWN}"
            )
            found = ", ".join(str(row[0] + ids.first) for row in absent)
            raise ValueError(
                f"{table.name} has rows of {total} of {count} nodes; missing are {found}, ... Say "
                f'what those get: "missing" in the JSON file of --spec.'
            )
        self.length = self.about = count
        columns = ", ".join(f"c{i}" for i in range(len(table.names)))
        ids_of_all = f"range({count}) n(k) LEFT JOIN {rows} r ON n.k = r.k"
        return f"(SELECT {columns} FROM {ids_of_all} ORDER BY n.k)"

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        return self._table.query(sql, **self._tables)

    # --- what they hold ---

    def _look(self) -> tuple[list[_Reading], torch.dtype | None]:
        """Return how the columns are read, and the dtype of all.

        Raises:
            ValueError: a column has something else than numbers; the first entry is named.
        """
        table, columns = self._table, self._columns
        types = [table.types[i] for i in columns]
        if not table.is_text:
            kinds = [cells.kind_of_type(sql_type) for sql_type in types]
            for i, kind, sql_type in zip(columns, kinds, types, strict=True):
                if kind == cells.TEXT:
                    raise ValueError(
                        f"The column {table.names[i]!r} of {table.name} must hold numbers, got "
                        f"{sql_type}."
                    )
            return [
                _Reading((place,), self._of_type(f"c{i}", sql_type))
                for place, (i, sql_type) in enumerate(zip(columns, types, strict=True))
            ], None
        # One expression for all columns: DuckDB takes a minute to plan a thousand of them.
        entries = f"SELECT unnest({_listed(columns)}) AS v, unnest(range({len(columns)})) AS place"
        found = table.query(
            f"SELECT count(*), bit_or({cells.kind_of_text('v')}) FROM ({entries} FROM {table.sql}) "
            f"GROUP BY place ORDER BY place"
        )
        if self.length is None:
            self.length = self.about = int(found[0][0])
        kinds = [int(kind) for _, kind in found]
        for i, kind in zip(columns, kinds, strict=True):
            self._check_kind(i, kind)
        return self._of_texts(kinds)

    def _check_kind(self, column: int, kind: int) -> None:
        held = kind & ~cells.EMPTY
        if not held & cells.TEXT and (
            not held & ~cells.NUMBERS or held in (cells.BOOL, cells.TIME)
        ):
            return
        table, v = self._table, f"c{column}"
        others = cells.EMPTY | (cells.NUMBERS if held & cells.NUMBERS else 0)
        ((row, text),) = table.query(
            f"SELECT row, {v} FROM (SELECT row_number() OVER () - 1 AS row, {v} FROM {table.sql}) "
            f"WHERE ({cells.kind_of_text(v)}) & {others} = 0 LIMIT 1"
        )
        raise ValueError(
            f"Row {row} of the column {table.names[column]!r} of {table.name} is {text!r}, but an "
            f"attribute must hold numbers: decimals (with a point), true and false, or times such "
            f"as 2026-01-31 12:30:00, in all rows."
        )

    def _of_texts(self, kinds: Sequence[int]) -> tuple[list[_Reading], torch.dtype | None]:
        together, wanted = reduce(int.__or__, kinds), self._source.dtype
        dtype = None if wanted is None else getattr(torch, wanted)
        floats = [bool(kind & (cells.FLOAT | cells.WIDE)) for kind in kinds]
        missing = self._source.missing
        if missing is not None and not float(missing).is_integer():
            floats = [a or bool(k & cells.EMPTY) for a, k in zip(floats, kinds, strict=True)]
        pointed = [bool(kind & cells.POINT) for kind in kinds]
        if dtype is None and not self._asked.are_times:
            floats = [a or b for a, b in zip(floats, pointed, strict=True)]
        mixed = any(floats) and bool(together & cells.VAST)
        if mixed and (dtype is None or not dtype.is_floating_point):
            raise ValueError(
                f"{self.name} has whole numbers of 2^53 or more in columns that are read as "
                f"floats, where they lose digits. Convert their columns alone, or name a "
                f'"dtype" of floats in the JSON file of --spec.'
            )
        alike: dict[int, list[int]] = {}
        for place, (kind, as_float) in enumerate(zip(kinds, floats, strict=True)):
            kept = kind & (cells.BOOL | cells.TIME) or cells.FLOAT * as_float
            alike.setdefault(kept, []).append(place)
        values = [
            _Reading(tuple(places), self._of_kind(kind, [self._columns[p] for p in places]))
            for kind, places in alike.items()
        ]
        if dtype is not None or not any(floats):
            return values, None
        wide = together & (cells.WIDE | cells.LONG)
        return values, torch.float64 if wide else torch.float32

    def _of_kind(self, kind: int, columns: Sequence[int]) -> str:
        """Return an expression for columns of texts of one kind, a list if there are several."""
        v = "v" if len(columns) > 1 else f"c{columns[0]}"
        value = cells.value_of_text(v, kind)
        if kind & cells.TIME:
            unit = self._source.unit
            value = cells.in_units(value, cells.UNITS[unit], unit)
        value = self._filled(value, "DOUBLE" if kind & cells.FLOAT else "BIGINT", kind)
        return value if len(columns) == 1 else f"[{value} for v in {_listed(columns)}]"

    def _of_type(self, v: str, sql_type: str) -> str:
        if cells.kind_of_type(sql_type) == cells.TIME:
            v, sql_type = cells.time_of_type(v, sql_type, self._source.unit), "BIGINT"
        if cells.is_decimal(sql_type):
            v, sql_type = f"CAST({v} AS DOUBLE)", "DOUBLE"
        return v if sql_type.endswith("]") else self._filled(v, sql_type, 0)

    def _filled(self, value: str, sql_type: str, kind: int) -> str:
        """Return an expression with the value that replaces empty entries."""
        missing = self._source.missing
        if missing is None:
            return value
        if kind & cells.BOOL or sql_type == "BOOLEAN":
            return f"coalesce({value}, {bool(missing)})"
        whole = "INT" in sql_type
        if whole and not float(missing).is_integer():
            raise ValueError(
                f"missing={missing} is not a whole number, as those of {self.name} are."
            )
        fill = int(missing) if whole else repr(float(missing))
        return f"coalesce({value}, CAST('{fill}' AS {sql_type}))"

    # --- reading ---

    def _tensors(self) -> Iterator[Tensor]:
        if self._table.length == 0:
            return
        width = len(self._columns)
        at = 0
        query = f"SELECT {', '.join(part.sql for part in self._parts)} FROM {self._sql}"
        most = max(1, BATCH_BYTES // (8 * width))
        for batch in self._table.batches(query, most, **self._tables):
            if batch.num_rows == 0:
                continue
            found = [
                self._values(part, column, at)
                for part, column in zip(self._parts, batch.columns, strict=True)
            ]
            rows = found[0]
            if len(found) > 1:
                rows = np.empty((len(rows), width), np.result_type(*found))
                for part, values in zip(self._parts, found, strict=True):
                    rows[:, part.places] = values.reshape(len(rows), -1)
            tensor = torch.from_numpy(np.require(rows, requirements=["C", "W"]))
            yield tensor if self._dtype is None else tensor.to(self._dtype)
            at += batch.num_rows

    def _values(self, part: _Reading, column: Any, at: int) -> Any:
        """Return a column of numbers [N], or of lists of numbers [N, F].

        Raises:
            ValueError: an entry is empty, or lists have other lengths than the first.
        """
        pa, width = convert_package("pyarrow"), len(part.places)
        kind = column.type
        is_list = pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind)
        values = column.flatten() if is_list else column
        if width > 1 or column.null_count > 0:
            self._check_filled(values if width > 1 else column, part.places, at)
        if not is_list:
            return values.to_numpy(zero_copy_only=False)
        lengths = np.asarray(column.value_lengths())
        name = f"column {self._table.names[self._columns[part.places[0]]]!r} of {self.name}"
        if (lengths != lengths[0]).any() or values.null_count > 0:
            raise ValueError(f"The lists in {name} must all have the same length.")
        kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean)
        if not any(kind(values.type) for kind in kinds):
            raise ValueError(f"The lists in {name} must hold numbers, got {values.type}.")
        if width == 1 and len(self._columns) > 1:
            raise ValueError(f"The {name} has lists, which go with no other column: name it alone.")
        return values.to_numpy(zero_copy_only=False).reshape(len(column), -1)

    def _check_filled(self, values: Any, places: Sequence[int], at: int) -> None:
        """Raise a ValueError at an empty one of the entries of some columns, row by row."""
        if values.null_count > 0:
            row, place = divmod(values.is_null().index(True).as_py(), len(places))
            name = self._table.names[self._columns[places[place]]]
            raise ValueError(
                f"The column {name!r} of {self.name} has empty entries, the first in row "
                f'{at + row}. Fill them, or say what they stand for: "missing" in the JSON file '
                f"of --spec."
            )


class _Reading(NamedTuple):
    """Columns that are read by one expression: a number, or a list of them."""

    places: tuple[int, ...]  # among the columns of the result
    sql: str


def _listed(columns: Sequence[int]) -> str:
    return f"[{', '.join(f'c{i}' for i in columns)}]"
