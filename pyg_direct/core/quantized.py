"""Tables of features in narrow numbers, which batches get as float32."""

from __future__ import annotations

import contextlib
import errno
import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .arguments import check_choice
from .lazy_tensor import RowTensor
from .private_torch import wrapper_tensor

NARROW = {"int8": torch.int8, "float16": torch.float16, "bfloat16": torch.bfloat16}
STEP_ELEMENTS = 1 << 22  # that are converted at a time
LARGEST_INT8 = 127
NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class QuantizedTensor(RowTensor):
    """Rows of float32 [N, F] that are stored as int8 with a scale, as float16, or as bfloat16.

    An attribute of PyG data like any other: the loaders decode the rows that a batch needs while
    they gather them. Rows selected by ``x[ids]`` are decoded alone; any other computation decodes
    all rows first, 4 bytes an element, and forgets them afterwards.

    Args:
        values: int8, float16 or bfloat16 [N, F], contiguous.
        scale: float32, only for int8: [F] factors of the columns, or [N, 1] of the rows. An
            element is its int8 times its factor, rounded once.

    Raises:
        ValueError: another dtype or shape, or a scale that is missing or superfluous.

    Example:
        >>> values = torch.tensor([[127, 0], [-127, 64]], dtype=torch.int8)
        >>> table = pyg_direct.QuantizedTensor(values, scale=torch.tensor([1 / 127, 0.5]))
        >>> table.dense()
        tensor([[ 1.,  0.],
                [-1., 32.]])
    """

    stored: Tensor
    scale: Tensor | None

    @staticmethod
    def __new__(cls, values: Tensor, scale: Tensor | None = None) -> QuantizedTensor:
        """Return the table; it keeps `values` as `stored`, and `scale`."""
        _check(values, scale)
        self: QuantizedTensor = wrapper_tensor(cls, values.shape, torch.float32, values.device)
        self.stored, self.scale = values, scale
        return self

    def dense(self) -> Tensor:
        """Return all rows, float32 [N, F]."""
        return decode(self.stored, self.scale)

    def rows_at(self, index: Any) -> Tensor:
        """Return the rows that an index of the first dimension selects, float32."""
        return decode(*_parts_of(self, index))

    def stored_parts(self) -> dict[str, Tensor | None]:
        """Return what is stored."""
        return {"stored": self.stored, "scale": self.scale}

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        """Say how it is stored."""
        return f"QuantizedTensor(size={tuple(self.shape)}, values={self.stored.dtype})"


def narrow_rows(table: QuantizedTensor, index: Tensor) -> QuantizedTensor:
    """Return a table of the rows `index`, as they are stored."""
    return QuantizedTensor(*_parts_of(table, index))


def _parts_of(table: QuantizedTensor, index: Any) -> tuple[Tensor, Tensor | None]:
    """Return what is stored of the rows that an index of the first dimension selects."""
    scale = table.scale
    if scale is not None and scale.dim() == 2:
        scale = scale[index]
    return table.stored[index], scale


def decode(values: Tensor, scale: Tensor | None) -> Tensor:
    """Return stored elements as float32."""
    wide = values.to(torch.float32)
    return wide if scale is None else wide.mul_(scale)


def _check(values: Tensor, scale: Tensor | None) -> None:
    name = f"{values.dtype} {list(values.shape)}"
    if values.dtype not in NARROW.values() or values.dim() != 2 or not values.is_contiguous():
        raise ValueError(
            f"values must be contiguous int8, float16 or bfloat16 of shape [N, F], got {name}."
        )
    if (scale is not None) != (values.dtype == torch.int8):
        raise ValueError(f"int8 needs a scale, and nothing else has one; got {name}.")
    shapes = [(values.size(1),), (values.size(0), 1)]
    if scale is not None and (scale.dtype != torch.float32 or tuple(scale.shape) not in shapes):
        raise ValueError(
            f"The scale of {name} must be float32 of shape {list(shapes[0])} or {list(shapes[1])}, "
            f"got {scale.dtype} {list(scale.shape)}."
        )


def quantize(
    x: Tensor | np.ndarray[Any, Any],
    dtype: torch.dtype = torch.int8,
    *,
    scale: str = "column",
    out: str | os.PathLike[str] | None = None,
) -> QuantizedTensor:
    """Return features in half or a quarter of their bytes, for ``data.x = quantize(data.x)``.

    Batches get float32 all the same: the loaders decode rows while they gather them, on the CPU and
    on a GPU with the same bits.

    * int8: an element x becomes round(x / s), where s is the largest absolute value of its column
      (or row) divided by 127. The error is at most s / 2, that is 1/254 of that largest value, but
      for float32 rounding (a factor of 1 + 2^-22).
    * float16: the error is at most 2^-11 of an element, or 2^-25 for elements below 2^-14.
    * bfloat16: the error is at most 2^-8 of an element.

    Memory beyond `x` and the result: some ten megabytes.

    Args:
        x: floating-point [N, F]; may be mapped to a file.
        dtype: torch.int8, torch.float16 or torch.bfloat16.
        scale: for int8, one factor for each "column" (F in all) or "row" (4 more bytes a row).
        out: a new ``.npy`` file that the result is mapped to; None for memory. bfloat16 is stored
            as its 16 bits.

    Raises:
        ValueError: another shape or dtype, or elements that are not finite, or too large for
            float16 (the row is named).
        OSError: `out` cannot be written, such as on a full disk.

    Example:
        >>> narrow = pyg_direct.quantize(data.x)
        >>> narrow.dtype, narrow.stored.dtype
        (torch.float32, torch.int8)
        >>> bool(((narrow.dense() - data.x).abs() <= data.x.abs().amax(0) / 253).all())
        True
    """
    check_choice("scale", scale, ("column", "row"))
    table = torch.from_numpy(np.asarray(x)) if isinstance(x, np.ndarray) else x
    if not isinstance(table, Tensor) or table.dim() != 2 or not table.is_floating_point():
        got = f"{table.dtype} {list(table.shape)}" if isinstance(table, Tensor) else type(x)
        raise ValueError(f"x must be floating-point of shape [N, F], got {got}.")
    if dtype not in NARROW.values():
        raise ValueError(f"dtype must be torch.int8, float16 or bfloat16, got {dtype}.")
    table = table.detach()
    factors = _factors(table, dtype, scale)
    values = new_table(tuple(table.shape), dtype, out)
    for first, last in _steps(table):
        divisor = factors[first:last] if scale == "row" else factors
        values[first:last] = encode(table[first:last], dtype, divisor)
    return QuantizedTensor(values, factors if dtype == torch.int8 else None)


