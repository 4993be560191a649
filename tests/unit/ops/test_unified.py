"""`unified`: rows by an index on the device, all else on the host, memory that lives as long."""

from __future__ import annotations

import copy
import gc
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_graphs import assert_equal
from emulator import emulated, give_to_loaders
from torch_geometric.data import Data

import pyg_direct
from pyg_direct import NeighborLoader
from pyg_direct.ops import unified as module
from pyg_direct.ops.cuda import placer
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.unified import UnifiedTensor


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with emulated() as backend:
        given = give_to_loaders(backend, monkeypatch, to_host=True)
        monkeypatch.setattr(module, "usable_device", lambda: backend.device)
        monkeypatch.setattr(module, "cuda_available", lambda: True)
        monkeypatch.setattr(
            module, "backend_for", lambda _: CudaBackend(backend.device, backend.library)
        )
        monkeypatch.setattr(placer, "MIN_REGISTER_BYTES", 1 << 16)
        backend.given = given
        yield backend


TABLE = torch.arange(300 * 70.0).view(300, 70)
INDEX = torch.tensor([5, 299, 5, 0])


def runtime(device: Any) -> Any:
    return device.library.compiler.registry.runtime


def test_an_index_on_the_device_gives_rows_there(device: Any) -> None:
    u = pyg_direct.unified(TABLE.clone())
    assert isinstance(u, UnifiedTensor)
    assert runtime(device).names() == ["register"]
    index = INDEX.to(device.device)
    for rows in (
        u[index],
        torch.index_select(u, 0, index),
        torch.nn.functional.embedding(index, u),
        u[index.to(torch.int32)],
        u[index - 300 * (index > 100).to(torch.int64)],
    ):
        assert rows.device == device.device
        assert torch.equal(rows.cpu(), TABLE[INDEX])
    assert torch.equal(u[index.view(2, 2)].cpu(), TABLE[INDEX.view(2, 2)])
    assert u[index[:0]].shape == (0, 70)


@pytest.mark.parametrize("row", [300, -301, 2**62, -(2**63)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int64, torch.int8])
def test_an_id_out_of_range_raises_at_the_next_selection(
    device: Any, dtype: torch.dtype, row: int
) -> None:
    """Nobody waits for the device, so its row is NaN, or -1, until then."""
    table = (TABLE % 90).to(dtype)
    u, good = pyg_direct.unified(table), INDEX.to(device.device)
    rows = u[torch.tensor([7, row, 8]).to(device.device)].cpu()
    assert torch.equal(rows[[0, 2]], table[[7, 8]])
    assert bool((rows[1].isnan() if dtype.is_floating_point else rows[1] == -1).all())
    with pytest.raises(IndexError, match=f"row {row if row > 0 else max(row, -(2**63)) + 300} "):
        u[good]
    assert torch.equal(u[good].cpu(), table[INDEX])


