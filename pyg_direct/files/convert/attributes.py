"""Attributes of nodes and edges as they are stored: cast, filled, or made of lists of ids."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from ..arrays import dtype_name
from .opening import open_rows
from .rows import FileRows
from .spec import ArraySource


def open_attribute(source: ArraySource, name: str, count: int | None) -> FileRows:
    """Look into a file of an attribute.

    Args:
        source: where it is.
        name: of the attribute.
        count: of the nodes or edges, if it is known.

    Raises:
        ValueError: no such array, one that cannot be stored, or of another length than `count`.
        OSError: the file cannot be opened.
    """
    rows = open_rows(source, name)
    if source.lists_ids:
        if count is None:
            raise ValueError(f"{name} lists ids of nodes, whose number is not known: give it.")
        return MaskRows(rows, count)
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
        raise ValueError(
            f"The attribute {name!r} needs {count} entries, but {rows.name} has {rows.length}."
        )
    return rows


class CastRows(FileRows):
    """Rows of another dtype, with something in the place of NaN."""

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
    """Bool [count], True for the ids that a file lists; holds a byte a node in memory."""

    def __init__(self, ids: FileRows, count: int) -> None:
        super().__init__(ids.name, torch.bool, (), count)
        self._ids = ids

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        assert self.length is not None
        mask = torch.zeros(self.length, dtype=torch.bool)
        for ids in self._ids.read(0, 1 << 20):
            mask[check_range(ids.reshape(-1), self.length, self.name, 0)] = True
        for a in range(first, self.length, step):
            yield mask[a : a + step]


def check_range(ids: Tensor, end: int, name: str, first: int) -> Tensor:
    """Return ids as int64, if they are in [0, end).

    Raises:
        ValueError: one is not, or they are not integers; the entry is named, from `first` on.
    """
    if ids.is_floating_point() or ids.dtype == torch.bool:
        raise ValueError(f"{name} must hold ids, which are integers, got {ids.dtype}.")
    wide = ids.to(torch.int64)  # of uint64, too large ids become negative
    if len(wide) > 0 and (int(wide.min()) < 0 or int(wide.max()) >= end):
        at = int(((wide < 0) | (wide >= end)).nonzero()[0])
        raise ValueError(
            f"Entry {first + at} of {name} is {ids[at].item()}, but ids must be in [0, {end})."
        )
    return wide
