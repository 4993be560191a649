"""A CUDA device emulated on the CPU: the very same `.cu` text, through g++ and fibres.

What it checks, and how, is said in `cuda_emulator.h`. `EmulatedDevice` takes CuPy's place behind
`pyg_direct.ops.cuda.launch.Library`; the Python of the cuda backend runs over it unchanged.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor
from torch_geometric.typing import SparseTensor

import pyg_direct.loading.base
import pyg_direct.loading.site
import pyg_direct.sampling.sampler
from pyg_direct.ops.cuda import backend as cuda
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.cuda.launch import (
    Grid,
    Launch,
    Library,
    Prepare,
    compile_options,
    threads_of,
)
from pyg_direct.ops.cuda.pinning import Registry
from pyg_direct.ops.cuda.source import Declaration
from pyg_direct.ops.streams import NoStreams

from . import torch_device
from .arguments import constant, packed, places_of
from .library import library_of
from .memory import EmulatorError, Memory
from .runtime import FakeRuntime
from .schedules import Schedules

# Block by block, ascending or descending; several blocks at once, shuffled with breaks at atomics.
ORDERS = (0, 1, 2)

_LOCK = threading.Lock()


class _Counts(ctypes.Structure):
    _fields_ = [
        ("requests", ctypes.c_uint64), ("payload_bytes", ctypes.c_uint64),
        ("pages", ctypes.c_uint64),
    ]  # fmt: skip


class _Kernel(NamedTuple):
    library: ctypes.CDLL
    number: int  # in the library
    declaration: Declaration
    template: np.ndarray  # of its arguments


@dataclass
class Requests:
    """Reads of the recorded array, summed over launches: see `entry.h`."""

    requests: int = 0
    payload_bytes: int = 0
    pages: int = 0


class EmulatedDevice:
    """Stands for a CUDA device.

    Args:
        block_threads: threads of a block; few, so that small inputs take several blocks.
        order: in which order threads and blocks run, one of `ORDERS`; an attribute, to be changed.
        planted: pairs (old, new) replaced in the kernels' text: mistakes that must be caught.
        warp_lanes: of the device whose launches can be run in all schedules: lanes of a warp, which
            may be fewer than 32 for kernels that call no sub-warps; 0 for one that cannot.
        index: of the torch device.
        registry: of host memory, which the devices of a process share; None for one of its own.
    """

    processors, link_bytes_under_way, foreign_allocator = 2, None, False

    def __init__(
        self,
        block_threads: int = 64,
        order: int = 0,
        planted: Sequence[tuple[str, str]] = (),
        index: int = 0,
        registry: Registry | None = None,
        warp_lanes: int = 0,
    ) -> None:
        torch_device.load()
        self.device = torch.device(torch_device.TYPE, index)
        self.block_threads, self.order, self.planted = block_threads, order, tuple(planted)
        self.warp_lanes = warp_lanes
        self.schedules: Schedules | None = None  # of some launches, which then run in all of them
        self.memory = Memory()
        # Elements before the first one of arrays, by name: kernels are given the address that the
        # array would begin at, so that its indices need more than 32 bits, and nothing else is
        # there.
        self.far: dict[str, int] = {}
        self.recorded = ""  # name of the array argument whose reads are counted
        self.requests = Requests()
        self.launches = 0
        self.copies = weakref.WeakValueDictionary()
        self.registry = registry or Registry(FakeRuntime())
        self.streams = NoStreams()
        self.free = 1 << 40  # bytes of the device that are free

    def free_bytes(self) -> int:
        return self.free

    @property
    def identity(self) -> str:
        return f"an emulated device with {self.planted or 'no mistakes'}"

    def probe(self) -> None: ...

    def build(
        self, file: str, text: str, types: Mapping[str, str], kernels: Sequence[Declaration]
    ) -> Mapping[str, Prepare]:
        options = compile_options(text, types, threads_of(file, self.block_threads))
        for old, new in self.planted:
            text = text.replace(old, new)
        if self.warp_lanes > 0:
            text = text.replace("kWarp = 32;", f"kWarp = {self.warp_lanes};")
            options = (*options, f"-DEMULATED_LANES={self.warp_lanes}")
        library = library_of(file, text, tuple(types.items()), tuple(kernels), options)
        return {
            declaration.name: self._preparer(library, number, declaration)
            for number, declaration in enumerate(kernels)
        }

    def _preparer(self, library: ctypes.CDLL, number: int, declaration: Declaration) -> Prepare:
        kernel = _Kernel(library, number, declaration, constant(declaration))

        def prepare(block: int, arguments: Sequence[Any]) -> Launch:
            places = places_of(arguments)

            def launch(grid: Grid) -> None:
                if places_of(arguments) != places:
                    raise EmulatorError(
                        f"{declaration.name} was prepared for a descriptor that has moved since."
                    )
                self.launches += 1
                with _LOCK:
                    self._run(kernel, grid, block, arguments)

            return launch

        return prepare

    def _run(self, kernel: _Kernel, grid: Grid, block: int, arguments: Sequence[Any]) -> None:
        library, number, declaration, template = kernel
        given = packed(
            declaration, template, arguments, self.device, self.memory, self.recorded, self.far
        )
        counts, error = _Counts(), ctypes.create_string_buffer(400)
        dimensions = (ctypes.c_uint * 3)(*grid)
        exploration = None if self.schedules is None else self.schedules.begin(declaration.name)
        failed = library.emulator_launch(
            number, ctypes.c_void_p(given.ctypes.data), len(given), dimensions, block, self.order,
            ctypes.c_uint64(self.launches), None if exploration is None else exploration.pointer,
            ctypes.byref(counts), error, len(error),
        )  # fmt: skip
        self.requests.requests += counts.requests
        self.requests.payload_bytes += counts.payload_bytes
        self.requests.pages += counts.pages
        if failed:
            raise EmulatorError(error.value.decode())
        if self.schedules is not None and exploration is not None:
            self.schedules.end(exploration, library)


@contextlib.contextmanager
def emulated(
    block_threads: int = 64,
    order: int = 0,
    planted: Sequence[tuple[str, str]] = (),
    warp_lanes: int = 0,
) -> Iterator[cuda.CudaBackend]:
    """Give a `CudaBackend` over emulated device 0, whose scratch memory is watched.

    What torch says about pinned memory is true of the emulated device in the meantime.
    """
    device = EmulatedDevice(block_threads, order, planted, warp_lanes=warp_lanes)
    runtime = device.registry.runtime
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(device_memory, "empty", device.memory.empty)
        patch.setattr(device_memory, "copy", device.memory.copy)
        patch.setattr(device_memory, "empty_pinned", runtime.empty_pinned)
        patch.setattr(Tensor, "is_pinned", lambda self, device=None: runtime.holds(self))
        patch.setattr(Tensor, "pin_memory", lambda self, device=None: runtime.pinned(self))
        yield cuda.CudaBackend(device.device, Library(device))


def on_device(backend: cuda.CudaBackend, index: int) -> cuda.CudaBackend:
    """Return a backend over another device of the same emulated process."""
    device: EmulatedDevice = backend.library.compiler
    other = EmulatedDevice(
        device.block_threads, device.order, device.planted, index, device.registry
    )
    other.memory = device.memory
    return cuda.CudaBackend(other.device, Library(other))


def pin(backend: cuda.CudaBackend, tensor: Tensor) -> Tensor:
    """Let the device read a CPU tensor where it lies, as if the user had pinned it."""
    runtime = backend.library.compiler.registry.runtime
    runtime.foreign[tensor.data_ptr()] = tensor.nbytes
    return tensor


def give_to_loaders(
    backend: cuda.CudaBackend, monkeypatch: pytest.MonkeyPatch, to_host: bool = False
) -> list[cuda.CudaBackend]:
    """Let every loader and sampler made from now on run on the device of `backend`.

    Each gets a backend of its own, as on a GPU; the list that is returned gets them all. With
    `to_host` batches are copied to the CPU once they are assembled, for tests of their values.
    """
    given: list[cuda.CudaBackend] = []

    def backend_for(device: torch.device, threads: int = 1) -> cuda.CudaBackend:
        given.append(cuda.CudaBackend(backend.device, backend.library))
        return given[-1]

    for module in (pyg_direct.sampling.sampler, pyg_direct.loading.site):
        monkeypatch.setattr(module, "backend_for", backend_for)
    if to_host:
        assemble = pyg_direct.loading.base.assemble
        monkeypatch.setattr(
            pyg_direct.loading.base, "assemble", lambda *args: _to_host(assemble(*args))
        )
    return given


def _to_host(batch: Any) -> Any:
    """Copy a batch's tensors to the CPU; all else stays the same object."""
    for store in batch.stores:
        for name, value in store._mapping.items():
            if isinstance(value, Tensor) and value.is_sparse and value.device.type != "cpu":
                parts = value._indices().cpu(), value._values().cpu()
                store[name] = torch.sparse_coo_tensor(*parts, value.shape, check_invariants=True)
            elif isinstance(value, (Tensor, SparseTensor)):
                store[name] = value.cpu()
    return batch