def test_a_selection_does_not_wait_for_the_device(
    device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    u, index = pyg_direct.unified(TABLE.clone()), INDEX.to(device.device)
    u[index]

    def waits(*_: Any) -> Any:
        raise AssertionError("the host waits for the device")

    for name in ("__int__", "__bool__", "item", "tolist", "cpu", "numpy"):
        whole = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor,
            name,
            lambda t, *a, whole=whole: (waits if t.device == device.device else whole)(t, *a),
        )
    runtime(device).calls.clear()
    copy_ = torch.Tensor.copy_
    pinned: list[torch.Tensor] = []

    def watched(target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> Any:
        assert non_blocking or target.device == source.device
        pinned.append(target)
        return copy_(target, source, non_blocking)

    monkeypatch.setattr(torch.Tensor, "copy_", watched)
    rows = u[index]
    assert [t.device.type for t in pinned] == ["cpu"]
    assert runtime(device).names() == []
    assert "synchronize" not in [name for name, _, _ in runtime(device).calls]
    monkeypatch.undo()
    assert torch.equal(rows.to("cpu"), TABLE[INDEX])


def test_all_else_is_computed_on_the_host(device: Any) -> None:
    u = pyg_direct.unified(TABLE.clone())
    assert (u.shape, u.dtype, u.device.type, len(u)) == (TABLE.shape, TABLE.dtype, "cpu", 300)
    assert repr(u) == "UnifiedTensor(size=(300, 70))"
    for found, expected in (
        (u[INDEX], TABLE[INDEX]),
        (u[3:9], TABLE[3:9]),
        (u[2], TABLE[2]),
        (u[:, 4], TABLE[:, 4]),
        (u + 1, TABLE + 1),
        (u.sum(0), TABLE.sum(0)),
        (u @ torch.ones(70, 2), TABLE @ torch.ones(70, 2)),
        (u.half(), TABLE.half()),
        (u.to(device.device).cpu(), TABLE),
    ):
        assert type(found) is torch.Tensor
        assert torch.equal(found, expected)
    with pytest.raises(RuntimeError, match="same device"):
        u + torch.ones(70).to(device.device)


def test_it_follows_changes_of_its_memory(device: Any) -> None:
    for rows in (300, 20):  # registered where it lies, and a pinned copy
        table = TABLE[:rows].clone()
        u, index = pyg_direct.unified(table), torch.tensor([7, 3]).to(device.device)
        u[index]
        table.mul_(2)
        assert torch.equal(u[index].cpu(), 2 * TABLE[[7, 3]])
        u[torch.tensor([3])] = torch.ones(70)
        u[5:9] += 1
        expected = torch.stack([2 * TABLE[7] + 1, torch.ones(70)])
        assert torch.equal(u[index].cpu(), expected)
        with pytest.raises(TypeError, match="add_ changes a unified tensor in place"):
            u.add_(1)
        assert torch.equal(u[index].cpu(), expected)
        u.share_memory_()
        assert u.host.is_shared()
        u.host[7] = 0
        assert torch.equal(u[index].cpu()[0], torch.zeros(70))


def test_memory_is_given_back_with_the_last_view(device: Any) -> None:
    """`torch.randn(..).to("unified")` of the released code was a pointer to freed memory."""
    gc.collect()
    before = len(runtime(device).ranges)
    for _ in range(3):
        u = pyg_direct.unified(TABLE * 2)  # nobody else holds that tensor
        rows = u[INDEX.to(device.device)]
        gc.collect()
        assert torch.equal(rows.cpu(), 2 * TABLE[INDEX])
        assert len(runtime(device).ranges) == before + 1
        del u
        gc.collect()
        assert len(runtime(device).ranges) == before
        assert torch.equal(rows.cpu(), 2 * TABLE[INDEX])


def test_copies_of_a_unified_tensor_have_their_own_rows(device: Any) -> None:
    u = pyg_direct.unified(TABLE.clone())
    for twin in (copy.deepcopy(u), pickle.loads(pickle.dumps(u))):
        assert isinstance(twin, UnifiedTensor)
        assert twin.host.data_ptr() != u.host.data_ptr()
        assert torch.equal(twin[INDEX.to(device.device)].cpu(), TABLE[INDEX])


def test_a_loaded_tensor_belongs_to_no_gpu_before_its_first_index(device: Any) -> None:
    """A spawned process is given the tensor before it chooses its GPU."""
    u = pickle.loads(pickle.dumps(pyg_direct.unified(TABLE.clone())))
    assert not u.readers
    u[INDEX.to(device.device)]
    assert list(u.readers) == [device.device]


def test_loaders_take_it(device: Any) -> None:
    edges = torch.randint(300, (2, 2000))
    plain, given = Data(x=TABLE.clone(), edge_index=edges), {"batch_size": 60, "seed": 0}
    data = Data(x=pyg_direct.unified(plain.x), edge_index=edges)
    for extra in ({}, {"cache": 0.5}):
        loader = NeighborLoader(data, [4], features="host", **given, **extra)
        expected = NeighborLoader(plain, [4], features="host", **given)
        for mine, theirs in zip(loader, expected, strict=True):
            assert_equal(mine.to_dict(), theirs.to_dict())
        assert loader.stats().pcie_requests > 0
        assert (loader.stats().cache_hits > 0) == bool(extra)


def test_without_a_gpu_it_is_the_tensor() -> None:
    table = torch.ones(3, 2)
    assert pyg_direct.unified(table, "cpu") is table


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ([1.0], TypeError, "must be a Tensor, got list"),
        (torch.tensor(1.0), ValueError, "with rows"),
        (torch.ones(3, 4).T, ValueError, "contiguous"),
        (torch.eye(3).to_sparse(), ValueError, "dense"),
        (torch.ones(3, requires_grad=True), ValueError, "gradient"),
    ],
)
def test_values_that_cannot_be_unified_are_refused(
    value: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        pyg_direct.unified(value)
