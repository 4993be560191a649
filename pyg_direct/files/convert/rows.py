"""What all arrays in files have in common, of whatever format."""

from __future__ import annotations

import abc
from collections.abc import Iterator

import torch
from torch import Tensor


class FileRows(abc.ABC):
    """An array in a file.

    Args:
        name: of the file and the array, for errors.
        dtype: of its elements.
        row_shape: shape of one entry along the first dimension.
        length: how many of those there are; None if only a reader of the file finds out.
    """

    def __init__(
        self, name: str, dtype: torch.dtype, row_shape: tuple[int, ...], length: int | None
    ) -> None:
        self.name, self.dtype, self.row_shape, self.length = name, dtype, row_shape, length

    @abc.abstractmethod
    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield the rows from `first` on, `step` at a time (the last time, what is left).

        Raises:
            ValueError: the file holds something else than it seemed to.
            OSError: it cannot be read.
        """

    def counted(self) -> int:
        """Return the number of rows, for which the file may have to be read."""
        if self.length is None:
            self.length = sum(len(rows) for rows in self.read(0, 1 << 20))
        return self.length
