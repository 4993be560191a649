"""The attributes of nodes, copied into array files and perhaps quantized on the way."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ...quantized import NARROW, encode, factors_of, magnitudes
from ..arrays import Written, dtype_name, write_array
from ..header import ITEM_BYTES, ArrayFile
from ..progress import Told
from ..save import FileNames
from .journal import Journal
from .rows import Rows
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
        feature_dtype: what a table of floats is stored as; None as it is.
    """

    def __init__(
        self, rows: Rows, count: int, names: FileNames, name: str, feature_dtype: str | None
    ) -> None:
        self._rows, self._count, self._name = rows, count, name
        quantizes = len(rows.row_shape) == 1 and rows.dtype.is_floating_point
        self._narrow = NARROW[feature_dtype] if quantizes and feature_dtype else None
        self._dtype = self._narrow or rows.dtype
        self.file = names.new(name)
        self._scale_file = names.new(f"{name}_scale") if self._narrow == torch.int8 else None

    @property
    def num_bytes(self) -> int:
        """Size of the file."""
        return self._count * self._row_bytes

    @property
    def num_rows(self) -> int:
        """How often its rows are read."""
        return self._count * (2 if self._scale_file else 1)

    @property
    def _row_bytes(self) -> int:
        return math.prod(self._rows.row_shape) * ITEM_BYTES[dtype_name(self._dtype)]

    def write(self, workplace: Workplace, journal: Journal, told: Told) -> ArrayFile:
        """Write the file, or the rest of it; return its entry in the header.

        Raises:
            ValueError: another number of rows, or elements that cannot be stored.
            OSError: it cannot be read or written.
        """
        factors = self._factors(journal, told) if self._scale_file else None
        written = Written(*(journal.get(self.file) or (0, 0)))
        told(written.rows)
        shape, dtype = self._rows.row_shape, dtype_name(self._dtype)
        with writer_behind(workplace.graph / self.file, dtype, shape, written) as writer:
            for i, rows in enumerate(self._read(written.rows), start=1):
                if self._narrow is None:
                    writer.write(rows)
                else:
                    magnitudes(rows, self._narrow, writer.num_rows)
                    writer.write(encode(rows, self._narrow, factors))
                told(len(rows))
                if i % STEPS_A_RECORD == 0:
                    journal.record(self.file, writer.sync())
            journal.record(self.file, writer.sync())
            if writer.num_rows != self._count:
                raise ValueError(
                    f"{self._rows.name} has {writer.num_rows} entries, but there are {self._count} "
                    f"nodes."
                )
            entry = replace(writer.close(), quantized=self._narrow is not None)
        if factors is None:
            return entry
        assert self._scale_file is not None
        scale = workplace.graph / self._scale_file
        scale.unlink(missing_ok=True)
        return replace(entry, scale=write_array(scale, factors))

    def _factors(self, journal: Journal, told: Told) -> Tensor:
        """Return the factor of each column, for which all rows are read."""
        known = journal.get(self._scale_file or "")
        if known is not None:
            told(self._count)
            return torch.tensor(known, dtype=torch.float32)
        largest, first = torch.zeros(self._rows.row_shape), 0
        for rows in self._read(0):
            sizes = magnitudes(rows, torch.int8, first)
            largest = torch.maximum(largest, sizes.amax(dim=0))
            first += len(rows)
            told(len(rows))
        factors = factors_of(largest)
        journal.record(self._scale_file or "", factors.tolist())
        return factors

    def _read(self, first: int) -> Iterator[Tensor]:
        row_bytes = math.prod(self._rows.row_shape) * self._rows.dtype.itemsize
        return self._rows.read(first, max(1, STEP_BYTES // row_bytes))
