"""The emulated torch device refuses what CUDA refuses, and its launches reach no other memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from emulator import EmulatorError, emulated, on_device, pin, torch_device
from torch import Tensor

from pyg_direct.core.types import Table
from pyg_direct.ops.cuda import descriptor
from pyg_direct.ops.cuda.backend import CudaBackend


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    with emulated() as backend:
        yield backend


@pytest.fixture
def devices(backend: CudaBackend) -> list[torch.device]:
    return [torch.device(torch_device.TYPE, index) for index in range(2)]


def test_tensors_of_several_devices_do_not_mix(devices: list[torch.device]) -> None:
    here, there = torch.ones(4, device=devices[0]), torch.ones(4, device=devices[1])
    host = torch.ones(4)
    mixed: list[Callable[[], Any]] = [
        lambda: here + host,
        lambda: host + here,
        lambda: here + there,
        lambda: torch.cat([here, host]),
        lambda: torch.equal(here, host),
        lambda: torch.stack([here, there]),
    ]
    for operation in mixed:
        with pytest.raises(RuntimeError, match="same device"):
            operation()
    assert (here + torch.tensor(2.0)).cpu().tolist() == [3, 3, 3, 3]
    assert (here + there.to(devices[0])).device == devices[0]


def test_indices_follow_cudas_rule(devices: list[torch.device]) -> None:
    table, index = torch.arange(10), torch.tensor([7, 2])
    for tensor, rows in (
        (table, index.to(devices[0])),
        (table.to(devices[1]), index.to(devices[0])),
    ):
        with pytest.raises(RuntimeError, match=r"either on cpu or on the same|same device"):
            tensor[rows]
    for rows in (index, index.to(devices[1])):
        picked = table.to(devices[1])[rows]
        assert picked.device == devices[1]
        assert picked.cpu().tolist() == [7, 2]


def test_the_host_has_no_way_to_its_memory(devices: list[torch.device]) -> None:
    with pytest.raises(TypeError, match="can't convert"):
        torch.ones(3, device=devices[0]).numpy()


def test_values_views_and_changes_in_place(devices: list[torch.device]) -> None:
    table = torch.arange(12.0).view(3, 4)
    mine = table.to(devices[1])
    assert torch.equal((mine[1:, ::2] * 2).cpu(), table[1:, ::2] * 2)
    mine[0].fill_(7)
    mine.view(-1)[4:6].copy_(torch.tensor([1, 2]))
    assert mine.cpu().tolist()[:2] == [[7, 7, 7, 7], [1, 2, 6, 7]]
    assert torch.equal(mine.view(torch.uint8).cpu(), mine.cpu().view(torch.uint8))
    assert mine.t().contiguous().sum().item() == mine.cpu().sum().item()
    assert mine.to(torch.int32).device == devices[1]
    assert mine.resize_(20).shape == (20,)


def test_each_thread_has_a_current_device(devices: list[torch.device]) -> None:
    module, found = torch.get_device_module(devices[0]), []
    with module.device(1):
        assert torch.empty(1, device=torch_device.TYPE).device == devices[1]
        thread = threading.Thread(target=lambda: found.append(module.current_device()))
        thread.start()
        thread.join()
    assert found == [0]
    assert module.current_device() == 0


def test_pinned_memory_is_what_was_pinned(backend: CudaBackend) -> None:
    tensor = torch.zeros(5000)
    assert not tensor.is_pinned()
    assert tensor.pin_memory().is_pinned()
    assert not tensor.is_pinned()
    assert pin(backend, tensor).is_pinned()
    part = torch.zeros(50_000)
    pin(backend, part[:100])
    assert not part.is_pinned(), "a page of it is not"


def gather(backend: CudaBackend, table: Tensor, index: Tensor) -> Tensor:
    return backend.gather([Table(table)], index, len(table))[0]


def test_launches_refuse_arrays_elsewhere(backend: CudaBackend) -> None:
    """By the launch function of the package, and once more by the emulator."""
    table, index = torch.randn(9, 3), torch.tensor([3, 8])
    here, other = backend.device, on_device(backend, 1).device
    assert torch.equal(gather(backend, table.to(here), index.to(here)).cpu(), table[index])
    misplaced = [
        (table, index.to(here)),
        (table.to(other), index.to(here)),
        (table.to(here), index),
        (table.to(here), index.to(other)),
    ]
    for arrays in misplaced:
        with pytest.raises(ValueError, match="must be on privateuseone:0"):
            gather(backend, *arrays)
    kernel = backend.library.load("gather.cu", V="u32", kPlaced="false")["gather_rows"]
    kernel._check = lambda parameter, value: (
        value if isinstance(value, Tensor) else descriptor.check_value("", parameter, value)
    )
    for arrays in misplaced:
        with pytest.raises(EmulatorError, match=r"gather_rows: (table|index) lies on"):
            gather(backend, *arrays)


def test_two_devices_of_one_process(backend: CudaBackend) -> None:
    other = on_device(backend, 1)
    table, index = torch.randn(9, 3), torch.tensor([3, 8])
    for each in (backend, other):
        got = gather(each, table.to(each.device), index.to(each.device))
        assert got.device == each.device
        assert torch.equal(got.cpu(), table[index])
    with pytest.raises(ValueError, match="must be on privateuseone:1"):
        gather(other, table.to(backend.device), index.to(other.device))
