"""What the device reads in place of a tensor, and what is waited for before memory changes."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from emulator import emulated
from emulator.runtime import FakeRuntime
from torch import Tensor

from pyg_direct.ops.cuda import placer
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.pinning import Registry


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaBackend]:
    monkeypatch.setattr(placer, "MIN_REGISTER_BYTES", 1)
    with emulated() as backend:
        yield backend


def runtime_of(backend: CudaBackend) -> Any:
    return backend.library.compiler.registry.runtime


def read(backend: CudaBackend, table: Tensor) -> Tensor:
    readable = backend.memory.readable(table)
    assert readable is not None
    return readable.cpu()


@pytest.mark.parametrize("features", ["device", "host"])
def test_a_tensor_with_replaced_memory_is_read_anew(backend: CudaBackend, features: str) -> None:
    table = torch.zeros(50, 4)
    backend.memory.place_tables([("x", table)], features)
    version = table._version
    table.data = torch.ones(50, 4)  # which the version does not tell
    assert table._version == version
    assert torch.equal(read(backend, table), torch.ones(50, 4))


@pytest.mark.parametrize("features", ["device", "host"])
def test_a_tensor_resized_in_place_is_read_anew(backend: CudaBackend, features: str) -> None:
    table = torch.arange(200.0).view(50, 4)
    backend.memory.place_tables([("x", table)], features)
    table.resize_(20, 10)
    assert read(backend, table).shape == (20, 10)


def test_another_tensor_with_the_same_id(backend: CudaBackend) -> None:
    """Python gives the id of a tensor that is gone to the next one."""
    one = torch.zeros(50, 4)
    other = torch.from_numpy(one.numpy())  # even where it lies at the same address
    backend.memory.place_tables([("x", one)], "device")
    other.numpy()[:] = 1
    held = backend.memory._held
    held[id(other)] = held.pop(id(one))
    assert torch.equal(read(backend, other), torch.ones(50, 4))


def test_a_copy_of_another_tensor_is_not_used(backend: CudaBackend) -> None:
    one, other = torch.zeros(50, 4), torch.ones(50, 4)
    backend.memory.place_tables([("x", one)], "device")
    copies = backend.library.compiler.copies
    copies[id(other)] = copies[id(one)]
    second = CudaBackend(backend.device, backend.library)
    second.memory.place_tables([("x", other)], "device")
    assert torch.equal(read(second, other), other)


def test_a_refresh_waits_before_and_after(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = torch.zeros(50, 4)
    backend.memory.place_tables([("x", table)], "device")
    copy, seen = backend.memory.readable(table), []
    runtime = runtime_of(backend)
    monkeypatch.setattr(runtime, "synchronize", lambda: seen.append(float(copy.cpu().sum())))
    table.add_(1)
    assert torch.equal(read(backend, table), table)
    assert seen == [0.0, 200.0], "earlier batches read the old values, later ones the new"


@pytest.mark.parametrize("mode", ["device", "host"])
def test_placing_ends_with_a_wait(backend: CudaBackend, mode: str) -> None:
    runtime, tables = runtime_of(backend), (torch.zeros(50, 4), torch.zeros(50))
    backend.memory.place_tables(zip("xy", tables, strict=True), mode)
    assert runtime.calls[-1][0] == "synchronize"


def test_pinned_memory_is_waited_for_before_it_is_freed() -> None:
    runtime = FakeRuntime()
    copy = Registry(runtime).pinned_copy(torch.zeros(5000), "x")
    del copy
    gc.collect()
    assert [name for name, _, _ in runtime.calls] == ["allocate", "synchronize", "free"]


def test_memory_that_a_storage_has_left_counts_as_registered_no_more() -> None:
    runtime = FakeRuntime()
    registry = Registry(runtime)
    table = torch.zeros(1 << 20)
    lease = registry.lease(table, "x")
    (first,) = runtime.ranges
    table.share_memory_()
    other = torch.zeros(1 << 20)
    registry.lease(other, "y")
    assert first not in runtime.ranges or other.data_ptr() // 4096 * 4096 == first
    second = registry.lease(table, "x")
    assert runtime.is_pinned(table.data_ptr())
    for end in (lease, second):
        end.close()
    registry.lease(torch.zeros(10), "z").close()
    gc.collect()
    assert runtime.is_pinned(table.data_ptr()) is False
