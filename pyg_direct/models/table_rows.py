"""Where the rows of a table go while it is computed."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core.quantized import open_table


class OwnRows:
    """A table of which this process computes all rows.

    Args:
        table: all rows, not computed yet.
        dim: of the rows.
    """

    def __init__(self, table: Tensor, dim: int) -> None:
        self._table, self._dim = table, dim

    def write(self, first: int, rows: Tensor) -> None:
        """Write a run of rows."""
        self._table.narrow(self._dim, first, rows.size(self._dim)).copy_(rows)

    def table(self) -> Tensor:
        """Return the table."""
        return self._table


class SharedRows:
    """A table in a file, of which each rank computes some rows.

    They are written to the file, not through a map of it: on network file systems, two machines
    that change parts of one page of a map lose what one of them wrote. The table is mapped once all
    ranks have written.

    Args:
        path: of a file that `core.quantized.new_table` has made.
        dtype: of the table.
    """

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        array = np.load(path, mmap_mode="r")
        self.path, self._dtype = path, dtype
        self._begin: int = array.offset
        self._row_bytes = array.nbytes // max(1, len(array))

    def write(self, first: int, rows: Tensor) -> None:
        """Write a run of rows. Several threads may do so at a time."""
        if rows.numel() == 0:
            return
        stored = rows.to("cpu", self._dtype).contiguous()
        stored = stored.as_strided((stored.numel(),), (1,)).view(torch.uint8)  # one row: any stride
        with open(self.path, "r+b") as file:
            file.seek(self._begin + first * self._row_bytes)
            file.write(stored.numpy().data)

    def table(self) -> Tensor:
        """Return the table, once all ranks have written their rows."""
        return open_table(self.path, self._dtype)


Rows: TypeAlias = OwnRows | SharedRows
