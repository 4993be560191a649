"""Registering host memory: once, as a whole, for as long as it is needed, and what if it fails."""

from __future__ import annotations

import gc
import threading
import unittest
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from emulator.runtime import FakeRuntime
from torch import Tensor

from pyg_direct.ops.cuda import pinning
from pyg_direct.ops.cuda.compiler import CupyRuntime
from pyg_direct.ops.cuda.pinning import (
    ALREADY_REGISTERED,
    INVALID_VALUE,
    MEMORY_ALLOCATION,
    NOT_SUPPORTED,
    PAGE_BYTES,
    CudaError,
    PinningError,
    Registry,
)

OUT_OF_MEMORY = CudaError(MEMORY_ALLOCATION, "cudaErrorMemoryAllocation")


@pytest.fixture
def runtime() -> FakeRuntime:
    return FakeRuntime()


def table(rows: int = 1000, columns: int = 100) -> Tensor:
    return torch.arange(rows * columns, dtype=torch.float32).view(rows, columns)


def pages(tensor: Tensor) -> dict[int, int]:
    """Return the whole pages that the storage of a tensor lies on, as `FakeRuntime.ranges`."""
    storage = tensor.untyped_storage()
    first = storage.data_ptr() // PAGE_BYTES * PAGE_BYTES
    last = -(-(storage.data_ptr() + storage.nbytes()) // PAGE_BYTES) * PAGE_BYTES
    return {first: last - first}


def test_registered_in_place_and_unregistered_once(runtime: FakeRuntime) -> None:
    x = table()
    lease = Registry(runtime).lease(x, "data.x")
    assert runtime.ranges == pages(x)
    lease.close()
    lease.close()
    assert runtime.ranges == {}
    assert runtime.names() == ["register", "unregister"]


def test_kernels_are_done_before_memory_is_unregistered(runtime: FakeRuntime) -> None:
    Registry(runtime).lease(table(), "data.x").close()
    names = [name for name, _, _ in runtime.calls]
    assert names == ["register", "synchronize", "unregister"]


def test_views_and_loaders_share_one_registration(runtime: FakeRuntime) -> None:
    x, registry = table(), Registry(runtime)
    leases = [registry.lease(view, "x") for view in (x, x[10:20], x.view(-1)[7:], x.t(), x)]
    assert runtime.ranges == pages(x)
    for lease in leases[:-1]:
        lease.close()
    assert runtime.names() == ["register"]
    leases[-1].close()
    assert runtime.names() == ["register", "unregister"]


def test_two_tensors_on_one_array_share_it_too(runtime: FakeRuntime) -> None:
    """They have storages of their own, which torch does not know to overlap."""
    array, registry = np.zeros(100_000, np.float32), Registry(runtime)
    whole, part = torch.from_numpy(array), torch.from_numpy(array[5000:])
    assert whole.untyped_storage().data_ptr() != part.untyped_storage().data_ptr()
    leases = [registry.lease(whole, "whole"), registry.lease(part, "part")]
    leases.pop(0).close()
    assert len(runtime.ranges) == 1
    leases.pop().close()
    assert runtime.names() == ["register", "unregister"]


def test_tensors_on_one_page_stay_pinned_until_the_last_lease_closes(runtime: FakeRuntime) -> None:
    """CUDA refuses to register a page twice; and it must stay while either of them needs it."""
    array, registry = np.zeros(100_000, np.uint8), Registry(runtime)
    parts = [
        torch.from_numpy(array[a:b])
        for a, b in ((9000, 30_001), (30_001, 70_003), (70_003, 90_000))
    ]
    leases = [registry.lease(parts[i], f"part {i}") for i in (0, 2, 1)]
    assert runtime.names() == ["register"] * 3
    leases.pop(0).close()
    for part in parts[1:]:
        for byte in (0, len(part) // 2, len(part) - 1):
            assert runtime.is_pinned(part.data_ptr() + byte)
    leases.pop(0).close()
    assert all(runtime.is_pinned(parts[1].data_ptr() + byte) for byte in (0, len(parts[1]) - 1))
    leases.pop(0).close()
    assert runtime.ranges == {}


def test_a_tensor_on_the_page_of_another_one_is_kept_alive_as_well(runtime: FakeRuntime) -> None:
    """Its memory is freed when its lease has ended and no kernel reads it, and not before."""
    memory, registry, freed = np.zeros(100_000, np.uint8), Registry(runtime), []
    first = memory.ctypes.data // PAGE_BYTES * PAGE_BYTES + PAGE_BYTES - memory.ctypes.data
    x = torch.from_numpy(memory[first : first + 5000])  # two pages, the second to its half
    registry_lease = registry.lease(x, "x")
    y = pinning.tensor_at(x.data_ptr() + 6000, 100, lambda: freed.append(runtime.calls[-1][0]))
    lease = registry.lease(y, "y")
    assert runtime.names() == ["register"]
    del y
    gc.collect()
    assert freed == []
    lease.close()
    del lease
    gc.collect()
    assert freed == ["synchronize"]
    assert runtime.is_pinned(x.data_ptr())
    registry_lease.close()
    assert runtime.ranges == {}


def test_overlapping_tensors_stay_pinned_until_the_last_lease_closes(runtime: FakeRuntime) -> None:
    array, registry = np.zeros(1_000_000, np.uint8), Registry(runtime)
    left, right = torch.from_numpy(array[:600_000]), torch.from_numpy(array[400_000:])
    first, second = registry.lease(left, "left"), registry.lease(right, "right")
    first.close()
    assert all(runtime.is_pinned(right.data_ptr() + byte) for byte in range(0, 600_000, 4096))
    second.close()
    assert runtime.ranges == {}


def test_memory_lives_as_long_as_it_is_registered(runtime: FakeRuntime) -> None:
    x, registry = table(), Registry(runtime)
    address, expected = x.data_ptr(), x.clone()
    lease = registry.lease(x, "data.x")
    del x
    gc.collect()
    assert torch.equal(pinning.tensor_at(address, expected.nbytes).view(torch.float32),
                       expected.view(-1))  # fmt: skip
    assert runtime.is_pinned(address)
    del lease
    assert runtime.ranges == {}


def test_empty_tensors_are_skipped(runtime: FakeRuntime) -> None:
    registry = Registry(runtime)
    registry.lease(torch.empty(0, 5), "nothing").close()
    assert registry.pinned_copy(torch.empty(0, 5), "nothing").shape == (0, 5)
    assert runtime.names() == []


def test_memory_of_other_processes(runtime: FakeRuntime) -> None:
    x = table().share_memory_()
    lease = Registry(runtime).lease(x, "shared")
    assert runtime.ranges == pages(x)
    lease.close()


def test_memory_that_is_pinned_already_is_left_to_its_owner(runtime: FakeRuntime) -> None:
    x = table()
    runtime.foreign[x.data_ptr()] = x.nbytes
    lease = Registry(runtime).lease(x, "pinned by others")
    lease.close()
    assert runtime.names() == []


@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_pages_of_a_neighbour_are_not_ours(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch, begins: bool, ends: bool
) -> None:
    """Only the ends are pinned, because other tensors begin and end on these pages."""
    x = table(5000)
    runtime.foreign |= {x.data_ptr(): 8} if begins else {}
    runtime.foreign |= {x.data_ptr() + x.nbytes - 8: 8} if ends else {}
    if begins and ends:
        monkeypatch.setattr(pinning, "PROBE_BYTES", 64 * PAGE_BYTES)
    if begins or ends:
        with pytest.raises(PinningError, match="Another library has registered a part of it"):
            Registry(runtime).lease(x, "x")
    else:
        Registry(runtime).lease(x, "x").close()


def test_memory_left_by_a_storage_is_registered_anew(runtime: FakeRuntime) -> None:
    """What comes to lie there is registered for itself."""
    memory, registry = np.zeros(100_000, np.uint8), Registry(runtime)
    x = torch.from_numpy(memory)
    leases = [registry.lease(x, "x")]
    x.share_memory_()
    leases.append(registry.lease(torch.from_numpy(memory), "another"))
    assert runtime.names() == ["register", "unregister", "register"]
    for lease in leases:
        lease.close()
    assert runtime.ranges == {}


def test_large_memory_is_registered_in_chunks(runtime: FakeRuntime) -> None:
    x = table(5000)
    lease = Registry(runtime, chunk_bytes=16 * PAGE_BYTES).lease(x, "x")
    ends = sorted((first, first + size) for first, size in runtime.ranges.items())
    assert len(ends) > 25
    ((first, size),) = pages(x).items()
    assert ends[0][0] == first
    assert ends[-1][1] == first + size
    for (_, last), (first, _) in pairwise(ends):
        assert last == first
        assert first % PAGE_BYTES == 0
    assert max(last - first for first, last in ends) <= 16 * PAGE_BYTES
    lease.close()
    assert runtime.ranges == {}
    assert pinning.CHUNK_BYTES == 256 << 30


def test_a_chunk_that_fails_takes_the_others_back(runtime: FakeRuntime) -> None:
    x, registry = table(5000), Registry(runtime, chunk_bytes=16 * PAGE_BYTES)
    runtime.fail = [None, None, OUT_OF_MEMORY]
    with pytest.raises(PinningError, match="cudaErrorMemoryAllocation"):
        registry.lease(x, "x")
    assert runtime.ranges == {}
    assert runtime.names() == ["register"] * 2 + ["unregister"] * 2
    registry.lease(x, "x")  # and nothing is left behind that would hinder a second try


@pytest.mark.parametrize(
    ("code", "name", "remedy"),
    [
        (MEMORY_ALLOCATION, "cudaErrorMemoryAllocation", r"ulimit -l; .*--ulimit memlock=-1"),
        (ALREADY_REGISTERED, "cudaErrorHostMemoryAlreadyRegistered", r"x\.clone\(\)"),
        (INVALID_VALUE, "cudaErrorInvalidValue", r"mapped read-only.*x\.clone\(\)"),
        (NOT_SUPPORTED, "cudaErrorNotSupported", r"x\.clone\(\)"),
        (999, "cudaErrorUnknown", "See the CUDA documentation"),
    ],
)
def test_a_failed_pin_names_the_tensor_the_code_and_a_remedy(
    runtime: FakeRuntime, code: int, name: str, remedy: str
) -> None:
    runtime.fail = [CudaError(code, name)]
    x = torch.zeros(500_000)
    with pytest.raises(PinningError, match=rf"data\.x \(2\.0 MB\).*CUDA says {name}.*{remedy}"):
        Registry(runtime).lease(x, "data.x")


def test_memory_registered_under_another_address_is_refused(runtime: FakeRuntime) -> None:
    runtime.same_address = False
    with pytest.raises(PinningError, match="under other addresses"):
        Registry(runtime).lease(table(), "data.x")
    assert runtime.names() == []


def test_storage_that_was_replaced_is_no_reason_to_crash(runtime: FakeRuntime) -> None:
    registry = Registry(runtime)
    lease = registry.lease(table(), "data.x")
    runtime.ranges.clear()
    with pytest.warns(RuntimeWarning, match=r"cudaErrorHostMemoryNotRegistered.*moved to shared"):
        lease.close()


def test_a_pinned_copy(runtime: FakeRuntime) -> None:
    x = table(300, 7).to(torch.float16)
    copy = Registry(runtime).pinned_copy(x, "data.x")
    assert torch.equal(copy, x)
    assert copy.dtype == x.dtype
    (address,) = runtime.allocated
    assert copy.data_ptr() == address
    assert address % PAGE_BYTES == 0
    row = copy[5]
    del copy
    assert runtime.allocated
    assert torch.equal(row, x[5])
    del row
    assert not runtime.allocated
    assert runtime.names() == ["allocate", "free"]


def test_a_pinned_copy_that_does_not_fit_is_an_error(runtime: FakeRuntime) -> None:
    registry, x = Registry(runtime), table()
    runtime.fail_allocate = OUT_OF_MEMORY
    with pytest.raises(PinningError, match=r"could not be copied to pinned memory.*ulimit"):
        registry.pinned_copy(x, "data.x")
    runtime.fail_allocate, runtime.available = None, x.nbytes - 1
    with pytest.raises(PinningError, match="too little free RAM"):
        registry.pinned_copy(x, "data.x")
    assert runtime.names() == []


def test_long_registrations_are_announced(
    runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, small, registry = table(), table(9), Registry(runtime)
    assert pinning.SAID_BYTES == 4 << 30
    monkeypatch.setattr(pinning, "SAID_BYTES", x.nbytes)
    with unittest.TestCase().assertLogs("pyg_direct", "WARNING") as logs:
        for name in ("register", "allocate"):
            monkeypatch.setattr(runtime, name, _saying(logs.output, getattr(runtime, name)))
        leases = [registry.lease(x, "data.x"), registry.lease(x, "data.x")]
        leases.append(registry.lease(small, "small"))
        copy = registry.pinned_copy(x, "data.y")
    assert torch.equal(copy, x)
    first, second = logs.output
    assert "Registering data.x (4" in first
    assert "Copying data.y (400.0 kB) to pinned memory" in second


def _saying(lines: list[str], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return a call of the runtime that fails where nothing was said before the first one."""

    def said_before(*arguments: int) -> Any:
        assert lines
        return call(*arguments)

    return said_before


def test_a_lease_may_end_while_another_begins(runtime: FakeRuntime) -> None:
    """The collector may end a lease inside `lease`, in the same thread, with the lock held."""
    memory, registry = np.zeros(900_000, np.uint8), Registry(runtime)
    x, y = torch.from_numpy(memory[:400_000]), torch.from_numpy(memory[500_000:])
    lease = [registry.lease(x, "x")]
    register = runtime.register

    def collect_first(address: int, nbytes: int) -> None:
        lease.clear()
        assert runtime.names()[-1] == "register", "unregistered while the lock is held"
        register(address, nbytes)

    runtime.register = collect_first  # type: ignore[method-assign]
    other = registry.lease(y, "y")
    assert runtime.is_pinned(y.data_ptr() + y.nbytes - 1)
    assert not runtime.is_pinned(x.data_ptr() + 2 * PAGE_BYTES)
    other.close()
    assert runtime.ranges == {}


def test_a_lease_ended_under_the_lock_is_unregistered_later(runtime: FakeRuntime) -> None:
    """Its memory is unregistered before any of its pages is needed again."""
    memory, registry = np.zeros(900_000, np.uint8), Registry(runtime)
    left, right = torch.from_numpy(memory[:600_000]), torch.from_numpy(memory[400_000:])
    lease = registry.lease(left, "left")
    with registry._lock:
        lease.close()
    registry.lease(right, "right").close()
    names = [name for name in runtime.names() if name != "synchronize"]
    assert names == ["register", "unregister"] * 2


def test_leases_of_many_threads_keep_their_tensors_pinned(runtime: FakeRuntime) -> None:
    tables, registry, errors = [table() for _ in range(3)], Registry(runtime), []

    def work(number: int) -> None:
        try:
            for i in range(100):
                x = tables[(number + i) % 3]
                lease = registry.lease(x, "x")
                assert runtime.is_pinned(x.data_ptr())
                lease.close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert runtime.ranges == {}


class _FakeCupyRuntime:
    """`cupy.cuda.runtime` of a GPU that refuses read-only memory unless it is said to be so."""

    class CUDARuntimeError(RuntimeError):
        def __init__(self, status: int) -> None:
            super().__init__("cudaErrorInvalidValue: invalid argument")
            self.status = status

    def __init__(self, read_only_supported: int) -> None:
        self.attributes = {91: 1, 113: read_only_supported}
        self.flags: list[int] = []

    def getDeviceCount(self) -> int:  # noqa: N802
        return 2

    def deviceGetAttribute(self, attribute: int, device: int) -> int:  # noqa: N802
        return self.attributes[attribute]

    def hostRegister(self, address: int, nbytes: int, flags: int) -> None:  # noqa: N802
        self.flags.append(flags)
        if not flags & 8:
            raise self.CUDARuntimeError(INVALID_VALUE)


def test_read_only_memory_through_cupy() -> None:
    """Portable (1), so that all GPUs can read it; mapped (2); read-only (8) where it must be."""

    class Cupy:
        class cuda:  # noqa: N801
            runtime = _FakeCupyRuntime(1)

    runtime = CupyRuntime(Cupy)
    assert runtime.same_address
    runtime.register(4096, 10)
    assert Cupy.cuda.runtime.flags == [3, 11]
    Cupy.cuda.runtime = _FakeCupyRuntime(0)
    with pytest.raises(CudaError, match=r"^cudaErrorInvalidValue$") as caught:
        CupyRuntime(Cupy).register(4096, 10)
    assert caught.value.code == INVALID_VALUE
    assert Cupy.cuda.runtime.flags == [3]


def test_available_memory_is_that_of_the_machine() -> None:
    available = CupyRuntime.available_bytes(None)  # type: ignore[arg-type]
    assert 1 << 20 < available < 1 << 50


class Watched(torch.Tensor):
    """A tensor that notes from where it is copied to, as (address, bytes)."""

    copies: list[tuple[int, int]]

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if function is torch.Tensor.copy_:
            cls.copies.append((args[1].data_ptr(), args[1].nbytes))
        return super().__torch_function__(function, types, args, kwargs)


@pytest.mark.parametrize("kind", ["neighbours", "chunks", "behind", "conjugate", "strided"])
def test_no_copy_crosses_the_end_of_a_registration(runtime: FakeRuntime, kind: str) -> None:
    """CUDA may refuse to copy memory of which the parts were registered apart."""
    chunk = 4 * PAGE_BYTES if kind == "chunks" else pinning.CHUNK_BYTES
    registry = Registry(runtime, chunk)
    raw = np.empty(21 * PAGE_BYTES, np.uint8)
    begin = -raw.ctypes.data % PAGE_BYTES  # of a page, wherever the memory is
    memory = raw[begin : begin + 20 * PAGE_BYTES].view(np.int64)
    memory[:] = np.arange(len(memory))
    cut = 9 * PAGE_BYTES // 8 + 2  # within a page, at a multiple of 16 bytes
    first, second = torch.from_numpy(memory[:cut]), torch.from_numpy(memory[cut:])
    leases = [registry.lease(first, "first")]
    if kind != "behind":
        leases.append(registry.lease(second, "second"))
    table = torch.from_numpy(memory) if kind == "behind" else second
    if kind == "conjugate":
        table = second.view(torch.float64)[: len(second) // 2 * 2].view(torch.complex128).conj()
    if kind == "strided":
        table = second[::2]
    Watched.copies = []
    target = torch.empty(table.shape, dtype=table.dtype).as_subclass(Watched)
    registry.copy(target, table)
    assert torch.equal(target.as_subclass(Tensor), table.resolve_conj())
    ends = {end for at, nbytes in runtime.ranges.items() for end in (at, at + nbytes)}
    if kind in ("neighbours", "chunks", "behind"):
        assert len(Watched.copies) > 1
        for address, nbytes in Watched.copies:
            assert not any(address < end < address + nbytes for end in ends)
    assert all(0 < cut < second.nbytes for cut in registry.cuts(second))
    for lease in leases:
        lease.close()
    assert registry.cuts(second) == []
