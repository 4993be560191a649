"""Tables that are mapped to files: the pages of a batch are asked for, and rows are the same."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_direct.core.types import Table
from pyg_direct.kernels import gather
from pyg_direct.ops.cpu import backend, file_pages
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cpu.file_pages import FilePages, is_mapped_to_file
from tests.support.memory_maps import reads_alone, waits_for_pages

PAGE = mmap.PAGESIZE

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")


@pytest.fixture(autouse=True)
def small_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "MIN_TABLE_BYTES", 1)


def mapped(tmp_path: Path, rows: int = 5000, width: int = 300) -> Tensor:
    """Return a table in a file, which NumPy maps behind a header of 128 bytes."""
    path = tmp_path / "table.npy"
    np.save(path, np.arange(rows * width, dtype=np.float32).reshape(rows, width))
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def forget(path: Path) -> bool:
    """Have the system drop a file's pages from memory, and tell whether it did."""
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True


def resident_share(table: Tensor) -> float:
    base = table.data_ptr() // PAGE * PAGE
    count = (table.data_ptr() + table.nbytes - base) // PAGE
    return sum(file_pages._in_memory(base, np.array([p])) for p in range(count)) / count


def test_maps_of_files_are_told_from_memory(tmp_path: Path) -> None:
    table = mapped(tmp_path)
    assert is_mapped_to_file(table.data_ptr())
    assert is_mapped_to_file(table[4000].data_ptr())
    assert not is_mapped_to_file(torch.zeros(1 << 20).data_ptr())
    assert not is_mapped_to_file(torch.zeros(100).share_memory_().data_ptr())
    assert not is_mapped_to_file(0)


def test_pages_of_rows() -> None:
    out = np.empty(18, np.int64)
    index = np.array([0, 1, 9, -1, 10, 4])
    count = gather.pages_of_rows(index, 10, 600, 100, 1000, out)
    assert out[:count].tolist() == [0, 0, 1, 5, 6, 2, 3]
    count = gather.pages_of_rows(np.array([1]), 4, 5000, 0, 1000, out)
    assert out[:count].tolist() == [5, 6, 7, 8, 9]


def test_runs_of_pages(tmp_path: Path) -> None:
    table = mapped(tmp_path)
    base = table.data_ptr() // PAGE * PAGE
    assert gather.request_pages(base, np.array([3, 4, 9, 11, 12, 13]), PAGE) == 3
    assert gather.request_pages(base, np.empty(0, np.int64), PAGE) == 0


@pytest.mark.skipif(not waits_for_pages(), reason="Linux reads pages on demand from 5.14 on")
def test_a_page_that_cannot_be_read_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = mapped(tmp_path)
    os.truncate(tmp_path / "table.npy", 4 * PAGE)
    index = torch.arange(100, 5000, 10)
    with pytest.raises(OSError, match=r"Page \d+ of an attribute .* cannot be read.*table\.npy"):
        CpuBackend().gather([Table(table)], index)
    monkeypatch.setattr(file_pages, "POPULATE_READ", 9999)  # a system that cannot wait for pages
    with FilePages().reading([table], index.numpy()):
        pass


def test_pages_not_in_memory_are_requested(tmp_path: Path) -> None:
    table, expected = mapped(tmp_path), np.arange(1_500_000, dtype=np.float32).reshape(5000, 300)
    index = torch.randint(5000, (300,), generator=torch.Generator().manual_seed(0))
    forget(tmp_path / "table.npy")
    if resident_share(table) > 0.5:
        pytest.skip("this file system keeps its pages in memory")
    wanted = FilePages()
    asked = wanted.request(table, index.numpy())
    assert asked is not None
    assert asked.runs > 100
    found = CpuBackend().gather([Table(table)], index)[0]
    assert np.array_equal(found.numpy(), expected[index.numpy()])
    assert wanted.request(table, index.numpy()) is None  # all are here now
    assert resident_share(table) < 0.9  # and no more than that


@pytest.mark.parametrize("index", [[5], [4999, 0, 4999], [], [-1, 5000, 3]])
def test_requests_of_any_ids_leave_gather_right_or_its_own_error(
    tmp_path: Path, index: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_pages, "_in_memory", lambda base, numbers: False)
    table = mapped(tmp_path)
    FilePages().request(table, np.array(index, np.int64))
    if min(index, default=0) < 0:
        with pytest.raises(IndexError, match="Cannot gather row -1"):
            CpuBackend().gather([Table(table)], torch.tensor(index))[0]
        return
    found = CpuBackend().gather([Table(table)], torch.tensor(index, dtype=torch.int64))[0]
    assert torch.equal(found, table[torch.tensor(index, dtype=torch.int64)])


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_every_gather_asks(dtype: torch.dtype | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(FilePages, "request", lambda self, table, index: asked.append(table))
    monkeypatch.setattr(file_pages, "MIN_TABLE_BYTES", 80)
    table = torch.zeros(10, 4, dtype=torch.float16)
    small = Table(torch.zeros(10, dtype=torch.int8))  # before and behind it
    CpuBackend().gather([small, Table(table, dtype), small], torch.tensor([1]))
    assert [found.data_ptr() for found in asked] == [table.data_ptr()]


@pytest.mark.parametrize("dtype", [None, torch.float32])
def test_a_missing_page_is_read_alone_while_rows_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype | None
) -> None:
    """And no longer: whoever reads the table from front to back afterwards has it read ahead."""
    np.save(tmp_path / "table.npy", np.ones((5000, 300), np.float16))
    table = torch.from_numpy(np.load(tmp_path / "table.npy", mmap_mode="c"))
    seen: list[bool] = []

    def watched(*arguments: Any) -> None:
        seen.append(reads_alone(table))
        copy(*arguments)

    name = "_gather" if dtype is None else "_decode"
    copy = getattr(backend, name)
    monkeypatch.setattr(backend, name, watched)
    (found,) = CpuBackend().gather([Table(table, dtype)], torch.tensor([7, 4999]))
    assert found.shape == (2, 300)
    assert seen == [True]
    assert not reads_alone(table)


def test_the_last_of_several_readers_withdraws_the_advice(tmp_path: Path) -> None:
    table, index, wanted = mapped(tmp_path), np.arange(10), FilePages()
    with wanted.reading([table, table, torch.zeros(3)], index):
        with pytest.raises(IndexError), wanted.reading([table], index):
            raise IndexError
        assert reads_alone(table)
    assert not reads_alone(table)


def test_tables_in_memory_are_left_alone() -> None:
    assert FilePages().request(torch.zeros(1000, 1000), np.arange(1000)) is None


def test_small_tables_are_not_looked_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_pages, "MIN_TABLE_BYTES", 1 << 26)
    monkeypatch.setattr(file_pages, "is_mapped_to_file", lambda address: pytest.fail("looked up"))
    assert FilePages().request(mapped(tmp_path), np.arange(10)) is None
