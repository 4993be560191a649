"""Arrays in ``.npy``, ``.npz`` and ``.pt`` files, read from front to back, some rows at a time."""

from __future__ import annotations

import contextlib
import math
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

from ...core.pyg import graph_classes
from .rows import FileRows

STEP_BYTES = 1 << 20  # that are read over at a time


class ArrayRows(FileRows):
    """An array in the format of NumPy's ``.npy``, alone or in an ``.npz``."""

    def __init__(self, name: str, array: _NpyArray) -> None:
        shape = array.shape
        super().__init__(name, _torch_dtype(array.dtype, name), shape[1:], shape[0])
        self._array = array

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        assert self.length is not None
        with self._array.open_at(first * math.prod(self.row_shape)) as file:
            for a in range(first, self.length, step):
                rows = np.empty((min(step, self.length - a), *self.row_shape), self._array.dtype)
                _fill(file, rows, self.name)
                yield _native(rows)


class PairRows(FileRows):
    """An array [2, E] of that format, read as [E, 2]."""

    def __init__(self, name: str, array: _NpyArray) -> None:
        super().__init__(name, _torch_dtype(array.dtype, name), (2,), array.shape[1])
        self._array = array

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        length = self._array.shape[1]
        with (
            self._array.open_at(first) as source,
            self._array.open_at(length + first) as target,
        ):
            for a in range(first, length, step):
                pairs = np.empty((2, min(step, length - a)), self._array.dtype)
                _fill(source, pairs[0], self.name)
                _fill(target, pairs[1], self.name)
                yield _native(pairs).t()


class TensorRows(FileRows):
    """A tensor of a ``.pt`` file, which is mapped into memory."""

    def __init__(self, name: str, tensor: Tensor) -> None:
        super().__init__(name, tensor.dtype, tuple(tensor.shape[1:]), len(tensor))
        self._tensor = tensor

    def read(self, first: int, step: int) -> Iterator[Tensor]:
        """Yield rows."""
        for a in range(first, len(self._tensor), step):
            yield self._tensor[a : a + step]


class _NpyArray:
    """Header of an ``.npy`` file, and how to open it at its elements.

    Args:
        name: for errors.
        opened: opens the file at its front.
        num_bytes: its size.

    Raises:
        ValueError: it is not such a file, or shorter than its header says.
        OSError: it cannot be opened.
    """

    def __init__(self, name: str, opened: Callable[[], BinaryIO], num_bytes: int) -> None:
        self._name, self._opened = name, opened
        with opened() as file:
            try:
                version = np.lib.format.read_magic(file)
                read = (
                    np.lib.format.read_array_header_1_0
                    if version == (1, 0)
                    else np.lib.format.read_array_header_2_0
                )
                self.shape, self.column_major, self.dtype = read(file)
            except OSError:
                raise
            except Exception as error:  # whatever zip, or the parser of the header raise
                raise ValueError(f"{name} is not a NumPy array: {error}.") from None
            self._offset = file.tell()
        if self.dtype.hasobject or self.dtype.kind not in "biuf":
            raise ValueError(f"{name} must hold booleans, integers or floats, got {self.dtype}.")
        if not self.shape:
            raise ValueError(f"{name} is a single number, not an array.")
        if min(self.shape) < 0:
            raise ValueError(f"{name} is not a NumPy array: its header has the shape {self.shape}.")
        missing = self._offset + math.prod(self.shape) * self.dtype.itemsize - num_bytes
        if missing > 0:
            raise ValueError(f"{name} ends {missing} bytes early: the file was cut off.")

    def open_at(self, element: int) -> BinaryIO:
        """Open the file at one of its elements."""
        file = self._opened()
        position = self._offset + element * self.dtype.itemsize
        if not isinstance(file, zipfile.ZipExtFile):
            file.seek(position)
            return file
        # From Python 3.12 on, `seek` in an array that is not compressed ends the check of its CRC.
        for begin in range(0, position, STEP_BYTES):
            _fill(file, np.empty(min(STEP_BYTES, position - begin), np.uint8), self._name)
        return file


def open_npy(path: Path, are_ends: bool) -> FileRows:
    """Open an ``.npy`` file; see `open_rows`."""

    def opened() -> BinaryIO:
        return open(path, "rb", buffering=0)

    return _npy_rows(_NpyArray(str(path), opened, path.stat().st_size), str(path), are_ends)


def _npy_rows(array: _NpyArray, name: str, are_ends: bool) -> FileRows:
    pairs = are_ends and len(array.shape) == 2 and array.shape[0] == 2
    if array.column_major and len(array.shape) > 1:
        if not are_ends:
            raise ValueError(
                f"{name} is stored by columns; save it by rows: np.save(file, "
                f"np.ascontiguousarray(array))."
            )
        array.shape = array.shape[::-1]  # [E, 2] by columns is [2, E] by rows
        pairs = not pairs and array.shape[0] == 2
    return PairRows(name, array) if pairs else ArrayRows(name, array)


