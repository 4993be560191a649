"""The attributes of nodes, copied into array files and perhaps quantized on the way."""

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
from .rows import FileRows
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
