"""Host memory that a real GPU reads where it lies."""

from __future__ import annotations

import gc
import warnings
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from pyg_direct.core.types import Table
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.pinning import MEMORY_ALLOCATION, CudaError
from pyg_direct.ops.cuda.placer import MIN_REGISTER_BYTES
from pyg_direct.ops.devices import backend_for
from pyg_direct.ops.mappings import own_bytes
from pyg_direct.ops.placement import ON_DEVICE, PINNED_COPY, REGISTERED

pytestmark = pytest.mark.gpu

ROWS = 150_000


def device_backend() -> CudaBackend:
    backend = backend_for(torch.device("cuda"))
    assert isinstance(backend, CudaBackend)
    return backend


def check_gather(backend: CudaBackend, table: Tensor) -> None:
    index = torch.randint(0, len(table), (5000,))
    readable = backend.memory.readable(table)
    assert readable is not None
    got = backend.gather([Table(readable)], index.cuda())[0]
    assert got.is_cuda
    assert torch.equal(got.cpu(), table[index])


def place_of(backend: CudaBackend) -> str:
    return backend.memory.placement.rows[-1].place


@pytest.mark.parametrize("columns", [1, 25, 100, 128])
def test_registered_in_place(columns: int) -> None:
    backend, table = device_backend(), torch.randn(ROWS, columns)
    backend.memory.place_tables([("x", table)], "host")
    if table.nbytes >= MIN_REGISTER_BYTES:
        assert place_of(backend) == REGISTERED
        assert table.is_pinned()
    check_gather(backend, table)
    table += 1
    check_gather(backend, table)
    del backend
    gc.collect()
    assert not table.is_pinned()


def test_views_and_loaders_share_it() -> None:
    table = torch.randn(ROWS, 64)
    first, second = device_backend(), device_backend()
    first.memory.place_tables([("x", table)], "host")
    part = table[1000:140_000]
    assert part.nbytes >= MIN_REGISTER_BYTES
    second.memory.place_tables([("part", part)], "host")
    check_gather(second, part)
    del first
    gc.collect()
    assert table.is_pinned()
    check_gather(second, table)


def test_arrays_maps_and_shared_memory(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).random((ROWS, 60), np.float32))
    sources = {
        "array": torch.from_numpy(np.random.default_rng(1).random((ROWS, 60), np.float32)),
        "shared": torch.randn(ROWS, 60).share_memory_(),
        "map": torch.from_numpy(np.load(tmp_path / "x.npy", mmap_mode="c")),
        "pinned": torch.randn(ROWS, 60).pin_memory(),
    }
    for name, table in sources.items():
        backend = device_backend()
        with warnings.catch_warnings():
            # Some drivers, as those of WSL, refuse maps of files; a copy is what follows.
            warnings.simplefilter("ignore" if name == "map" else "error", RuntimeWarning)
            backend.memory.place_tables([(name, table)], "host")
        expected = (REGISTERED, PINNED_COPY) if name == "map" else (REGISTERED,)
        assert place_of(backend) in expected
        if name == "map":  # its file's pages are read
            assert own_bytes(table.data_ptr(), table.data_ptr() + table.nbytes) == 0
        check_gather(backend, table)


def test_neighbours_on_a_page() -> None:
    size = MIN_REGISTER_BYTES + 32 * 1001  # ends within a page
    memory = torch.randint(0, 256, (3 * size,), dtype=torch.uint8).numpy()
    backend = device_backend()
    tables = []
    for first, last in pairwise(range(0, 4 * size, size)):
        # Narrow rows would go to the device.
        tables.append(torch.from_numpy(memory[first:last]).view(-1, 32))
        backend.memory.place_tables([("part", tables[-1])], "host")
        assert place_of(backend) == REGISTERED
    for table in tables:
        check_gather(backend, table)


def test_on_the_device_and_changed() -> None:
    backend, table = device_backend(), torch.randn(ROWS, 20)
    backend.memory.place_tables([("x", table)], "device")
    assert place_of(backend) == ON_DEVICE
    check_gather(backend, table)
    table.zero_()
    check_gather(backend, table)


def test_a_refused_registration_leaves_no_error_behind() -> None:
    backend = device_backend()
    registry = backend.library.compiler.registry
    with pytest.raises(CudaError):
        registry.runtime.register(1 << 12, 1 << 12)  # nothing is mapped there
    torch.zeros(10, device="cuda").add_(1).cpu()
    with pytest.raises(CudaError) as caught:
        registry.runtime.allocate(1 << 50)
    assert caught.value.code == MEMORY_ALLOCATION
    check_gather(backend, torch.randn(ROWS, 20))


def test_a_table_may_be_deleted_while_it_is_read() -> None:
    """The gather is still to run when the last reference goes."""
    for _ in range(20):
        backend, table = device_backend(), torch.full((ROWS, 100), 7.0)
        index = torch.randint(0, ROWS, (50_000,), device="cuda")
        backend.memory.place_tables([("x", table)], "host")
        torch.cuda._sleep(5_000_000)
        got = backend.gather([Table(backend.memory.readable(table))], index, ROWS)[0]
        del table, backend
        gc.collect()
        torch.full((ROWS, 100), 3.0)
        assert bool((got == 7).all())
