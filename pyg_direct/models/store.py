"""Where the rows of layers lie: in memory, or in files that a later run can go on with."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..core.quantized import QuantizedTensor

STATE, JOURNAL = "state.json", "finished.npy"
STEP_BYTES = 1 << 24  # of a tensor that are summed up at a time


class Store:
    """Makes tables, and notes which tasks are finished.

    With a folder, tables are ``.npy`` files in it and finished tasks are marks in another file. The
    rows of a task are written before its mark, both through memory maps: what a killed process
    wrote is kept by the operating system. (After a power failure, files may be incomplete.)

    Args:
        folder: where files go; None for a temporary folder, which `close` removes.
        checksum: of all that the results depend on.
        tasks: number of tasks.
        resume: go on with what the folder holds.

    Raises:
        ValueError: `resume`, and the folder was begun with another checksum.
    """

    def __init__(self, folder: Path | None, checksum: int, tasks: int, resume: bool) -> None:
        self._temporary = folder is None
        self.folder = Path(tempfile.mkdtemp(prefix="pyg_direct-")) if folder is None else folder
        state = {"checksum": checksum, "tasks": tasks, "format": 1}
        known = self._known_state()
        if resume and known is not None and known != state:
            raise ValueError(
                f"{self.folder} was begun with another model, other data or other arguments, so it "
                f"cannot be resumed. Remove it, or pass resume=False to begin anew."
            )
        self.resumed = resume and known is not None
        if not self.resumed:
            if not self._temporary:
                shutil.rmtree(self.folder, ignore_errors=True)
                self.folder.mkdir(parents=True)
            new_file(self.folder / JOURNAL, (tasks,), torch.uint8)[:] = 0
            partial = self.folder / f"{STATE}.part"
            partial.write_text(json.dumps(state))
            partial.rename(self.folder / STATE)  # from here on the folder can be resumed
        self.finished = torch.from_numpy(np.load(self.folder / JOURNAL, mmap_mode="r+"))

    def _known_state(self) -> Any:
        try:
            return json.loads((self.folder / STATE).read_text())
        except (OSError, ValueError):
            return None

    def in_memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a table in memory."""
        return torch.empty(shape, dtype=dtype)

    def in_file(self, name: str, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a table in a file, with the rows it has from a run that is gone on with."""
        path = self.path(name)
        if not (self.resumed and path.exists()):
            partial = path.with_suffix(".part")
            new_file(partial, shape, dtype)
            partial.rename(path)
        array = np.load(path, mmap_mode="r+")
        return torch.from_numpy(array).view(dtype)

    def path(self, name: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{name}.npy"

    def remove(self, name: str) -> None:
        """Remove the file of a table that is read no more; its pages go when it is let go of."""
        self.path(name).unlink(missing_ok=True)

    def keep(self, name: str, target: Path) -> Tensor:
        """Move a finished table to its place, and return it. Nothing can be resumed afterwards."""
        # Else a later run would find all tasks finished, and take a new file for their rows.
        (self.folder / STATE).unlink(missing_ok=True)
        os.replace(self.path(name), target)
        array = np.load(target, mmap_mode="r+")
        return torch.from_numpy(array)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def new_file(path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor that is mapped to a new ``.npy`` file; bfloat16 is stored as its 16 bits."""
    kind = torch.empty(0, dtype=torch.int16 if dtype == torch.bfloat16 else dtype).numpy().dtype
    array = np.lib.format.open_memmap(path, mode="w+", dtype=kind, shape=shape)
    return torch.from_numpy(array).view(dtype)


def checksum_of(values: Mapping[str, Any]) -> int:
    """Return the CRC-32 of tensors, arrays, and the text of all else, with their names.

    Finds changes made by mistake, in about a second for a gigabyte; it is no protection against
    changes made on purpose.
    """
    found = 0
    for name in sorted(values):
        value = values[name]
        found = zlib.crc32(name.encode(), found)
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(value)
        if isinstance(value, QuantizedTensor):
            parts = {"stored": value.stored, "scale": value.scale}
            found = zlib.crc32(str(checksum_of(parts)).encode(), found)
            continue
        if not isinstance(value, Tensor):
            found = zlib.crc32(repr(value).encode(), found)
            continue
        found = zlib.crc32(f"{tuple(value.shape)} {value.dtype}".encode(), found)
        for piece in pieces_of(value.detach()):
            found = zlib.crc32(piece, found)
    return found


def pieces_of(value: Tensor) -> Iterator[Any]:
    """Yield the bytes of a tensor in the order of its elements, at most `STEP_BYTES` at a time.

    A tensor that is not contiguous is copied piece by piece, as there may be no room for all of it.
    """
    if value.is_contiguous():
        flat = value.view(-1)
        flat = flat.view(torch.uint8) if flat.numel() > 0 else flat
        for first in range(0, len(flat), STEP_BYTES):
            yield flat[first : first + STEP_BYTES].cpu().numpy()
        return
    rows = STEP_BYTES // (value[0].numel() * value.element_size())
    for part in torch.split(value, rows) if rows > 0 else value.unbind():
        yield from pieces_of(part.contiguous() if rows > 0 else part)
