"""Ids of nodes in files: numbers from 0 or a first id on, or names that are numbered."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .cells import are_floats, id_of, name_of
from .packages import convert_package
from .rows import FileRows, in_steps
from .tables import FileTable

HINT = (
    "(Ids that count from 1: --first-id 1. Ids that are names, or have gaps: --ids names. In the "
    'JSON file of --spec: "first_id" and "ids" of the node type.)'
)


@dataclass
class NodeIds:
    """The ids of the nodes of one type.

    Args:
        first: number of the first node, of ids that are numbers.
        names: the number of each name, of ids that are names; None for numbers.
        closed: every name is known: others are errors.
    """

    first: int = 0
    names: dict[str, int] | None = None
    closed: bool = False

    def add(self, name: str) -> None:
        """Give a number to a new name."""
        if self.names is not None and not self.closed:
            self.names.setdefault(name, len(self.names))

    def table(self) -> Any:
        """Return the numbers of all names as an Arrow table."""
        pa, names = convert_package("pyarrow"), self.names or {}
        kinds = {"name": pa.string(), "id": pa.int64()}
        columns = {"name": [*names], "id": range(len(names))}
        return pa.table({k: pa.array(columns[k], kinds[k]) for k in kinds})

    def text(self) -> str:
        """Return all names with their numbers as CSV."""
        file = io.StringIO(newline="")
        csv.writer(file, lineterminator="\n").writerows(
            [("name", "id"), *(self.names or {}).items()]
        )
        return file.getvalue()


def name_sql(table: FileTable, column: int) -> str:
    """Return an expression for the names in a column; 3.0 is 3 if all are written so, as by pandas.

    Numbers that were whole become floats in pandas where one of them was missing.
    """
    ((is_float,),) = table.query(f"SELECT {are_floats(f'c{column}')} FROM {table.sql}")
    return name_of(f"c{column}", bool(is_float))


class IdRows(FileRows):
    """Columns of a table that hold ids: [N] of one column, otherwise [N, 2].

    Args:
        table: where they are.
        columns: of the table.
        ids: of the node type of each column.
    """

    def __init__(self, table: FileTable, columns: Sequence[int], ids: Sequence[NodeIds]) -> None:
        super().__init__(
            table.name, torch.int64, () if len(columns) == 1 else (len(columns),), table.length
        )
        self._table, self._columns, self._ids = table, columns, ids
        form = self.form = table.format
        counted = None if form is None else form.first_id
        self.first_ids = tuple(part.first if counted is None else counted for part in ids)
        self.about = table.about

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        yield from self._counted(in_steps(self._tensors(), first, step), first)

    def number(self) -> None:
        """Number all names that are new, row by row."""
        for found in self._columns_of_batches():
            texts = [names for names in found if isinstance(names, list)]
            parts = [part for part in self._ids if part.names is not None]
            for row in zip(*texts, strict=True):
                for part, name in zip(parts, row, strict=True):
                    part.add(name)

    def _tensors(self) -> Iterator[Tensor]:
        at = 0
        for found in self._columns_of_batches():
            columns = [
                self._numbered(i, names, at) if isinstance(names, list) else names
                for i, names in enumerate(found)
            ]
            yield torch.stack(columns, dim=1).reshape(-1, *self.row_shape)
            at += len(columns[0])

    def _columns_of_batches(self) -> Iterator[list[list[str] | Tensor]]:
        """Yield the names or numbers in each column, some rows at a time.

        Raises:
            ValueError: an entry is empty, or no number.
        """
        table = self._table
        if table.length == 0:
            return
        values = ", ".join(
            id_of(f"c{i}", table.types[i]) if part.names is None else name_sql(table, i)
            for i, part in zip(self._columns, self._ids, strict=True)
        )
        at = 0
        for batch in table.batches(f"SELECT {values} FROM {table.sql}"):
            found: list[list[str] | Tensor] = []
            for i, (column, part) in enumerate(zip(batch.columns, self._ids, strict=True)):
                if column.null_count > 0:
                    row = at + column.is_null().index(True).as_py()
                    self._refuse(i, row, part)
                numbers = part.names is None
                found.append(torch.from_numpy(np.array(column)) if numbers else column.to_pylist())
            yield found
            at += batch.num_rows

    def _numbered(self, column: int, names: list[str], at: int) -> Tensor:
        known = self._ids[column].names or {}
        try:
            return torch.tensor([known[name] for name in names], dtype=torch.int64)
        except KeyError as error:
            row = next(r for r, name in enumerate(names) if name not in known)
            raise ValueError(
                f"{self._entry(column, at + row)} is {error.args[0]!r}, which is the name of no "
                f"node: it is not in the key column of the nodes."
            ) from None

    def _entry(self, column: int, row: int) -> str:
        return f"Row {row} of column {self._table.names[self._columns[column]]!r} of {self.name}"

    def _refuse(self, column: int, row: int, part: NodeIds) -> None:
        text = f"CAST(c{self._columns[column]} AS VARCHAR)"
        query = f"SELECT {text} FROM {self._table.sql} LIMIT 1 OFFSET {row}"
        ((found,),) = self._table.query(query)
        problem = f"is {found!r}, not a whole number" if found and found.strip() else "is empty"
        wanted = (
            f"ids are whole numbers. {HINT}" if part.names is None else "each must have a name."
        )
        raise ValueError(f"{self._entry(column, row)} {problem}, but {wanted}")
