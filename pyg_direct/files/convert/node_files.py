"""Stored forms of attributes, in array files: cast, filled, masks of ids, or quantized."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace

import torch
from torch import Tensor

from ...core.journal import Journal
from ...core.quantized import NARROW, encode, factors_of, magnitudes
from ..arrays import Written, dtype_name, write_array
from ..directory import FileNames
from ..header import ITEM_BYTES, ArrayFile
from ..progress import Advance
from .ids import HINT
from .opening import open_ids, open_rows
from .rows import FileRows
from .spec import ArraySource
from .table_rows import WantedRows
from .workplace import Workplace, writer_behind

STEP_BYTES = 32 << 20  # of an attribute that are copied at a time
STEPS_A_RECORD = 8  # copied before they are put on disk for certain


class NodeFile:
    """One attribute of the nodes of one type.

    Args:
        rows: where it is read from.
        count: number of nodes.
        names: makes the names of its files.
        name: of the attribute.
        stored: what a table of floats is stored as (None as it is), and whether int8 has a factor
            for each "column" or "row".
    """

    def __init__(
        self,
        rows: FileRows,
        count: int,
        names: FileNames,
        name: str,
        stored: tuple[str | None, str],
    ) -> None:
        feature_dtype, self._scale = stored
        self._rows, self._count, self._name = rows, count, name
        quantizes = len(rows.row_shape) == 1 and rows.dtype.is_floating_point
        self._narrow = NARROW[feature_dtype] if quantizes and feature_dtype else None
        self._dtype = self._narrow or rows.dtype
        self.file = names.new(name)
        self._scale_file = names.new(f"{name}_scale") if self._narrow == torch.int8 else None

    @property
    def num_bytes(self) -> int:
        """Size of the file, and of that of the factors of rows."""
        return self._count * (self._row_bytes + 4 * self._by_row)

    @property
    def num_rows(self) -> int:
        """How often its rows are read."""
        return self._count * (2 if self._by_column else 1)

    @property
    def _by_row(self) -> bool:
        return self._scale_file is not None and self._scale == "row"

    @property
    def _by_column(self) -> bool:
        return self._scale_file is not None and self._scale == "column"

    @property
    def _row_bytes(self) -> int:
        return math.prod(self._rows.row_shape) * ITEM_BYTES[dtype_name(self._dtype)]

    def write(self, workplace: Workplace, journal: Journal, advance: Advance) -> ArrayFile:
        """Write the file, or the rest of it; return its entry in the header.

        Raises:
            ValueError: elements that cannot be stored.
            OSError: it cannot be read or written.
        """
        factors = self._factors(journal, advance) if self._by_column else None
        parts = [(self.file, dtype_name(self._dtype), self._rows.row_shape)]
        if self._by_row:
            parts.append((self._scale_file or "", "float32", (1,)))
        known = journal.get(self.file) or [(0, 0)] * len(parts)
        with ExitStack() as stack:
            writers = [
                stack.enter_context(
                    writer_behind(workplace.graph / name, dtype, shape, Written(*written))
                )
                for (name, dtype, shape), written in zip(parts, known, strict=True)
            ]
            first = writers[0].num_rows
            advance(first)
            for i, rows in enumerate(self._read(first), start=1):
                stored = self._stored(rows, writers[0].num_rows, factors)
                for writer, part in zip(writers, stored, strict=True):
                    writer.write(part)
                advance(len(rows))
                if i % STEPS_A_RECORD == 0:
                    journal.record(self.file, [writer.sync() for writer in writers])
            journal.record(self.file, [writer.sync() for writer in writers])
            entry, *scale = [writer.close() for writer in writers]
        if factors is not None:
            path = workplace.graph / (self._scale_file or "")
            path.unlink(missing_ok=True)
            scale = [write_array(path, factors)]
        return replace(entry, quantized=self._narrow is not None, scale=scale[0] if scale else None)

    def _stored(self, rows: Tensor, first: int, factors: Tensor | None) -> list[Tensor]:
        """Return rows as they are stored, and their factors if they have some of their own."""
        if self._narrow is None:
            return [rows]
        sizes = magnitudes(rows, self._narrow, first)
        if not self._by_row:
            return [encode(rows, self._narrow, factors)]
        factors = factors_of(sizes.amax(dim=1, keepdim=True))
        return [encode(rows, self._narrow, factors), factors]

    def _factors(self, journal: Journal, advance: Advance) -> Tensor:
        """Return the factor of each column, for which all rows are read."""
        known = journal.get(self._scale_file or "")
        if known is not None:
            advance(self._count)
            return torch.tensor(known, dtype=torch.float32)
        largest, first = torch.zeros(self._rows.row_shape, dtype=torch.float32), 0
        for rows in self._read(0):
            sizes = magnitudes(rows, torch.int8, first)
            largest = torch.maximum(largest, sizes.amax(dim=0))
            first += len(rows)
            advance(len(rows))
        factors = factors_of(largest)
        journal.record(self._scale_file or "", factors.tolist())
        return factors

    def _read(self, first: int) -> Iterator[Tensor]:
        row_bytes = math.prod(self._rows.row_shape) * self._rows.dtype.itemsize
        return self._rows.read(first, max(1, STEP_BYTES // row_bytes))


def open_attribute(source: ArraySource, asked: WantedRows) -> FileRows:
    """Open a file of an attribute.

    Args:
        source: where it is.
        asked: what the user says of it.

    Raises:
        ValueError: no such array, one that cannot be stored, or of another length than there are
            nodes or edges.
        OSError: the file cannot be opened.
    """
    name, count = asked.name, asked.size
    if source.lists_ids:
        if count is None:
            raise ValueError(f"{name} lists ids of nodes, whose number is not known: give it.")
        return MaskRows(open_ids(source, name, asked.ids, count), count)
    rows = open_rows(source, asked)
    if source.dtype is not None or source.missing is not None or source.flat:
        rows = CastRows(rows, source)
    try:
        dtype_name(rows.dtype)
    except ValueError as error:
        raise ValueError(
            f'{rows.name}: {error} Name another: "dtype" in the JSON file of --spec.'
        ) from None
    if math.prod(rows.row_shape) == 0:
        raise ValueError(f"{rows.name} has rows of no elements.")
    if count is not None and rows.length not in (None, count):
        near = rows.length is not None and abs(rows.length - count) == 1
        hint = " Is the first line of text names of its columns? --header or --no-header."
        raise ValueError(
            f"The attribute {name!r} needs {count} entries, but {rows.name} has {rows.length}."
            f"{hint * near}"
        )
    return rows


class CastRows(FileRows):
    """Rows of another dtype, with a value in place of NaN."""

    def __init__(self, rows: FileRows, source: ArraySource) -> None:
        dtype: torch.dtype = rows.dtype if source.dtype is None else getattr(torch, source.dtype)
        flat = source.flat and rows.row_shape == (1,)
        super().__init__(rows.name, dtype, () if flat else rows.row_shape, rows.length)
        self._rows, self._missing = rows, source.missing

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        at = first
        for rows in self._rows.read(first, step):
            yield self._cast(rows, at).reshape(-1, *self.row_shape)
            at += len(rows)

    def _cast(self, rows: Tensor, first: int) -> Tensor:
        if self._missing is not None and rows.is_floating_point():
            rows = torch.where(rows.isnan(), self._missing, rows)
        stored = rows.to(self.dtype)
        bad = _is_other(rows, stored)
        if bad.any():
            at = tuple(bad.nonzero()[0].tolist())
            raise ValueError(
                f"Row {first + at[0]} of {self.name} has {rows[at].item()}, which "
                f"{dtype_name(self.dtype)} cannot hold."
            )
        return stored


def _is_other(rows: Tensor, stored: Tensor) -> Tensor:
    """Return which elements another dtype cannot hold; floats may be rounded, and 2 is true."""
    if stored.dtype.is_floating_point:
        return stored.isinf() & ~rows.isinf()
    if rows.is_floating_point():
        whole = rows.to(torch.int64) if stored.dtype == torch.bool else stored
        return whole.to(rows.dtype) != rows
    wide = rows.to(torch.int64)  # of uint64, too large ones become negative
    other = (wide < 0) if not rows.dtype.is_signed else torch.zeros_like(wide, dtype=torch.bool)
    return other if stored.dtype == torch.bool else other | (stored.to(torch.int64) != wide)


class MaskRows(FileRows):
    """Bool [count], True for the ids that a file lists; holds two bytes a node in memory.

    A file of as many booleans, or zeros and ones, as there are nodes is a mask itself.
    """

    def __init__(self, ids: FileRows, count: int) -> None:
        super().__init__(ids.name, torch.bool, (), count)
        self._ids, self._count = ids, count
        if ids.row_shape not in ((), (1,)):
            raise ValueError(
                f"{ids.name} has {math.prod(ids.row_shape)} columns, where one of ids, or of zeros "
                f"and ones, is wanted: name it, FILE:COLUMN."
            )

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows.

        Raises:
            ValueError: neither ids nor a mask, or what could be both.
        """
        count = self._count
        listed, given = torch.zeros(2, count, dtype=torch.bool)
        at, is_mask, bad = 0, True, None
        for rows in self._ids.read(0, 1 << 20):
            ids = rows.reshape(-1)
            is_mask = is_mask and bool(((ids == 0) | (ids == 1)).all())
            if is_mask and at + len(ids) <= count:
                given[at : at + len(ids)] = ids == 1
            if bad is None:
                try:
                    found = check_range(ids, count, self.name, at, self._ids.first_ids[0])
                    listed[found] = True
                except ValueError as error:
                    bad = error
            at += len(ids)
        whole = is_mask and at == count
        if whole and (count > 2 or bad is not None):
            mask = given
        elif is_mask and (at > 2 or (whole and at == 2)):
            raise ValueError(
                f"{self.name} has {at} zeros and ones, which are hardly ids, and there are {count} "
                f"nodes: a mask has one entry for each node, a list of ids each id once."
            )
        elif bad is not None:
            raise bad
        else:
            mask = listed
        for a in range(first, count, step):
            yield mask[a : a + step]


def check_range(ids: Tensor, end: int, name: str, first: int, first_id: int = 0) -> Tensor:
    """Return ids as int64 from 0 on, if they are in [first_id, first_id + end).

    Raises:
        ValueError: one is not, or they are not integers; the entry is named, from `first` on.
    """
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{name} must hold ids, which are integers, got {ids.dtype}.")
    wide = ids.to(torch.int64)  # of uint64, too large ids become negative
    last = first_id + end
    if len(wide) > 0 and (int(wide.min()) < first_id or int(wide.max()) >= last):
        at = int(((wide < first_id) | (wide >= last)).nonzero()[0])
        raise ValueError(
            f"Entry {first + at} of {name} is {ids[at].item()}, but ids must be in [{first_id}, "
            f"{last}). {HINT}"
        )
    return wide if first_id == 0 else wide - first_id
