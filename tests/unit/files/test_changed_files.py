"""Files of a saved graph that change while it is open."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

import pyg_direct
from tests.support.memory_maps import waits_for_pages

on_demand = pytest.mark.skipif(
    not waits_for_pages(), reason="Linux reads pages on demand from 5.14 on"
)
FAILING_DISK = Path(__file__).parents[2] / "support" / "failing_disk.py"


@pytest.mark.parametrize("how", ["written", "cut", "longer"])
@pytest.mark.parametrize("number", [-1, -2])
def test_a_file_that_changes_while_it_is_open_ends_in_words(
    tmp_path: Path, how: str, number: int
) -> None:
    data = Data(x=torch.randn(4000, 3), edge_index=torch.randint(4000, (2, 20000)))
    pyg_direct.save(data, tmp_path / "graph")
    opened = pyg_direct.open(tmp_path / "graph")
    loader = pyg_direct.NeighborLoader(opened, [2], batch_size=100)
    next(iter(loader))  # nothing is made ahead, which would read what is cut off
    # The largest files: of the edges, and of x.
    path = sorted((tmp_path / "graph").iterdir(), key=lambda path: path.stat().st_size)[number]
    with path.open("r+b") as file:
        if how == "written":
            file.write(bytes(8))
        else:
            file.truncate(path.stat().st_size + (-4096 if how == "cut" else 4096))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))  # on a clock that is coarser than this test
    with pytest.raises(ValueError, match=f"{path.name} was written to or cut off after it was"):
        iter(loader)
    if how == "written":
        next(iter(pyg_direct.NeighborLoader(pyg_direct.open(tmp_path / "graph"), [2])))


@pytest.mark.parametrize("how", ["saved again", "deleted"])
def test_a_graph_that_another_one_replaced_stays_what_it_was(tmp_path: Path, how: str) -> None:
    data = Data(x=torch.randn(4000, 3), edge_index=torch.randint(4000, (2, 20000)))
    pyg_direct.save(data, tmp_path / "graph")
    opened = pyg_direct.open(tmp_path / "graph")
    loader = pyg_direct.NeighborLoader(opened, [2], batch_size=4000)
    if how == "saved again":
        other = Data(x=torch.zeros(10, 3), edge_index=data.edge_index % 10)
        pyg_direct.save(other, tmp_path / "graph", overwrite=True)
    else:
        shutil.rmtree(tmp_path / "graph")
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])


READER = """
import sys
import pyg_direct
from pyg_direct.ops.cpu import file_pages

file_pages.MIN_TABLE_BYTES = 1
data = pyg_direct.open(sys.argv[1])
lists = pyg_direct.open(sys.argv[1])
del lists.x
lists.num_nodes = 4000
for _ in pyg_direct.NeighborLoader(lists, [-1], batch_size=4000):
    pass  # has the neighbour lists in memory
loader = pyg_direct.NeighborLoader(data, [2], batch_size=50)
batches = iter(loader)
next(batches)
print("ready", flush=True)
input()
try:
    for batch in batches:
        assert bool((batch.x[:, 0] == batch.n_id).all())
except OSError as error:
    print(error)
"""


def told_by_a_reader(folder: Path, fail: Callable[[], None]) -> str:
    """Return what a process says of a disk that fails after its first batch."""
    command = [sys.executable, "-c", READER, str(folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as reader:  # type: ignore[call-overload]
        assert reader.stdout.readline() == "ready\n"
        fail()
        told, _ = reader.communicate("\n", timeout=120)
    assert reader.returncode == 0, f"ended with {reader.returncode}"
    return str(told)


def saved(folder: Path) -> Path:
    """Save a graph whose rows of x, on pages that no memory has, begin with their ids."""
    x = torch.arange(4000.0).view(-1, 1).repeat(1, 256)
    pyg_direct.save(Data(x=x, edge_index=torch.randint(4000, (2, 8000))), folder)
    (path,) = (path for path in folder.iterdir() if path.stat().st_size == x.nbytes)
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


@pytest.mark.slow
@on_demand
def test_a_file_that_is_cut_within_an_epoch_ends_it_in_words(tmp_path: Path) -> None:
    path = saved(tmp_path / "graph")
    told = told_by_a_reader(tmp_path / "graph", lambda: os.truncate(path, 4096))
    assert "cannot be read: its disk or network fails, or the file was cut" in told
    assert str(path) in told


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Any]:
    """A saved graph on a disk that fails once a line is written to this process."""
    saved(tmp_path / "graph")
    (tmp_path / "mounted").mkdir()
    command = [
        sys.executable,
        str(FAILING_DISK),
        str(tmp_path / "graph"),
        str(tmp_path / "mounted"),
    ]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        if process.stdout.readline() != "mounted\n":
            pytest.skip("no file system can be mounted here, which takes root and /dev/fuse")
        yield process
        process.stdin.close()


@pytest.mark.slow
@on_demand
def test_a_disk_that_fails_within_an_epoch_ends_it_in_words(disk: Any, tmp_path: Path) -> None:
    def fail() -> None:
        disk.stdin.write("\n")
        disk.stdin.flush()
        assert disk.stdout.readline() == "broken\n"

    told = told_by_a_reader(tmp_path / "mounted", fail)
    assert "[Errno 5] Page" in told
    assert "cannot be read: its disk or network fails" in told
    with pytest.raises(OSError, match="Input/output error"):
        (tmp_path / "mounted" / "graph.json").read_bytes()
