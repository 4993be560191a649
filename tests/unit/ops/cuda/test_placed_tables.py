"""What a GPU reads for a user's tensor: the right one, in its newest state, copied in time."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_graphs import graph
from emulator import emulated, give_to_loaders, pin
from torch import Tensor
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.core.types import Table
from pyg_direct.ops.cuda import placer
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.descriptor import check_array
from pyg_direct.ops.cuda.pinning import Registry
from pyg_direct.ops.cuda.source import Parameter
from pyg_direct.ops.placement import ON_DEVICE, PINNED_COPY, REGISTERED

WIDE = 40  # floats of a row that is worth reading over the link


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaBackend]:
    with emulated() as backend:
        give_to_loaders(backend, monkeypatch)
        yield backend


def placed(backend: CudaBackend, table: Tensor, features: str) -> Tensor:
    backend.memory.place_tables([("x", table)], features)
    return backend.memory.readable(table)


def place(backend: CudaBackend) -> str:
    return backend.memory.placement.rows[-1].place


def watch(backend: CudaBackend, look: Any) -> list[Any]:
    """Return a list that gets `look()` whenever the GPU is waited for."""
    seen: list[Any] = []
    runtime = backend.library.compiler.registry.runtime
    runtime.synchronize = lambda: seen.append(look())
    return seen


@pytest.mark.parametrize("features", ["device", "host"])
def test_a_copy_is_made_anew_between_two_waits(backend: CudaBackend, features: str) -> None:
    """Batches before may still read the old values, and other streams will read the new ones."""
    table = torch.ones(50, WIDE)
    copy = placed(backend, table, features)
    assert copy is not table
    seen = watch(backend, lambda: float(copy.sum().cpu()))
    table.mul_(3)
    assert backend.memory.readable(table) is copy
    assert seen == [50.0 * WIDE, 150.0 * WIDE]
    assert backend.memory.readable(table) is copy
    assert len(seen) == 2, "an unchanged table is read as it is"


def test_a_copy_made_for_one_batch_is_complete_before_any_stream_reads_it(
    backend: CudaBackend,
) -> None:
    """A tensor that is new to the loader is copied by the producer that meets it first."""
    table, made = torch.ones(50, WIDE), []
    copy = Registry.copy

    def watched(registry: Registry, target: Tensor, source: Tensor) -> None:
        copy(registry, target, source)
        made.append(target)

    seen = watch(backend, lambda: len(made))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Registry, "copy", watched)
        backend.memory.readable(table)
    assert seen == [1]


def test_the_graph_is_complete_before_any_stream_reads_it(backend: CudaBackend) -> None:
    seen = watch(backend, lambda: len(NeighborLoader.__mro__))
    NeighborLoader(Data(edge_index=torch.tensor([[0, 1], [1, 0]]), num_nodes=2), [1])
    assert seen, "no stream waited for the copies"


def test_pinned_memory_is_freed_when_nothing_reads_it_any_more(backend: CudaBackend) -> None:
    runtime = backend.library.compiler.registry.runtime
    copy = placed(backend, torch.ones(50, WIDE), "host")
    assert place(backend) == PINNED_COPY
    before = len(runtime.calls)
    del copy, backend
    gc.collect()
    assert [name for name, _, _ in runtime.calls[before:]] == ["synchronize", "free"]


def test_a_new_tensor_under_an_old_id_is_placed_anew(backend: CudaBackend) -> None:
    """Python gives ids again: what was placed under an id need not be this tensor's."""
    for features in ("device", "host"):
        memory = CudaBackend(backend.device, backend.library).memory
        old = torch.zeros(50, WIDE)
        new = torch.from_numpy(old.numpy())  # and addresses again, too
        assert new.data_ptr() == old.data_ptr()
        memory.place_tables([("x", old)], features)
        new.numpy()[:] = 1  # past the version counter of either
        memory._held[id(new)] = memory._held[id(old)]
        if features == "device":
            memory._copies[id(new)] = memory._copies[id(old)]
        assert torch.equal(memory.readable(new).cpu(), new)


@pytest.mark.parametrize("features", ["device", "host"])
def test_a_tensor_with_exchanged_memory_is_placed_anew(backend: CudaBackend, features: str) -> None:
    """`share_memory_`, `set_` and queues do that; the version of the tensor stays the same."""
    table = torch.zeros(50, WIDE)
    placed(backend, table, features)
    version = table._version
    table.data = torch.ones(50, WIDE)
    assert table._version == version
    assert torch.equal(backend.memory.readable(table).cpu(), table)
    other = CudaBackend(backend.device, backend.library)  # it may share copies, not stale ones
    assert torch.equal(placed(other, table, features).cpu(), table)


