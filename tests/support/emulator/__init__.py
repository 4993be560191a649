"""A CUDA device emulated on the CPU: the very same `.cu` text, through g++ and fibres.

What it checks, and how, is said in `cuda_emulator.h`. `EmulatedDevice` takes CuPy's place behind
`pyg_direct.ops.cuda.launch.Library`; the Python of the cuda backend runs over it unchanged.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from pyg_direct.ops.cuda.descriptor import Descriptor
from pyg_direct.ops.cuda.launch import (
    Grid,
    Launch,
    Library,
    Prepare,
    compile_options,
    threads_of,
)
from pyg_direct.ops.cuda.pinning import Registry
from pyg_direct.ops.cuda.source import Declaration, Parameter
from pyg_direct.ops.streams import NoStreams

from . import torch_device
from .build import build
from .runtime import FakeRuntime
from .schedules import Schedules

HERE = Path(__file__).parent
# Block by block, ascending or descending; several blocks at once, shuffled with breaks at atomics.
ORDERS = (0, 1, 2)
POISON = 0xCB


class EmulatorError(AssertionError):
    """A kernel did something that is wrong on a GPU."""


class _Argument(ctypes.Structure):
    _fields_ = [
        ("value", ctypes.c_uint64),
        ("bytes", ctypes.c_uint64),
        ("written", ctypes.c_void_p),
        ("kind", ctypes.c_int),
        ("recorded", ctypes.c_int),
        ("name", ctypes.c_char_p),
    ]


class _Counts(ctypes.Structure):
    _fields_ = [("requests", ctypes.c_uint64), ("payload_bytes", ctypes.c_uint64)]


@dataclass
class Requests:
    """Reads of the recorded array, summed over launches: see `entry.h`."""

    requests: int = 0
    payload_bytes: int = 0


class Memory:
    """Knows which bytes of the arrays from `empty` have been written by a kernel.

    Keeps them alive, so that no other array can come to lie at a known address.
    """

    def __init__(self) -> None:
        self._arrays: list[tuple[int, Tensor, np.ndarray]] = []

    def empty(self, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        tensor = torch.empty(size, dtype=dtype, device=device)
        if tensor.numel() > 0:
            ctypes.memset(tensor.data_ptr(), POISON, tensor.nbytes)
            written = np.zeros(tensor.nbytes, np.uint8)
            entry = (tensor.data_ptr(), tensor, written)
            bisect.insort(self._arrays, entry, key=lambda entry: entry[0])
        return tensor

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Copy values, and what is known about them."""
        target.copy_(source)
        mine, theirs = self.written(target), self.written(source)
        if mine is not None:
            mine[:] = 1 if theirs is None else theirs

    def written(self, tensor: Tensor) -> np.ndarray | None:
        """Return the flags of a tensor's bytes, or None if it did not come from `empty`."""
        address, nbytes = tensor.data_ptr(), tensor.numel() * tensor.element_size()
        i = bisect.bisect_right(self._arrays, address, key=lambda entry: entry[0]) - 1
        if nbytes == 0 or i < 0:
            return None
        start, _, written = self._arrays[i]
        if address + nbytes > start + len(written):
            return None
        return written[address - start : address - start + nbytes]

    def assert_written(self, tensor: Tensor, what: str) -> None:
        """Raise unless every byte of an output was written."""
        written = self.written(tensor)
        if written is not None and not written.all():
            raise EmulatorError(f"{what}: {int((written == 0).sum())} bytes were never written.")


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

    processors, link_bytes_under_way = 2, None

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
        library = _compiled(file, _translation_unit(text, types, kernels), options)
        return {
            declaration.name: self._preparer(library, number, declaration)
            for number, declaration in enumerate(kernels)
        }

    def _preparer(self, library: ctypes.CDLL, number: int, declaration: Declaration) -> Prepare:
        def prepare(block: int, arguments: Sequence[Any]) -> Launch:
            def launch(grid: Grid) -> None:
                self.launches += 1
                with _LOCK:
                    self._run(library, number, declaration, grid, block, arguments)

            return launch

        return prepare

    def _run(
        self,
        library: ctypes.CDLL,
        number: int,
        declaration: Declaration,
        grid: Grid,
        block: int,
        arguments: Sequence[Any],
    ) -> None:
        flat = _flat(declaration, arguments)
        _check_aliases(declaration.name, flat)
        self._check_places(declaration.name, flat)
        packed = (_Argument * len(flat))()
        for slot, (parameter, value) in zip(packed, flat, strict=True):
            slot.name = f"{declaration.name}: {parameter.name}".encode()
            if isinstance(value, Tensor):
                slot.value = value.data_ptr()
                slot.bytes = value.numel() * value.element_size()
                flags = self.memory.written(value)
                slot.written = None if flags is None else flags.ctypes.data
                slot.kind = 1 if parameter.kind == "In" else 2
                slot.recorded = parameter.name == self.recorded
            else:
                slot.value = int(value) & 0xFFFFFFFFFFFFFFFF
        counts, error = _Counts(), ctypes.create_string_buffer(400)
        dimensions = (ctypes.c_uint * 3)(*grid)
        exploration = None if self.schedules is None else self.schedules.begin(declaration.name)
        failed = library.emulator_launch(
            number, packed, len(packed), dimensions, block, self.order,
            ctypes.c_uint64(self.launches), None if exploration is None else exploration.pointer,
            ctypes.byref(counts), error, len(error),
        )  # fmt: skip
        self.requests.requests += counts.requests
        self.requests.payload_bytes += counts.payload_bytes
        if failed:
            raise EmulatorError(error.value.decode())
        if self.schedules is not None and exploration is not None:
            self.schedules.end(exploration, library)

    def _check_places(self, kernel: str, arguments: Flat) -> None:
        """Raise unless a GPU could reach every array: in its memory, or pinned and only read."""
        for parameter, value in arguments:
            if not isinstance(value, Tensor) or value.device == self.device or value.numel() == 0:
                continue
            if value.device.type != "cpu" or parameter.kind != "In" or not value.is_pinned():
                raise EmulatorError(
                    f"{kernel}: {parameter.name} lies on {value.device}, not on "
                    f"{self.device} or in pinned memory that is only read."
                )


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


