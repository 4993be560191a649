"""A machine with two GPUs that are emulated: where batches lie, and what decides it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from emulator import on_device
from torch import Tensor

import pyg_direct.loading.site
import pyg_direct.sampling.sampler
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.devices import HOST, Choice
from pyg_direct.ops.streams import Streams

IDS = {"n_id", "e_id", "input_id"}


class Machine:
    """A machine with two emulated GPUs, and a process that uses none, one, or both."""

    def __init__(self, backend: Any, patch: pytest.MonkeyPatch) -> None:
        self.backend, self.used = backend, HOST
        self.streams: Streams | None = None  # of all devices; None for those of the emulator
        patch.delenv("PYG_DIRECT_DEVICE")
        patch.setattr(pyg_direct.loading.site, "process_device", self.process_device)
        patch.setattr(pyg_direct.loading.site, "cuda_available", lambda: True)
        for module in (pyg_direct.loading.site, pyg_direct.sampling.sampler):
            patch.setattr(module, "backend_for", self.backend_for)

    def process_device(self, data: Any, rank: int | None) -> Choice:
        return Choice(self.used, f"the process uses {self.used}")

    def backend_for(self, device: torch.device, threads: int = 1) -> Any:
        if device == HOST:
            return CpuBackend(threads)
        backend = on_device(self.backend, device.index or 0)
        if self.streams is not None:
            backend.streams = backend.memory._streams = self.streams
        return backend

    def gpu(self, index: int) -> torch.device:
        return torch.device(self.backend.device.type, index)


def places(batch: Any) -> dict[str, set[torch.device]]:
    """Return where the tensors of a batch are, by name."""
    found: dict[str, set[torch.device]] = {}
    for store in batch.stores:
        for name, value in store.items():
            if isinstance(value, Tensor):
                found.setdefault(name, set()).add(value.device)
    return found


def assert_like_pyg_on_a_gpu(batch: Any, device: torch.device) -> None:
    found = places(batch)
    assert found.keys() >= {"n_id", "e_id", "edge_index"}
    for name, devices in found.items():
        assert devices == {HOST if name in IDS else device}, name
