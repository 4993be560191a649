"""Which device a process computes on, by what it does."""

from __future__ import annotations

import pytest
import torch

from pyg_direct.ops import devices
from pyg_direct.ops.devices import HOST, process_device


class FakeCuda:
    """What torch says of the CUDA devices of a process."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.held = [0, 0, 0, 0]  # bytes of tensors, by device
        self.current, self.available, self.initialised, self.built = 0, True, True, "13.0"
        self.problem: str | None = None  # why CuPy cannot be used
        patch.setattr(torch.version, "cuda", "13.0")
        patch.setattr(torch.cuda, "is_available", lambda: self.available)
        patch.setattr(torch.cuda, "is_initialized", lambda: self.initialised)
        patch.setattr(torch.cuda, "device_count", lambda: len(self.held))
        patch.setattr(torch.cuda, "memory_allocated", self.memory_allocated)
        patch.setattr(torch.cuda, "current_device", lambda: self.current)
        patch.setattr("pyg_direct.ops.cuda.compiler.require_cuda", self.require_cuda)
        patch.setattr(devices, "self_check", lambda device: "passed")

    def memory_allocated(self, device: int) -> int:
        assert self.initialised, "asking would make a context"
        return self.held[device]

    def require_cuda(self, device: torch.device) -> None:
        if self.problem is not None:
            raise RuntimeError(self.problem)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return FakeCuda(monkeypatch)


def gpu(index: int) -> torch.device:
    return torch.device("cuda", index)


def test_no_gpu_at_all(cuda: FakeCuda) -> None:
    cuda.available = False
    assert process_device() == (HOST, "torch finds no CUDA device")


def test_a_process_that_never_used_cuda_is_left_without_a_context(cuda: FakeCuda) -> None:
    cuda.initialised = False
    assert process_device()[0] == HOST


def test_a_model_on_the_cpu(cuda: FakeCuda) -> None:
    """A GPU was looked at, as by `torch.cuda.synchronize`, but holds nothing."""
    assert process_device() == (HOST, "the process has no tensors on a CUDA device")
    assert process_device(rank=2)[0] == HOST, "LOCAL_RANK alone does not make it a GPU program"


def test_the_device_of_the_model(cuda: FakeCuda) -> None:
    cuda.held[2] = 100  # and the current device is 0, which was not set
    assert process_device() == (gpu(2), "the process has tensors there")


@pytest.mark.parametrize(
    ("held", "current", "rank", "expected", "why"),
    [
        ([5, 9, 0, 0], 1, None, 1, "the current one"),
        ([5, 9, 0, 0], 0, None, 0, "the current one"),
        # Something small of every rank lies on device 0, which was not chosen.
        ([5, 900, 0, 0], 0, 1, 1, "LOCAL_RANK"),
        ([0, 9, 8, 0], 0, 2, 2, "LOCAL_RANK"),
        # The user has set it: that tells more than the launcher.
        ([0, 9, 8, 0], 1, 2, 1, "the current one"),
        ([0, 9, 8, 0], 3, None, 1, "the one with most"),
        ([0, 9, 8, 0], 0, 3, 1, "the one with most"),
    ],
)
def test_a_process_on_several_devices_takes_that_of_its_rank(
    cuda: FakeCuda, held: list[int], current: int, rank: int | None, expected: int, why: str
) -> None:
    cuda.held, cuda.current = held, current
    device, reason = process_device(rank=rank)
    assert device == gpu(expected)
    assert why in reason


@pytest.mark.parametrize(
    ("initialised", "current", "rank", "expected"),
    [
        (False, 0, None, HOST), (True, 0, None, gpu(0)), (True, 2, None, gpu(2)),
        (True, 0, 3, gpu(3)), (True, 2, 3, gpu(2)), (True, 0, 9, gpu(0)),
    ],
)  # fmt: skip
def test_a_device_is_decided_without_counts_of_the_allocator(
    cuda: FakeCuda,
    monkeypatch: pytest.MonkeyPatch,
    initialised: bool,
    current: int,
    rank: int | None,
    expected: torch.device,
) -> None:
    def refuses(device: int) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    monkeypatch.setattr(torch.cuda, "memory_allocated", refuses)
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    cuda.initialised, cuda.current = initialised, current
    assert process_device(rank=rank)[0] == expected


def test_data_on_a_device_decides(cuda: FakeCuda) -> None:
    cuda.held = [7, 7, 7, 7]
    assert process_device([HOST, gpu(3), gpu(3)]) == (gpu(3), "the data is there")
    assert process_device([gpu(1), gpu(3)])[0] == gpu(0), "on several it does not"


def test_a_gpu_without_software_gives_the_host_with_a_warning(cuda: FakeCuda) -> None:
    cuda.held[1], cuda.problem = 5, "CuPy is missing"
    with pytest.warns(RuntimeWarning, match=r"There is a GPU, but .*CuPy is missing.*device='cpu'"):
        assert process_device() == (HOST, "CuPy is missing")


def test_rocm_is_not_cuda(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)
    cuda.held[0] = 5
    assert process_device()[0] == devices.HOST
