"""What a stage of `benchmarks.gpu` works with: the GPU or, quickly, the emulator of the tests."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol

import psutil
import torch
from torch import Tensor

from benchmarks.gpu.plan import Plan
from pyg_direct.core.config import DEVICE_VARIABLE
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.devices import backend_for
from pyg_direct.tools.doctor.bandwidth import Timer, event_timer

TESTS = Path(__file__).resolve().parents[2] / "tests"


class Device(Protocol):
    """Where batches are, and how time is taken there."""

    backend: CudaBackend
    device: torch.device
    model_device: torch.device  # of models, and of the batches that they are trained on
    argument: str | None  # of a loader on it
    host_argument: str | None  # of a loader on the CPU
    timer: Timer

    def pinned(self, tensor: Tensor) -> Tensor:
        """Return a copy of a host tensor in memory that the driver allocated for the device."""

    def mark(self) -> Any:
        """Return the present point in the work of the current stream."""

    def between(self, first: Any, last: Any) -> float:
        """Return the seconds between two marks that have been passed."""

    def settle(self) -> None:
        """Wait for the current stream, without keeping a core busy."""

    def memory(self) -> dict[str, int]:
        """Return bytes of the device's memory that are in use."""


class CudaDevice:
    """The first GPU."""

    argument, host_argument = "cuda", "cpu"

    def __init__(self) -> None:
        backend = backend_for(torch.device("cuda", 0))
        assert isinstance(backend, CudaBackend)
        self.backend, self.device = backend, backend.device
        self.model_device = self.device
        self.timer = event_timer(self.device)

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def mark(self) -> Any:
        event = torch.cuda.Event(enable_timing=True, blocking=True)
        event.record()
        return event

    def between(self, first: Any, last: Any) -> float:
        return float(first.elapsed_time(last)) / 1e3

    def settle(self) -> None:
        self.mark().synchronize()  # a blocking event: the thread sleeps

    def memory(self) -> dict[str, int]:
        free, total = torch.cuda.mem_get_info(self.device)
        return {
            "allocated": torch.cuda.memory_allocated(self.device),
            "reserved": torch.cuda.memory_reserved(self.device),
            "peak_allocated": torch.cuda.max_memory_allocated(self.device),
            "used_on_device": total - free,  # by all processes, also outside torch
        }


class DryDevice:
    """The emulator: nothing that it measures means anything."""

    argument = host_argument = None  # the emulated device takes the CPU's place
    model_device = torch.device("cpu")

    def __init__(self, backend: CudaBackend) -> None:
        self.backend, self.device = backend, backend.device

    def timer(self, work: Callable[[], object]) -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    def pinned(self, tensor: Tensor) -> Tensor:
        return tensor.pin_memory()

    def mark(self) -> Any:
        return time.perf_counter()

    def between(self, first: Any, last: Any) -> float:
        return float(last - first)

    def settle(self) -> None:
        pass

    def memory(self) -> dict[str, int]:
        return {}


@contextlib.contextmanager
def opened(dry: bool) -> Iterator[Device]:
    """Give the device; in a dry run, loaders take the emulated one while it is open."""
    if not dry:
        yield CudaDevice()
        return
    # Not as `tests.emulator`: other packages bring a `tests` of their own.
    sys.path.insert(0, str(TESTS / "support"))
    import pytest
    from emulator import emulated, give_to_loaders

    with emulated() as backend, pytest.MonkeyPatch.context() as patch:
        patch.setenv(DEVICE_VARIABLE, "cpu")  # what `device=None` of the loaders means
        # Batches come to the CPU, as the emulated device can't train.
        give_to_loaders(backend, patch, to_host=True)
        yield DryDevice(backend)


def registered(device: Device, tensor: Tensor) -> Tensor:
    """Return a host tensor whose own pages the device reads, as it does those of a user's data.

    Args:
        device: that reads it.
        tensor: [N, C], rows of more than 16 bytes: narrower ones are moved to the device. Its pages
            are left when it is deleted.
    """
    memory = device.backend.memory
    memory.place_tables([("benchmark", tensor)], "host")
    readable = memory.readable(tensor)
    assert readable is not None, "the memory could not be registered"
    assert readable.device != device.device, "the table lies in the device's memory"
    return readable


class Context:
    """What a stage is given.

    Args:
        dry: no GPU.
        plan: sizes.
        folder: of the graph.
        out: file for the results, written whenever one is added.
        logs: folder for what tools print.
        deadline: when the stage is stopped, of `time.monotonic`.
        archives: paths of sources that are to be built.
    """

    def __init__(
        self,
        dry: bool,
        plan: Plan,
        folder: Path,
        out: Path,
        logs: Path,
        deadline: float,
        archives: Sequence[str] = (),
    ) -> None:
        self.dry, self.plan, self.folder, self.logs = dry, plan, folder, logs
        self.archives = archives
        self._out, self._deadline = out, deadline
        self.results: dict[str, Any] = {}

    def keep(self, key: str, value: Any) -> None:
        """Add a result, so that it is there even if the stage is stopped."""
        self.results[key] = value
        part = self._out.with_suffix(".part")
        part.write_text(json.dumps(self.results))
        part.replace(self._out)
        print(f"{key}: {json.dumps(value)[:300]}", flush=True)

    def left(self) -> float:
        """Return the seconds until the stage is stopped."""
        return self._deadline - time.monotonic()

    def environment(self, **variables: str) -> dict[str, str]:
        """Return the environment of a command of this checkout."""
        root = str(TESTS.parent)
        path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH"))))
        return {**os.environ, "PYTHONPATH": path, **variables}


def host_bytes_used() -> int:
    """Return the memory of this process."""
    return int(psutil.Process().memory_info().rss)
