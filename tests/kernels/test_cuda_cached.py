"""The kernels that find rows in a cache, emulated: the same bits, and exact counts by tier."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from emulator import ORDERS, emulated, pin
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import BASES, least_requests, read_by_id, table_at
from torch import Tensor

from pyg_direct.core.types import Table, Traffic
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import row_cache
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.host.hottest import SLOT_BYTES, Candidate


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    with emulated() as backend:
        yield backend


def cached(backend: CudaBackend, table: Tensor, rows: Any) -> Tensor:
    """Return a table in pinned memory of which some rows are cached."""
    visits = torch.zeros(len(table), dtype=torch.float64)
    visits[torch.as_tensor(rows, dtype=torch.int64)] = 1
    pin(backend, table)
    backend.memory.open_budget(0)
    room = SLOT_BYTES * len(table) + len(rows) * (table.nbytes // len(table))
    backend._caches.fill([Candidate("x", table, visits)], room, backend.gather_bytes)
    return table


def gather(
    backend: CudaBackend, table: Table, index: Tensor, traffic: Traffic | None = None
) -> Tensor:
    (found,) = backend.gather([table], index.to(backend.device), None, traffic)
    backend.library.compiler.memory.assert_written(found, "out")
    return found.cpu()


def hits(traffic: Traffic) -> int:
    return sum(int(counter) for counter in traffic.found.values())


@settings(max_examples=50, deadline=None)
@given(
    row_bytes=st.integers(1, 700), base=st.integers(0, 127), rows=st.integers(1, 19),
    held=st.sets(st.integers(0, 11), min_size=1), seed=st.integers(0, 99), by_id=st.booleans(),
)  # fmt: skip
def test_any_row_at_any_address(
    row_bytes: int, base: int, rows: int, held: set[int], seed: int, by_id: bool
) -> None:
    index = torch.from_numpy(np.random.default_rng(seed).integers(0, 12, rows))
    with emulated() as backend, read_by_id(by_id):
        table = cached(backend, table_at(base, 12, row_bytes), sorted(held))
        traffic = Traffic()
        assert torch.equal(gather(backend, Table(table), index, traffic), table[index])
        assert hits(traffic) == sum(i in held for i in index.tolist())


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stored", [torch.int8, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_cached_rows_are_decoded_like_those_of_the_host(
    order: int, stored: torch.dtype, dtype: torch.dtype
) -> None:
    width, rows = 70, 40
    size = stored.itemsize
    memory = table_at(64, rows, width * size).clone()
    index = torch.tensor([3, 0, 39, 39, 7, 21, 3])
    for by_row in (False, True) if stored == torch.int8 else (False,):
        scale = None
        if stored == torch.int8:
            scale = torch.rand(rows, 1) if by_row else torch.rand(width)
        with emulated(order=order) as backend, read_by_id(by_row):
            table = cached(backend, memory.view(stored), [0, 7, 39])
            placed = scale if scale is None or not by_row else pin(backend, scale)
            traffic = Traffic()
            found = gather(backend, Table(table, dtype, placed), index, traffic)
            (expected,) = CpuBackend().gather([Table(table, dtype, scale)], index)
            words = torch.int32 if dtype == torch.float32 else torch.int16
            same = (found.view(words) == expected.view(words)) | (found.isnan() & expected.isnan())
            assert bool(same.all())
            assert hits(traffic) == 4


@pytest.mark.parametrize("base", BASES)
def test_the_link_is_asked_for_what_is_not_held(base: int) -> None:
    """Not one line of a cached row, and each line of the others once."""
    rng = np.random.default_rng(base)
    for row_bytes in (132, 200, 400, 512, 1000, 2408):
        table = table_at(base, 64, row_bytes)
        held = torch.arange(0, 64, 3)
        index = torch.from_numpy(rng.permutation(32)[:12] * 2)
        missed = index[index % 3 != 0]
        with emulated(block_threads=32) as backend:
            cached(backend, table, held)
            device = backend.library.compiler
            device.recorded = "table"
            assert torch.equal(gather(backend, Table(table), index), table[index])
            assert device.requests.requests == least_requests(table, missed), row_bytes


def test_traffic_counts_as_the_emulator_does() -> None:
    """Rows of whole lines: the expected requests less those of found rows are exactly the reads."""
    table, index = table_at(0, 64, 512), torch.arange(0, 64, 2)
    with emulated(block_threads=32) as backend:
        cached(backend, table, torch.arange(0, 64, 3))
        device, traffic = backend.library.compiler, Traffic()
        device.recorded = "table"
        for _ in range(2):
            gather(backend, Table(table), index, traffic)
        ((of_row, counter),) = traffic.found.items()
        assert int(counter) == 2 * 11
        assert traffic.requests - int(counter) * of_row[0] == device.requests.requests
        assert traffic.num_bytes - int(counter) * of_row[1] == device.requests.payload_bytes


def test_a_cache_follows_its_table(backend: CudaBackend) -> None:
    table = cached(backend, torch.ones(20, 40), [3, 5])
    index = torch.tensor([5, 4, 3])
    table.mul_(2)
    assert torch.equal(gather(backend, Table(table), index), torch.full((3, 40), 2.0))
    other = torch.full((20, 40), 7.0)
    pin(backend, other)
    table.data = other  # another memory: there is no cache of it
    traffic = Traffic()
    assert torch.equal(gather(backend, Table(table), index, traffic), other[index])
    assert hits(traffic) == 0


def test_a_tensor_in_the_place_of_one_that_is_gone_has_no_cache(backend: CudaBackend) -> None:
    """It may have its number, its memory, and as many changes as torch knows of."""
    memory = np.ones((20, 40), np.float32)
    table = cached(backend, torch.from_numpy(memory), [3, 5])
    caches = backend._caches._caches
    cache, other = caches.pop(id(table)), torch.from_numpy(memory)
    caches[id(other)] = cache
    assert other.data_ptr() == table.data_ptr()
    assert backend._caches.of(other, backend.gather_bytes) is None


def test_a_cache_is_filled_between_two_waits(backend: CudaBackend) -> None:
    """For batches that may read the old rows, and for streams that will read the new ones."""
    table, log = torch.ones(20, 40), []
    cache = row_cache.RowCache(table, torch.tensor([3, 5]), backend.device)
    for expected in (["wait", "read", "wait"], []):
        cache.refresh(table, lambda *_: log.append("read"), lambda: log.append("wait"))
        assert log == expected
        log.clear()


@pytest.mark.parametrize("fails", [1, 3, 100])
def test_too_little_memory_gives_one_warning_and_a_smaller_cache(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, fails: int
) -> None:
    table, visits = pin(backend, torch.randn(4000, 32)), torch.arange(4000.0)
    left, empty = [fails], row_cache.device_memory.empty

    def failing(size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        if left[0] > 0:
            left[0] -= 1
            raise torch.cuda.OutOfMemoryError
        return empty(size, dtype, device)

    monkeypatch.setattr(row_cache.device_memory, "empty", failing)
    with pytest.warns(RuntimeWarning, match="does not fit into the memory") as warned:
        backend._caches.fill([Candidate("x", table, visits)], 1 << 20, backend.gather_bytes)
    assert len(warned) == 1
    left[0] = 0
    index, traffic = torch.arange(0, 4000, 7), Traffic()
    assert torch.equal(gather(backend, Table(table), index, traffic), table[index])
    assert (hits(traffic) > 0) == (fails < 100)


def test_nothing_stays_of_a_cache_that_does_not_fit(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is there for the rows of the first table, and then there is none."""
    tables = [pin(backend, torch.randn(4000, 32)) for _ in range(2)]
    calls, empty = [0], row_cache.device_memory.empty

    def failing(*arguments: Any) -> Tensor:
        calls[0] += 1
        if calls[0] > 1:
            raise torch.cuda.OutOfMemoryError
        return empty(*arguments)

    monkeypatch.setattr(row_cache.device_memory, "empty", failing)
    candidates = [Candidate("x", table, torch.arange(4000.0)) for table in tables]
    with pytest.warns(RuntimeWarning, match="does not fit into the memory"):
        backend._caches.fill(candidates, 1 << 20, backend.gather_bytes)
    assert backend._caches.of(tables[0], backend.gather_bytes) is None


def test_no_room_is_no_cache(backend: CudaBackend) -> None:
    table = pin(backend, torch.randn(50, 40))
    candidates = [Candidate("x", table, torch.ones(50).double())]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend._caches.fill(candidates, 0, backend.gather_bytes)
    assert backend.memory.placement.rows == []
    assert torch.equal(gather(backend, Table(table), torch.tensor([7, 7])), table[[7, 7]])