def open_npz(path: Path, key: str | None, wanted: str, are_ends: bool) -> FileRows:
    """Open an ``.npz`` file; `wanted` is the array without a `key`, if it is there."""
    try:
        with zipfile.ZipFile(path) as archive:
            sizes = {
                info.filename.removesuffix(".npy"): info.file_size
                for info in archive.infolist()
                if info.filename.endswith(".npy")
            }
    except zipfile.BadZipFile as error:
        raise ValueError(f"{path} is not an .npz file: {error}.") from None
    found = _chosen([*sizes], key, wanted, path)

    def opened() -> BinaryIO:
        return zipfile.ZipFile(path).open(f"{found}.npy")  # type: ignore[return-value]

    name = f"{found} of {path}"
    return _npy_rows(_NpyArray(name, opened, sizes[found]), name, are_ends)


def open_pt(path: Path, key: str | None, wanted: str, are_ends: bool) -> FileRows:
    """Open a ``.pt`` file; `wanted` is the tensor without a `key`, if it is there."""
    content = tensors_of(load(path))
    name = str(path)
    if isinstance(content, dict):
        found = _chosen([k for k in content if isinstance(k, str)], key, wanted, path)
        content, name = content[found], f"{found} of {path}"
    if not isinstance(content, Tensor) or content.dim() == 0 or content.layout != torch.strided:
        found = getattr(content, "layout", type(content).__name__)
        raise ValueError(f"{name} must be a dense tensor of rows, got {found}.")
    if are_ends and content.dim() == 2 and content.size(0) == 2:
        content = content.t()
    return TensorRows(name, content)


def load(path: Path) -> Any:
    """Return the content of a ``.pt`` file, mapped into memory where its format allows that.

    Raises:
        ValueError: it is not such a file, or holds more than tensors and graphs of PyG.
    """
    allowed = getattr(torch.serialization, "safe_globals", None)  # from torch 2.5 on
    try:
        with contextlib.nullcontext() if allowed is None else allowed(graph_classes()):
            try:
                return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
            except RuntimeError:  # a file of torch before 1.6, which cannot be mapped
                return torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:  # whatever pickle, zip or torch raise
        other = re.search(r"GLOBAL ([\w.]+)", str(error))
        reason = f"It holds a {other[1]}" if other else str(error).partition("\n")[0]
        raise ValueError(
            f"{path} must hold a tensor, a dict of tensors, or a graph of PyG, as torch.save "
            f"writes it, and nothing that may run code when it is read (weights_only=True). Load "
            f"it where you trust it, and pyg_direct.save(data, path). {reason}."
        ) from None


def tensors_of(content: Any) -> Any:
    """Return the tensors of a graph of PyG by name, or "TYPE/name"; anything else unchanged."""
    if isinstance(content, (Data, HeteroData, tuple)):
        content = graph_of_file(content).to_dict()
    if not isinstance(content, dict):
        return content
    found = {}
    for key, value in content.items():
        if isinstance(value, dict):
            kind = key if isinstance(key, str) else "/".join(map(str, key))
            found.update({f"{kind}/{name}": tensor for name, tensor in value.items()})
        else:
            found[key] = value
    return found


def graph_of_file(content: Any) -> Any:
    """Return the graph of a file, which may be that of PyG's `InMemoryDataset`.

    Raises:
        ValueError: there are several graphs, or none.
    """
    if isinstance(content, tuple) and 2 <= len(content) <= 3:
        data, slices = content[:2]
        counts = [len(ends) - 1 for ends in _leaves(slices)]
        if max(counts, default=1) > 1:
            raise ValueError(
                f"the file is a data set of {max(counts)} graphs. Convert one graph: "
                f"pyg_direct.save(dataset[0], path), or all of them joined by PyG's Batch."
            )
        kind = content[2] if len(content) == 3 else Data
        content = kind.from_dict(data) if isinstance(data, dict) else data
    if not isinstance(content, (Data, HeteroData)):
        raise ValueError(f"the file holds no graph of PyG, but a {type(content).__name__}.")
    return content


def _leaves(slices: Any) -> Iterator[Any]:
    if isinstance(slices, dict):
        for part in slices.values():
            yield from _leaves(part)
    elif slices is not None:
        yield slices


def _chosen(keys: Sequence[str], key: str | None, wanted: str, path: Path) -> str:
    """Return the name of the array of a file to read."""
    if key is None and wanted not in keys and len(keys) == 1:
        return keys[0]
    found = wanted if key is None else key
    if found not in keys:
        raise ValueError(f"{path} has no {found!r}; it has {', '.join(keys)}. Name one: FILE:KEY.")
    return found


def _torch_dtype(dtype: np.dtype[Any], name: str) -> torch.dtype:
    try:
        return torch.from_numpy(np.empty(0, dtype.newbyteorder("="))).dtype
    except TypeError:
        raise ValueError(f"{name} holds {dtype}, which torch has not.") from None


def _fill(file: BinaryIO, rows: npt.NDArray[Any], name: str) -> None:
    """Read exactly as many bytes as `rows` has; a read may be short."""
    rest = memoryview(rows.reshape(-1).view(np.uint8).data)
    while len(rest) > 0:
        try:
            count = file.readinto(rest)  # type: ignore[attr-defined]
        except (zipfile.BadZipFile, zlib.error, EOFError) as error:
            raise ValueError(f"{name} is damaged: {error}.") from None
        if not count:
            raise ValueError(f"{name} ends {len(rest)} bytes early: the file was cut off.")
        rest = rest[count:]


def _native(rows: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(rows.astype(rows.dtype.newbyteorder("="), copy=False))
