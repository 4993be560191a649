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
from .workplace import SORT

Ints = npt.NDArray[Any]

SOURCE_TIME = ""  # no attribute is called so
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
    """The layout of the table of an edge type.

    Args:
        spec: the edges.
        num_src: number of sources.
        num_dst: number of destinations.
        columns: attributes.
        memory_bytes: that DuckDB may use.
        time: name of the column that the edges of a destination are sorted by; `SOURCE_TIME` for
            the times of their sources; None for none.
    """

    spec: EdgeSpec
    num_src: int
    num_dst: int
    columns: Sequence[Column]
    memory_bytes: int
    time: str | None = None

    @property
    def by_source_time(self) -> bool:
        """Whether the edges have the times of their sources."""
        return self.time == SOURCE_TIME

    @property
    def time_column(self) -> int | None:
        """The column with the times, or None."""
        names = [column.name for column in self.columns]
        return names.index(self.time) if self.time in names else None

    @property
    def order(self) -> str:
        """What DuckDB sorts by: the times of edges are signed, but stored as unsigned bits."""
        if self.by_source_time:
            return "dst, time, number"
        if self.time_column is None:
            return "dst, number"
        dtype = self.columns[self.time_column].dtype
        sign = 1 << 8 * dtype.itemsize - 1 if dtype.is_signed else 0
        return f"dst, xor(a{self.time_column}, {sign}::{SQL_TYPES[dtype.itemsize]}), number"

    @property
    def attribute_bytes(self) -> int:
        """Of one edge."""
        return sum(column.width * column.dtype.itemsize for column in self.columns)

    @property
    def row_bytes(self) -> int:
        """Bytes of an edge that are sorted: its ids, its number and its attributes."""
        return self.attribute_bytes + 8 * self.by_source_time

    @property
    def file_bytes(self) -> int:
        """An upper estimate of the bytes of an edge in the file of the table."""
        ids = [np.dtype(narrow(end)).itemsize for end in (self.num_src, self.num_dst)]
        return sum(ids) + 4 + self.row_bytes

    @property
    def max_sorted(self) -> int:
        """Number of edges that are sorted in memory at a time."""
        return max(1, self.memory_bytes // 2 // (SORT_BYTES + 2 * self.row_bytes))


class EdgeTable:
    """A DuckDB file with the edges of one type.

    Args:
        path: of the file, new or left by an interrupted conversion.
        layout: of its table.
        source_time: int64 [num_src] with `SOURCE_TIME`.

    Raises:
        ImportError: DuckDB or pyarrow is missing.
    """

    def __init__(
        self, path: Path, layout: EdgeTableLayout, source_time: Ints | None = None
    ) -> None:
        self._layout = layout
        self._source_time = source_time
        self._database = convert_package("duckdb").connect(str(path))
        src, dst = (
            "INTEGER" if narrow(end) == np.int32 else "BIGINT"
            for end in (layout.num_src, layout.num_dst)
        )
        columns = "".join(f", a{i} {c.sql_type}" for i, c in enumerate(layout.columns))
        columns += ", time BIGINT" * layout.by_source_time
        for statement in (
            f"SET memory_limit = '{layout.memory_bytes // (1 << 20)}MiB'",
            f"SET temp_directory = '{_quoted(path.parent / SORT)}'",
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
        if self._source_time is not None:
            columns.append(pa.array(self._source_time[arrays[1]]))
            names.append("time")
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
        layout = self._layout
        attributes = [f"a{i}" for i in range(len(layout.columns))]
        kept = attributes + ["time"] * layout.by_source_time
        names = "".join(f", {name}" for name in kept)
        query = f"SELECT number, src, dst{names} FROM edges WHERE dst >= {first} AND dst < {last}"
        if layout.spec.deduplicate:
            firsts = "".join(f", arg_min({name}, number) AS {name}" for name in kept)
            query = (
                f"SELECT min(number) AS number, src, dst{firsts} FROM ({query}) GROUP BY src, dst"
            )
        if layout.spec.self_loops == "add":
            self._register_loops(first, last)
            query += f" UNION ALL SELECT {LOOPS}, node, node{names} FROM loops"
        names = "".join(f", {name}" for name in attributes)
        query = f"SELECT dst, src{names} FROM ({query}) ORDER BY {layout.order}"
        for batch in self._database.sql(query).to_arrow_reader(step):
            dst, src = (batch.column(i).to_numpy() for i in range(2))
            rest = [
                column.from_arrow(batch.column(2 + i)) for i, column in enumerate(layout.columns)
            ]
            yield dst, src, rest

    def _register_loops(self, first: int, last: int) -> None:
        """Create a table `loops` of the nodes [first, last), with times if edges have them."""
        pa = convert_package("pyarrow")
        loops = {"node": pa.array(np.arange(first, last))}
        if self._source_time is not None:
            loops["time"] = pa.array(self._source_time[first:last])
        self._database.register("loops", pa.table(loops))


def _quoted(path: Path) -> str:
    return str(path).replace("'", "''")
