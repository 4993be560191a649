"""The edges of one type in a DuckDB file, which sorts them.

Edges are put in as they come, in pieces that are each brought into the order of destinations
roughly. So DuckDB, which knows the range of a column in every block of 122,880 rows, reads little
more than the edges of a range of destinations when it is asked for those.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...graph.coo_to_csc import narrow
from ..arrays import to_numpy
from .packages import convert_package
from .spec import EdgeSpec

Ints = npt.NDArray[Any]

REVERSED = 1 << 40  # above the numbers of edges that are given: those of their reverse,
LOOPS = 1 << 41  # and of the self-loops that are added
BUCKETS = 1 << 12  # ranges of destinations that a piece is ordered by
HISTOGRAM = 1 << 16  # ranges of destinations whose edges are counted
SORT_BYTES = 48  # that DuckDB takes to sort an edge, beyond its attributes, measured
SQL_TYPES = {1: "UTINYINT", 2: "USMALLINT", 4: "UINTEGER", 8: "UBIGINT"}


@dataclass(frozen=True)
class Column:
    """An attribute of edges."""

    name: str
    dtype: torch.dtype
    row_shape: tuple[int, ...]

    @property
    def width(self) -> int:
        """Elements of an edge."""
        return math.prod(self.row_shape)

    @property
    def sql_type(self) -> str:
        """Unsigned integers, so that all bits come back."""
        scalar = SQL_TYPES[self.dtype.itemsize]
        return scalar if self.width == 1 else f"{scalar}[{self.width}]"

    def to_arrow(self, rows: Tensor, order: Ints) -> Any:
        """Return rows of the attribute, in another order."""
        pa = convert_package("pyarrow")
        unsigned = f"u{self.dtype.itemsize}"
        bits = to_numpy(rows).reshape(len(rows), self.width)[order].view(unsigned).reshape(-1)
        if self.width == 1:
            return pa.array(bits)
        return pa.FixedSizeListArray.from_arrays(pa.array(bits), self.width)

    def from_arrow(self, column: Any) -> Tensor:
        """Return rows of the attribute."""
        flat = column if self.width == 1 else column.flatten()
        bits = torch.from_numpy(np.array(flat.to_numpy(zero_copy_only=False)))
        return bits.view(self.dtype).reshape(len(column), *self.row_shape)


@dataclass(frozen=True)
class EdgeTableLayout:
    """What the table of an edge type is like.

    Args:
        spec: the edges.
        num_src: number of sources.
        num_dst: number of destinations.
        columns: attributes.
        memory_bytes: that DuckDB may use.
    """

    spec: EdgeSpec
    num_src: int
    num_dst: int
    columns: Sequence[Column]
    memory_bytes: int

    @property
    def attribute_bytes(self) -> int:
        """Of one edge."""
        return sum(column.width * column.dtype.itemsize for column in self.columns)

    @property
    def file_bytes(self) -> int:
        """At most about so many does an edge take in the file of the table."""
        ids = [np.dtype(narrow(end)).itemsize for end in (self.num_src, self.num_dst)]
        return sum(ids) + 4 + self.attribute_bytes

    @property
    def max_sorted(self) -> int:
        """Number of edges that are sorted in memory at a time."""
        return max(1, self.memory_bytes // 2 // (SORT_BYTES + 2 * self.attribute_bytes))


class EdgeTable:
    """A DuckDB file with the edges of one type.

    Args:
        path: of the file, new or left by an interrupted conversion.
        layout: of its table.

    Raises:
        ImportError: DuckDB or pyarrow is missing.
    """

    def __init__(self, path: Path, layout: EdgeTableLayout) -> None:
        self._layout = layout
        self._database = convert_package("duckdb").connect(str(path))
        src, dst = (
            "INTEGER" if narrow(end) == np.int32 else "BIGINT"
            for end in (layout.num_src, layout.num_dst)
        )
        columns = "".join(f", a{i} {c.sql_type}" for i, c in enumerate(layout.columns))
        for statement in (
            f"SET memory_limit = '{layout.memory_bytes // (1 << 20)}MiB'",
            f"SET temp_directory = '{_quoted(path.parent / 'sort')}'",
            "SET preserve_insertion_order = false",
            "SET arrow_large_buffer_size = false",
            "CREATE TABLE IF NOT EXISTS ingested (edges BIGINT)",
            f"CREATE TABLE IF NOT EXISTS edges (number BIGINT, src {src}, dst {dst}{columns})",
        ):
            self._run(statement)

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    def _run(self, statement: str) -> list[tuple[Any, ...]]:
        """Run a statement to its end, and return its rows."""
        rows: list[tuple[Any, ...]] = self._database.execute(statement).fetchall()
        return rows

    def ingested(self) -> int:
        """Return how many edges of the input are in the file."""
        ((count,),) = self._run("SELECT coalesce(sum(edges), 0) FROM ingested")
        return int(count)

    def ingest(self, first: int, src: Tensor, dst: Tensor, attributes: Sequence[Tensor]) -> None:
        """Add edges of the input, all or none.

        Args:
            first: how many came before.
            src: int64 [n], checked.
            dst: int64 [n], checked.
            attributes: n rows of each column.
        """
        pa, spec = convert_package("pyarrow"), self._layout.spec
        source, target = src.numpy(), dst.numpy()
        number = np.arange(first, first + len(source))
        origin = np.arange(len(source))
        if spec.self_loops != "keep" or spec.symmetrise:
            others = np.flatnonzero(source != target)
            forward = origin if spec.self_loops == "keep" else others
            backward = others if spec.symmetrise else others[:0]
            origin = np.concatenate([forward, backward])
            number = np.concatenate([number[forward], number[backward] + REVERSED])
            source, target = (
                np.concatenate([a[forward], b[backward]])
                for a, b in ((source, target), (target, source))
            )
        # Of 16 bits, NumPy's stable sort is a radix sort.
        num_dst = self._layout.num_dst
        bucket = (target * min(BUCKETS, num_dst) // max(1, num_dst)).astype(np.uint16)
        order = np.argsort(bucket, kind="stable")
        arrays = [number[order], source[order], target[order]]
        for i, end in ((1, self._layout.num_src), (2, self._layout.num_dst)):
            arrays[i] = arrays[i].astype(narrow(end))
        columns = [pa.array(array) for array in arrays]
        columns += [
            column.to_arrow(rows, origin[order])
            for column, rows in zip(self._layout.columns, attributes, strict=True)
        ]
        names = ["number", "src", "dst", *(f"a{i}" for i in range(len(self._layout.columns)))]
        self._database.register("piece", pa.table(dict(zip(names, columns, strict=True))))
        self._run("BEGIN")
        self._run("INSERT INTO edges SELECT * FROM piece")
        self._run(f"INSERT INTO ingested VALUES ({len(src)})")
        self._run("COMMIT")
        self._database.unregister("piece")

    def partitions(self) -> list[int]:
        """Return the first destinations of ranges that are sorted one at a time, and the end."""
        num_dst, most = self._layout.num_dst, self._layout.max_sorted
        width = max(1, -(-num_dst // HISTOGRAM))
        found = self._run(f"SELECT dst // {width}, count(*) FROM edges GROUP BY ALL ORDER BY 1")
        cuts, held = [0], 0
        for bucket, count in found:
            first = bucket * width
            too_wide = first + width - cuts[-1] > most
            if (held + count > most or too_wide) and first > cuts[-1]:
                cuts += range(cuts[-1] + most, first, most)  # without any edges
                cuts.append(first)
                held = 0
            held += count
        cuts += range(cuts[-1] + most, num_dst, most)
        return [*cuts, num_dst]

    def sorted_edges(
        self, first: int, last: int, step: int
    ) -> Iterator[tuple[Ints, Ints, list[Tensor]]]:
        """Yield (destinations, sources, attributes) of the edges to [first, last) in CSC order."""
        names = "".join(f", a{i}" for i in range(len(self._layout.columns)))
        query = f"SELECT number, src, dst{names} FROM edges WHERE dst >= {first} AND dst < {last}"
        if self._layout.spec.deduplicate:
            firsts = "".join(
                f", arg_min(a{i}, number) AS a{i}" for i in range(len(self._layout.columns))
            )
            query = (
                f"SELECT min(number) AS number, src, dst{firsts} FROM ({query}) GROUP BY src, dst"
            )
        if self._layout.spec.self_loops == "add":
            query += f" UNION ALL SELECT {LOOPS}, range, range FROM range({first}, {last})"
        query = f"SELECT dst, src{names} FROM ({query}) ORDER BY dst, number"
        for batch in self._database.sql(query).to_arrow_reader(step):
            dst, src = (batch.column(i).to_numpy() for i in range(2))
            rest = [
                column.from_arrow(batch.column(2 + i))
                for i, column in enumerate(self._layout.columns)
            ]
            yield dst, src, rest


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
