"""Tables in private mappings of files are read by a GPU without being copied."""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from emulator.runtime import FakeRuntime
from torch import Tensor
from torch_geometric.data import Data

import pyg_direct
from pyg_direct.ops.cuda import placer as placing
from pyg_direct.ops.cuda.pinning import INVALID_VALUE, CudaError, PinningError, Registry
from pyg_direct.ops.cuda.placer import Placer
from pyg_direct.ops.mappings import PAGE_BYTES, Mapping, mappings, own_bytes
from pyg_direct.ops.placement import PINNED_COPY, REGISTERED, STAGED
from pyg_direct.ops.streams import NoStreams
from pyg_direct.sampling.sampler import keyed

POPULATE_READ, POPULATE_WRITE = 22, 23  # of `madvise`: what the driver's pinning does to pages
ROWS, COLUMNS = 3000, 50

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="other systems do not list maps")


class PinningRuntime(FakeRuntime):
    """Asks for every page as NVIDIA's driver does: to write to, or only to read what is shared."""

    def register(self, address: int, nbytes: int) -> None:
        super().register(address, nbytes)
        for advice in (POPULATE_WRITE, POPULATE_READ):
            if ctypes.CDLL(None).madvise(ctypes.c_void_p(address), nbytes, advice) == 0:
                return
        del self.ranges[address]
        raise CudaError(INVALID_VALUE, "cudaErrorInvalidValue")


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> PinningRuntime:
    monkeypatch.setattr(placing, "MIN_REGISTER_BYTES", 1)
    return PinningRuntime()


def placer(runtime: FakeRuntime, registry: Registry | None = None) -> Placer:
    streams = NoStreams()
    registry = registry or Registry(runtime)
    return Placer(torch.device("cuda", 0), registry, {}, lambda: 1 << 30, streams)  # type: ignore[arg-type]


def values() -> Tensor:
    return torch.arange(ROWS * COLUMNS, dtype=torch.float32).view(ROWS, COLUMNS)


def opened(folder: Path) -> Tensor:
    data = Data(x=values(), edge_index=torch.randint(ROWS, (2, 100)))
    pyg_direct.save(data, folder / "graph")
    return pyg_direct.open(folder / "graph").x


def of_numpy(folder: Path) -> Tensor:
    np.save(folder / "x.npy", values().numpy())
    return torch.from_numpy(np.load(folder / "x.npy", mmap_mode="c"))


def of_torch(folder: Path) -> Tensor:
    values().numpy().tofile(folder / "x.bin")
    path, size = str(folder / "x.bin"), ROWS * COLUMNS
    return torch.from_file(path, shared=False, size=size).view(ROWS, COLUMNS)


def in_shared_memory(folder: Path) -> Tensor:
    """Return a table in a private mapping of a file that lies in memory; its name goes at exit."""
    file = tempfile.NamedTemporaryFile(dir="/dev/shm", suffix=".npy")  # noqa: SIM115
    np.save(file, values().numpy())
    file.flush()
    table = torch.from_numpy(np.load(file.name, mmap_mode="c"))
    table.file = file  # type: ignore[attr-defined]
    return table


def saved_by_torch(folder: Path) -> Tensor:
    torch.save({"other": torch.ones(700), "x": values()}, folder / "x.pt")
    found: Tensor = torch.load(folder / "x.pt", mmap=True)["x"]
    return found


SOURCES = (opened, of_numpy, of_torch, saved_by_torch, in_shared_memory)
Source = Callable[[Path], Tensor]


def copied_bytes(table: Tensor) -> int:
    """Return the bytes of a mapping that are the process's own."""
    own = own_bytes(table.data_ptr(), table.data_ptr() + table.nbytes)
    assert own is not None
    return own


@pytest.mark.parametrize("source", SOURCES)
def test_a_private_mapping_is_registered_without_a_copy(
    source: Source, runtime: PinningRuntime, tmp_path: Path
) -> None:
    table, memory = source(tmp_path), placer(runtime)
    memory.place_tables([("x", table)], "host")
    readable = memory.readable(table)
    assert readable is not None
    assert torch.equal(readable, values())
    assert copied_bytes(table) == copied_bytes(readable) == 0
    assert runtime.holds(readable)
    assert runtime.names() == ["register"]
    assert [row.place for row in memory.placement.rows] == [REGISTERED]


def test_the_edges_of_an_opened_graph_are_registered_without_a_copy(
    runtime: PinningRuntime, tmp_path: Path
) -> None:
    opened(tmp_path)
    sampler = pyg_direct.NeighborSampler(pyg_direct.open(tmp_path / "graph"), [2])
    csc, memory = replace(keyed(sampler).graph.csc, verified=True), placer(runtime)
    placed = dict(memory.place_graph(csc, "host").arrays())
    for name, array in csc.arrays():
        given = torch.as_tensor(array)
        if given.numel() > 0 and any(m.private for m in mapped(given) if m.is_of_file):
            assert copied_bytes(given) == 0
            assert placed[name].data_ptr() != given.data_ptr()
            assert runtime.holds(placed[name])
        assert torch.equal(placed[name], given)
    assert {row.place for row in memory.placement.rows if row.nbytes > 0} == {REGISTERED}


def mapped(tensor: Tensor) -> Iterator[Mapping]:
    return mappings(tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes)


def test_memory_in_no_file_is_registered_where_it_lies(runtime: PinningRuntime) -> None:
    for table in (torch.ones(90, 50), torch.ones(90, 50).share_memory_()):
        memory = placer(runtime)
        memory.place_tables([("x", table)], "host")
        assert memory.readable(table) is table
        assert runtime.holds(table)


