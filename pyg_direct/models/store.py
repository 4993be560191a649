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

from ..core.quantized import QuantizedTensor, new_table

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
        ValueError: `resume`, and the folder was begun with another checksum, or is damaged; or it
            holds something else than an earlier run.
        OSError: a file cannot be made, such as on a full disk.
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
        if not (resume and known is not None):
            self._begin(state, known)
        self.finished = self._mapped(self.folder / JOURNAL, (tasks,), torch.uint8)

    def _begin(self, state: dict[str, int], known: Any) -> None:
        """Make the folder anew; `known` is the state of a run that it holds."""
        if not self._temporary:
            # A run that was killed at its very beginning leaves these two files.
            if known is None and not _holds_only(self.folder, {JOURNAL, f"{STATE}.part"}):
                raise ValueError(
                    f"{self.folder} is not from an earlier run of inference(), which would write "
                    f"its layers there. Move it, or give another out=."
                )
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir(parents=True)
        try:
            new_table((state["tasks"],), torch.uint8, self.folder / JOURNAL)[:] = 0
            partial = self.folder / f"{STATE}.part"
            partial.write_text(json.dumps(state))
        except BaseException:
            self.close()
            raise
        partial.rename(self.folder / STATE)  # from here on the folder can be resumed

    def _known_state(self) -> Any:
        """Return the state of the run that the folder holds; None if it holds none."""
        try:
            state = json.loads((self.folder / STATE).read_text())
        except (OSError, ValueError):
            return None
        return state if isinstance(state, dict) and {"checksum", "tasks"} <= state.keys() else None

    def in_memory(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return a table in memory."""
        return torch.empty(shape, dtype=dtype)

    def in_file(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, begun: bool = False
    ) -> Tensor:
        """Return a table in a file; one that was `begun` has the rows of finished tasks.

        Raises:
            ValueError: it was begun, and its file is missing or of another length.
        """
        path = self.path(name)
        if not begun:
            new_table(shape, dtype, path)
        return self._mapped(path, shape, dtype)

    def _mapped(self, path: Path, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        try:
            np.load(path, mmap_mode="r")  # "r+" would make a file longer that was cut off
            table = torch.from_numpy(np.load(path, mmap_mode="r+")).view(dtype)
        except (OSError, EOFError, ValueError, RuntimeError) as error:
            raise self._damaged(path, str(error)) from None
        if table.shape != shape:
            raise self._damaged(path, f"it has the shape {list(table.shape)}, not {list(shape)}")
        return table

    def _damaged(self, path: Path, reason: str) -> ValueError:
        return ValueError(
            f"{path} cannot be gone on with: {reason}. Remove {self.folder}, or pass resume=False "
            f"to begin anew."
        )

    def path(self, name: str) -> Path:
        """Return the file of a table."""
        return self.folder / f"{name}.npy"

    def remove(self, name: str) -> None:
        """Remove the file of a table that is read no more; its pages go when it is let go of."""
        self.path(name).unlink(missing_ok=True)

    def keep(self, name: str, target: Path, dtype: torch.dtype) -> Tensor:
        """Move a finished table to its place, and return it. Nothing can be resumed afterwards."""
        # Else a later run would find all tasks finished, and take a new file for their rows.
        (self.folder / STATE).unlink(missing_ok=True)
        os.replace(self.path(name), target)
        return torch.from_numpy(np.load(target, mmap_mode="r+")).view(dtype)

    def close(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _holds_only(folder: Path, names: set[str]) -> bool:
    """Whether there is nothing of that name, or a folder with no other entries than these."""
    if folder.is_symlink() or not folder.is_dir():
        return not (folder.is_symlink() or folder.exists())
    return {entry.name for entry in folder.iterdir()} <= names


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
