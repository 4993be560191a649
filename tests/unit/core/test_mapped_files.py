"""Files that are mapped: which changes are told, and which the map outlives."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from pyg_direct.core import mapped_files
from pyg_direct.core.mapped_files import check_unchanged, checksum_of_arrays, files_at


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "x.bin").write_bytes(bytes(8))
    return tmp_path / "x.bin"


def later(path: Path) -> None:
    """Change the time of a file, whatever the resolution of the clock."""
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))


def write(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"1")
    later(path)


def cut(path: Path) -> None:
    """Cut a file off, and set its time back, as a program that restores a copy may."""
    before = path.stat()
    os.truncate(path, 3)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_bytes(bytes(3))
    os.replace(other, path)


@pytest.mark.parametrize(("change", "size"), [(write, 8), (cut, 3)])
def test_a_change_is_told(path: Path, change: Callable[[Path], None], size: int) -> None:
    files = files_at([path.with_suffix(".other"), path])
    check_unchanged(files)
    change(path)
    message = f"x.bin was written to or cut off after it was opened: it has {size} bytes, and had 8"
    with pytest.raises(ValueError, match=message):
        check_unchanged(files)


@pytest.mark.parametrize("change", [os.unlink, replaced])
def test_changes_that_keep_the_mapped_bytes_are_none(
    path: Path, change: Callable[[Path], None]
) -> None:
    files = files_at([path])
    change(path)
    check_unchanged(files)


def test_a_path_means_the_file_that_was_opened(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(path.parent)
    files = files_at([path.name])
    monkeypatch.chdir("/")
    write(path)
    with pytest.raises(ValueError, match="was written to"):
        check_unchanged(files)


def test_a_checksum_tells_elements_types_shapes_and_order_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mapped_files, "PIECE_BYTES", 16)  # two elements a piece
    numbers = torch.arange(6)
    found = [
        checksum_of_arrays(arrays)
        for arrays in (
            [numbers], [numbers.flip(0)], [numbers.view(2, 3)], [numbers.double()], [numbers + 1],
            [numbers[:5]], [numbers, numbers[:0]], [numbers[:2], numbers[2:]], [],
        )
    ]  # fmt: skip
    assert len(set(found)) == len(found)
    assert checksum_of_arrays([numbers.numpy()]) == found[0]
    assert checksum_of_arrays([np.arange(12)[::2] // 2]) == found[0]  # not contiguous
    monkeypatch.setattr(mapped_files, "PIECE_BYTES", 1 << 20)
    assert checksum_of_arrays([numbers[:0]]) == checksum_of_arrays([np.empty(0, np.int64)])