_LOCK = threading.Lock()
_loaded: dict[Path, ctypes.CDLL] = {}


Flat = list[tuple[Parameter, Any]]  # parameters and arguments, with descriptors' fields


def _flat(declaration: Declaration, arguments: Sequence[Any]) -> Flat:
    """Return the arguments of a launch, with the fields of descriptors in their place.

    Raises:
        EmulatorError: device memory does not hold what a descriptor's fields are.
    """
    flat: Flat = []
    for parameter, value in zip(declaration.parameters, arguments, strict=True):
        if not isinstance(value, Descriptor):
            flat.append((parameter, value))
            continue
        placed = value.placed.cpu().numpy()
        for field, word, meant in zip(value.fields, placed, value.words, strict=True):
            if word != meant:
                raise EmulatorError(
                    f"{declaration.name}: {field.name} of the descriptor in device memory is "
                    f"{word}, not {meant}: it was not uploaded after a change."
                )
            flat.append((field, value.values[field.name]))
    return flat


def _check_aliases(kernel: str, arguments: Flat) -> None:
    """Raise if an array that a kernel writes overlaps another one of the launch."""
    ranges = sorted(
        (a.data_ptr(), a.data_ptr() + a.numel() * a.element_size(), p.kind, p.name)
        for p, a in arguments
        if isinstance(a, Tensor) and a.numel() > 0
    )
    end, furthest = 0, ("", "")  # of the array so far that reaches furthest
    for first, last, kind, name in ranges:
        if first < end and "Out" in (kind, furthest[0]):
            raise EmulatorError(f"{kernel}: {furthest[1]} and {name} overlap.")
        if last > end:
            end, furthest = last, (kind, name)


def _translation_unit(text: str, types: Mapping[str, str], kernels: Sequence[Declaration]) -> str:
    """Return the C++ source: emulator, kernels, and a function that calls each kernel."""
    cases = []
    for number, declaration in enumerate(kernels):
        arguments, before, at = [], [], 0
        for parameter in declaration.parameters:
            if parameter.kind != "Descriptor":
                arguments.append(_value(parameter, types, at))
                at += 1
                continue
            fields = [_value(field, types, at + i) for i, field in enumerate(parameter.fields)]
            before.append(f"const {parameter.type} {parameter.name}{{{', '.join(fields)}}};")
            arguments.append(f"&{parameter.name}")
            at += len(fields)
        call = f"{declaration.name}({', '.join(arguments)});"
        cases.append(f"    case {number}: {{ {' '.join(before)} {call} break; }}")
    return "\n".join([
        '#include "cuda_emulator.h"',
        text,
        '#include "entry.h"',
        "static void run_kernel(const EmulatorLaunch &launch) {",
        "  switch (launch.kernel) {",
        *cases,
        "  }",
        "}",
        "",
    ])  # fmt: skip


def _value(parameter: Parameter, types: Mapping[str, str], at: int) -> str:
    """Return the C++ of argument `at`."""
    kind = types.get(parameter.type, parameter.type)
    if parameter.kind == "value":
        return f"static_cast<{kind}>(launch.arguments[{at}].value)"
    return f"{parameter.kind}<{kind}>{{&(*launch.arrays)[{at}]}}"


def _compiled(file: str, source: str, options: Sequence[str]) -> ctypes.CDLL:
    """Compile a translation unit, or take it from the cache, and load it."""
    explores = any("EMULATED_LANES" in option for option in options)
    headers = "".join(
        path.read_text()
        for path in sorted(HERE.glob("*.h"))
        if explores or path.name != "explore.h"
    )
    options = [
        *options, "-O1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas",
        "-Wno-unused-parameter", "-ffp-contract=off", f"-I{HERE}",
    ]  # fmt: skip
    path = build(Path(file).stem, source, options, key=headers)
    if path not in _loaded:
        _loaded[path] = ctypes.CDLL(str(path))
        _loaded[path].emulator_outcome.restype = ctypes.c_void_p
    return _loaded[path]