def test_a_file_that_is_mapped_to_be_shared_is_registered_where_it_lies(
    runtime: PinningRuntime, tmp_path: Path
) -> None:
    of_numpy(tmp_path)
    array = np.load(tmp_path / "x.npy", mmap_mode="r+")
    table, memory = torch.from_numpy(array), placer(runtime)
    memory.place_tables([("x", table)], "host")
    assert memory.readable(table) is table
    array[7] = -1
    array.flush()


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("before", [True, False])
def test_writes_to_a_private_mapping_are_read(
    source: Source, before: bool, runtime: PinningRuntime, tmp_path: Path
) -> None:
    """Before the table is placed, also past torch; and afterwards, when its version tells."""
    table, memory = source(tmp_path), placer(runtime)
    if before:
        table.numpy()[2000] = -1
    else:
        memory.place_tables([("x", table)], "host")
        table[2000] = -1
    with pytest.warns(RuntimeWarning, match="was written to.*A pinned copy was made"):
        memory.place_tables([("x", table)], "host")
    readable = memory.readable(table)
    assert readable is not None
    assert torch.equal(readable, table)
    assert runtime.holds(readable)
    assert [row.place for row in memory.placement.rows] == [PINNED_COPY]
    table[1000] = -2
    assert torch.equal(memory.readable(table), table)
    assert torch.equal(opened(tmp_path / "again")[5], values()[5])


def test_pages_of_a_file_that_a_table_left_stay_registered_while_threads_may_read_them(
    runtime: PinningRuntime, tmp_path: Path
) -> None:
    table, memory = opened(tmp_path), placer(runtime)
    memory.place_tables([("x", table)], "host")
    taken = memory.readable(table)
    table += 1
    with pytest.warns(RuntimeWarning):
        memory.readable(table)
    assert runtime.holds(taken)
    del memory
    gc.collect()
    assert runtime.ranges == {}


def test_a_file_is_registered_once_and_let_go_with_the_last_loader(
    runtime: PinningRuntime, tmp_path: Path
) -> None:
    table, registry = opened(tmp_path), Registry(runtime)
    loaders = [placer(runtime, registry) for _ in range(2)]
    for memory in loaders:
        memory.place_tables([("x", table)], "host")
    assert runtime.names() == ["register"]
    address = loaders[0].readable(table).data_ptr()
    memory = loaders.pop()
    loaders.clear()
    del memory
    gc.collect()
    assert runtime.names() == ["register", "unregister"]
    path = next(mappings(table.data_ptr(), table.data_ptr() + 1)).path
    assert all(mapping.path != path for mapping in mappings(address, address + 1))


def replaced(folder: Path) -> Tensor:
    """Return a table whose file was replaced, beside one whose name Linux gives to it now."""
    table = of_numpy(folder)
    for name in ("x.npy (deleted)", "other.npy"):
        with open(folder / name, "wb") as file:
            np.save(file, values().numpy() + 1)
    (folder / "other.npy").replace(folder / "x.npy")
    return table


def deleted(folder: Path) -> Tensor:
    table = of_numpy(folder)
    (folder / "x.npy").unlink()
    return table


@pytest.mark.parametrize("source", [replaced, deleted])
def test_a_file_that_has_gone_is_copied_and_placement_tells_it(
    source: Source, runtime: PinningRuntime, tmp_path: Path
) -> None:
    table, memory = source(tmp_path), placer(runtime)
    with pytest.warns(RuntimeWarning, match=r"x is in a private mapping of .*once more"):
        memory.place_tables([("x", table)], "host")
    assert torch.equal(memory.readable(table), values())
    assert [row.place for row in memory.placement.rows] == [PINNED_COPY]
    assert runtime.names() == ["allocate"]


@pytest.mark.parametrize("source", [opened, of_numpy, of_torch, saved_by_torch, deleted])
def test_more_than_can_be_had_is_neither_registered_nor_copied(
    source: Source, runtime: PinningRuntime, tmp_path: Path
) -> None:
    table, memory = source(tmp_path), placer(runtime)
    runtime.available = table.nbytes - 1
    with pytest.warns(RuntimeWarning, match="too little free RAM.*the CPU selects its rows"):
        memory.place_tables([("x", table)], "host")
    assert memory.readable(table) is None
    assert [row.place for row in memory.placement.rows] == [STAGED]
    assert runtime.names() == []
    assert copied_bytes(table) == 0


def test_memory_that_is_there_needs_no_more(runtime: PinningRuntime) -> None:
    """Pages that nobody has touched yet do."""
    there = torch.ones(1 << 20)
    untouched = torch.from_numpy(np.frombuffer(mmap.mmap(-1, 1 << 23), np.uint8))
    runtime.available = 1 << 20
    registry = Registry(runtime)
    lease = registry.lease(there, "there")
    with pytest.raises(PinningError, match=r"untouched .*too little free RAM.*ulimit"):
        registry.lease(untouched, "untouched")
    lease.close()


def test_mappings_have_ranges_paths_offsets_and_files(tmp_path: Path) -> None:
    table = of_numpy(tmp_path)
    first = table.data_ptr()
    (found,) = mappings(first, first + table.nbytes)
    assert found.first <= first < first + table.nbytes <= found.last
    assert (found.private, found.has_file, found.path) == (True, True, str(tmp_path / "x.npy"))
    assert found.offset == 0
    assert found.file[1] == os.stat(tmp_path / "x.npy").st_ino
    assert own_bytes(first, first + 1) == 0
    table[0] = 1
    assert own_bytes(first, first + 1) == PAGE_BYTES