def test_narrow_tables_are_kept_on_the_device(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of their rows would cost a whole sector of the link."""
    monkeypatch.setattr(placer, "MIN_REGISTER_BYTES", 1)
    tables = {
        "wide": torch.zeros(50, WIDE),
        "label": torch.zeros(50, dtype=torch.int64),
        "mask": torch.zeros(50, dtype=torch.bool),
        "half a sector": torch.zeros(50, 4),
        "more": torch.zeros(50, 5),
    }
    backend.memory.place_tables(tables.items(), "host")
    places = {row.name: row.place for row in backend.memory.placement.rows}
    narrow = {"label", "mask", "half a sector"}
    assert {name for name, where in places.items() if where == ON_DEVICE} == narrow
    assert {where for name, where in places.items() if name not in narrow} == {REGISTERED}


def test_narrow_tables_respect_the_budget(backend: CudaBackend) -> None:
    backend.memory.open_budget(0)
    placed(backend, torch.zeros(50, dtype=torch.int64), "host")
    assert place(backend) == PINNED_COPY


@pytest.mark.parametrize("topology", ["host", "device", "auto"])
def test_a_graph_without_edges(backend: CudaBackend, topology: str) -> None:
    none = torch.empty(2, 0, dtype=torch.int64)
    data = Data(x=torch.randn(6, 3), edge_index=none, edge_attr=torch.empty(0, 2))
    loader = NeighborLoader(data, [2, 2], batch_size=4, topology=topology, features="host")
    for first, batch in zip((0, 4), loader, strict=True):
        assert batch.edge_index.shape == (2, 0)
        assert torch.equal(batch.x.cpu(), data.x[first : first + 4])


def test_an_array_at_an_odd_address(backend: CudaBackend) -> None:
    """float64 at 4 bytes: copied or gathered by smaller words, and never given to a kernel."""
    memory = bytearray(8 * WIDE * 20 + 4)
    table = torch.frombuffer(memory, dtype=torch.float64, offset=4).view(20, WIDE)
    table.copy_(torch.randn(20, WIDE, dtype=torch.float64))
    index = torch.tensor([3, 19])
    for features in ("host", "device"):
        own = CudaBackend(backend.device, backend.library)
        got = own.gather([Table(placed(own, table, features))], index.to(own.device), 20)[0]
        assert torch.equal(got.cpu(), table[index])
    index_of_kernel = Parameter("In", "i32", "index")
    odd = torch.empty(20, dtype=torch.uint8, device=backend.device)[4:].view(torch.int32)
    check_array("gather_rows", index_of_kernel, odd, backend.device)
    moved = torch.frombuffer(bytearray(18), dtype=torch.int32, offset=2, count=4)
    assert moved.data_ptr() % 4 == 2
    pin(backend, moved)
    with pytest.raises(ValueError, match="not a multiple of its element size of 4 bytes"):
        check_array("gather_rows", index_of_kernel, moved, backend.device)


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_makes_no_calls_of_cuda(backend: CudaBackend) -> None:
    """Its copies of leases and pinned memory are collected there, where CUDA must not be called."""
    runtime = backend.library.compiler.registry.runtime
    registered, copied = torch.ones(300_000, WIDE), torch.ones(50, WIDE)
    backend.memory.place_tables([("x", registered), ("y", copied)], "host")
    assert {row.place for row in backend.memory.placement.rows} == {REGISTERED, PINNED_COPY}
    calls = len(runtime.calls)
    pid = os.fork()
    if pid == 0:
        backend.memory._held.clear()
        del registered, copied
        gc.collect()
        os._exit(len(runtime.calls) - calls)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    backend.memory._held.clear()
    gc.collect()
    assert [name for name, _, _ in runtime.calls[calls:]].count("unregister") == 1


def test_loaders_read_what_was_placed(backend: CudaBackend) -> None:
    data = graph()
    loader = NeighborLoader(data, [3], batch_size=40, features="host")
    for batch in loader:
        n_id = batch.n_id.cpu()
        for name in ("x", "y", "half"):
            assert torch.equal(batch[name].cpu(), data[name][n_id])