def encode(rows: Tensor, dtype: torch.dtype, factors: Tensor | None) -> Tensor:
    """Return floating-point rows as they are stored; the inverse of `decode` but for rounding.

    Args:
        rows: [n, F], finite (see `magnitudes`).
        dtype: one of NARROW.
        factors: for int8, of the columns [F] or of these rows [n, 1].
    """
    rows = rows.to(torch.float32)
    if dtype != torch.int8:
        return rows.to(dtype)
    assert factors is not None
    # A column or row of zeros has the factor 0.
    scaled = torch.where(factors > 0, rows / factors, 0.0).round_()
    return scaled.clamp_(-LARGEST_INT8, LARGEST_INT8).to(torch.int8)


def magnitudes(rows: Tensor, dtype: torch.dtype, first: int) -> Tensor:
    """Return the absolute values of rows [n, F] as float32, which `dtype` can hold.

    Raises:
        ValueError: one is not finite, or too large; the row is named, counted from `first` on.
    """
    limit = torch.finfo(dtype).max if dtype.is_floating_point else torch.finfo(torch.float32).max
    sizes = rows.to(torch.float32).abs()
    bad = ~(sizes <= limit).all(dim=1)
    if bad.any():
        row = first + int(bad.nonzero()[0])
        raise ValueError(
            f"Row {row} of x has an element that is not finite, or above {limit:g}; such cannot be "
            f"stored. Replace it first: torch.nan_to_num(x)."
        )
    return sizes


def factors_of(largest: Tensor) -> Tensor:
    """Return the factors of int8 for the largest absolute values of columns or rows."""
    return largest / LARGEST_INT8


def _factors(table: Tensor, dtype: torch.dtype, scale: str) -> Tensor:
    """Return the factors of the columns [F] or rows [N, 1], after checking all elements."""
    largest = torch.zeros(table.size(1), dtype=torch.float32)
    by_row = largest.new_zeros((table.size(0), 1) if scale == "row" else (0, 1))
    for first, last in _steps(table):
        sizes = magnitudes(table[first:last], dtype, first)
        if scale == "row" and sizes.size(1) > 0:
            by_row[first:last] = sizes.amax(dim=1, keepdim=True)
        else:
            largest = torch.maximum(largest, sizes.amax(dim=0))
    return factors_of(by_row if scale == "row" else largest)


def _steps(table: Tensor) -> Iterator[tuple[int, int]]:
    rows = max(1, STEP_ELEMENTS // max(1, table.size(1)))
    for first in range(0, len(table), rows):
        yield first, min(first + rows, len(table))


def new_table(
    shape: tuple[int, ...], dtype: torch.dtype, path: str | os.PathLike[str] | None
) -> Tensor:
    """Return an empty table, in memory or mapped to a new ``.npy`` file.

    bfloat16, which NumPy lacks, is stored as its 16 bits. The file gets its blocks on the disk at
    once where the system offers that: a write through a map to a full disk kills the process.

    Raises:
        OSError: the file cannot be made, or the disk has not enough room for it. It is removed.
    """
    if path is None:
        return torch.empty(shape, dtype=dtype)
    kind = torch.empty(0, dtype=torch.int16 if dtype == torch.bfloat16 else dtype).numpy().dtype
    try:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
        _allocate(path)
    except OSError as error:
        if error.errno in NO_ROOM:
            with contextlib.suppress(OSError):
                os.unlink(path)
            needed = f"{kind.itemsize * math.prod(shape)} bytes are needed for"
            raise OSError(error.errno, f"{os.strerror(error.errno)}; {needed}", str(path)) from None
        raise
    return torch.from_numpy(array).view(dtype)


def open_table(path: str | os.PathLike[str], dtype: torch.dtype) -> Tensor:
    """Return a table that `new_table` has made, mapped from its file.

    Raises:
        OSError, EOFError, ValueError: the file is missing, cut off or something else.
    """
    np.load(path, mmap_mode="r")  # "r+" would make a file longer that was cut off
    return torch.from_numpy(np.load(path, mmap_mode="r+")).view(dtype)


def _allocate(path: str | os.PathLike[str]) -> None:
    """Give a file its blocks on the disk."""
    if not hasattr(os, "posix_fallocate"):  # macOS, Windows
        return
    with open(path, "r+b") as file:
        try:
            os.posix_fallocate(file.fileno(), 0, os.fstat(file.fileno()).st_size)
        except OSError as error:
            if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):  # a file system without it
                raise
