"""The interface of arrays in files of all formats."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from .text import Format


class FileRows(abc.ABC):
    """An array in a file.

    Args:
        name: of the file and the array, for errors.
        dtype: of its elements.
        row_shape: shape of one entry along the first dimension.
        length: how many of those there are; None if only a reader of the file finds out.

    Attributes:
        first_ids: the id of the first node, in each column of ids.
        about: how many rows there are, or about how many.
        form: of edges, what the format of their file says of them.
        understood: which columns of a table they are, where that may be a surprise; "" elsewhere.
    """

    def __init__(
        self, name: str, dtype: torch.dtype, row_shape: tuple[int, ...], length: int | None
    ) -> None:
        self.name, self.dtype, self.row_shape, self.length = name, dtype, row_shape, length
        self.first_ids: tuple[int, ...] = (0, 0)
        self.about = length or 0
        self.form: Format | None = None
        self.understood = ""

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

    def _counted(self, parts: Iterable[Tensor], first: int) -> Iterator[Tensor]:
        """Yield rows; raise a ValueError at their end if their number is not the known one."""
        count = first
        for rows in parts:
            count += len(rows)
            yield rows
        if self.length is not None and count != max(first, self.length):
            raise ValueError(
                f"{self.name} has {count} entries, but says that it has {self.length}: it was cut "
                f"off or changed."
            )


def in_steps(parts: Iterable[Tensor], first: int, step: int) -> Iterator[Tensor]:
    """Yield rows of tensors from `first` on, `step` at a time (the last time, what is left)."""
    kept: list[Tensor] = []
    count, skip = 0, first
    for rows in parts:
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
