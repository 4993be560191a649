"""The array files of a saved graph: writing, mapping into memory, checking."""

from __future__ import annotations

import math
import mmap
import os
import stat
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..core.threads import available_cores
from .header import ITEM_BYTES, ArrayFile, InvalidGraphFileError

STEP_BYTES = 16 << 20  # of a file that are written or summed up at a time
MAP_NORESERVE = 0x4000  # on Linux: a map may be longer than memory and swap together


class Written(NamedTuple):
    """How much of an array file is on disk."""

    rows: int
    crc32: int


class ArrayWriter:
    """Writes one array file from front to back, with its checksum.

    Args:
        path: the new file.
        dtype: of its elements, as torch names it.
        row_shape: shape of one entry along the first dimension.
        written: what `sync` returned, to resume after what the file holds; anything after
            it is dropped.

    Raises:
        OSError: the file cannot be written, such as on a full disk.
        InvalidGraphFileError: it is shorter than `written` says.
    """

    def __init__(
        self,
        path: Path,
        dtype: str,
        row_shape: tuple[int, ...] = (),
        written: Written | None = None,
    ) -> None:
        self._path, self._dtype, self._row_shape = path, dtype, row_shape
        self._rows, self._crc32 = written or Written(0, 0)
        mode = "xb" if written is None else "r+b"
        self._file = open(path, mode, buffering=0)  # noqa: SIM115 - closed by `close`
        if written is None:
            return
        length = written.rows * math.prod(row_shape) * ITEM_BYTES[dtype]
        if os.fstat(self._file.fileno()).st_size < length:
            self._file.close()
            raise InvalidGraphFileError(f"{path} has less than the {length} bytes written to it.")
        self._file.truncate(length)
        self._file.seek(length)

    def write(self, rows: npt.NDArray[Any] | Tensor) -> None:
        """Append rows of the array's dtype and row shape."""
        array = to_numpy(rows) if isinstance(rows, Tensor) else rows
        if array.shape[1:] != self._row_shape or array.dtype.itemsize != ITEM_BYTES[self._dtype]:
            raise ValueError(
                f"Rows of {self._dtype} {self._row_shape} go into {self._path.name}, got "
                f"{array.dtype} {array.shape[1:]}."
            )
        content = memoryview(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        for first in range(0, len(content), STEP_BYTES):
            piece = content[first : first + STEP_BYTES]
            self._crc32 = zlib.crc32(piece, self._crc32)
            while len(piece) > 0:  # a write may be short
                piece = piece[self._file.write(piece) :]
        self._rows += len(array)

    @property
    def num_rows(self) -> int:
        """How many rows the file has."""
        return self._rows

    @property
    def dtype(self) -> str:
        """Of its elements, as torch names it."""
        return self._dtype

    def sync(self) -> Written:
        """Sync what was written to disk, and return how much that is."""
        os.fsync(self._file.fileno())
        return Written(self._rows, self._crc32)

    def close(self) -> ArrayFile:
        """Finish and sync the file, and return its entry in the header."""
        self.sync()
        self._file.close()
        shape = (self._rows, *self._row_shape)
        return ArrayFile(self._path.name, self._dtype, shape, self._crc32)

    def __enter__(self) -> ArrayWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._file.close()


def write_array(path: Path, values: npt.NDArray[Any] | Tensor) -> ArrayFile:
    """Write one array; a scalar is stored with the shape [].

    Raises:
        OSError: the file cannot be written.
    """
    tensor = torch.from_numpy(np.asarray(values)) if not isinstance(values, Tensor) else values
    with ArrayWriter(path, dtype_name(tensor.dtype), tuple(tensor.shape[1:])) as writer:
        writer.write(tensor.reshape(-1) if tensor.dim() == 0 else tensor)
        entry = writer.close()
    return replace(entry, shape=tuple(tensor.shape))


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype that array files can have.

    Raises:
        ValueError: they cannot.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in ITEM_BYTES:
        raise ValueError(f"Saved graphs hold arrays of {', '.join(ITEM_BYTES)}; got {name}.")
    return name


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Return a tensor as an array; bfloat16, which NumPy lacks, as its 16 bits."""
    tensor = tensor.detach().cpu().contiguous()
    return (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def map_array(folder: Path, array: ArrayFile) -> Tensor:
    """Return an array as a tensor that is mapped to its file.

    The pages are shared with all that map the file, until they are written to: what is written
    stays in this process and never reaches the file.

    Raises:
        InvalidGraphFileError: no such file, or one of another length.
        OSError: the file cannot be opened or mapped.
    """
    path = folder / array.file
    handle = _open_array(path)
    try:
        length = os.fstat(handle).st_size
        if length != array.num_bytes:
            raise InvalidGraphFileError(
                f"{path} has {length} bytes, but {array.dtype} {list(array.shape)} takes "
                f"{array.num_bytes}: it was cut off or replaced."
            )
        dtype: torch.dtype = getattr(torch, array.dtype)
        if array.num_bytes == 0:
            return torch.empty(array.shape, dtype=dtype)
        if sys.platform == "linux":
            private = mmap.MAP_PRIVATE | MAP_NORESERVE
            protection = mmap.PROT_READ | mmap.PROT_WRITE
            mapped = mmap.mmap(handle, array.num_bytes, flags=private, prot=protection)
        else:
            mapped = mmap.mmap(handle, array.num_bytes, access=mmap.ACCESS_COPY)
    finally:
        os.close(handle)
    return torch.frombuffer(mapped, dtype=dtype).reshape(array.shape)


def _open_array(path: Path) -> int:
    """Open an array file for reading; links are not followed, and pipes do not block.

    Raises:
        InvalidGraphFileError: there is none, or something else than a regular file.
        OSError: it cannot be opened.
    """
    flags = os.O_RDONLY
    for name in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        raise InvalidGraphFileError(f"{path} is missing.") from None
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise InvalidGraphFileError(f"{path} is not a regular file: it was replaced.")
    return handle


def verify_arrays(folder: Path, arrays: list[ArrayFile]) -> None:
    """Read all files and compare their checksums.

    Raises:
        InvalidGraphFileError: one is not as it was written.
    """
    with ThreadPoolExecutor(available_cores()) as pool:
        for array, found in zip(
            arrays, pool.map(lambda array: checksum(folder / array.file), arrays), strict=True
        ):
            if found != array.crc32:
                raise InvalidGraphFileError(
                    f"{folder / array.file} is damaged: its checksum is {found:08x}, and was "
                    f"{array.crc32:08x} when it was written. Save or convert the graph again."
                )


def checksum(path: Path) -> int:
    """Return the CRC-32 of an array file; raises what `_open_array` does."""
    found = 0
    with open(_open_array(path), "rb", buffering=0) as file:
        while piece := file.read(STEP_BYTES):
            found = zlib.crc32(piece, found)
    return found
