"""From kernel text to checked launches: the only file that imports CuPy, and only when it must.

CuPy checks nothing about the arguments of a kernel, so `Kernel.__call__`, where every launch of the
package happens, does.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch
from torch import Tensor

from .cuda_runtime import CupyRuntime
from .pinning import Registry
from .placement import Copies
from .source import Declaration, Parameter, declarations, read_source
from .streams import CudaStreams, Streams

BLOCK_THREADS = 256
STANDARD = "-std=c++17"

Launch = Callable[[tuple[int, ...], int, Sequence[Any]], None]
"""Called with the grid, the threads of a block, and the arguments: tensors and NumPy scalars."""

_DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    # torch has few operations for unsigned integers, so tensors of the same width stand in.
    "u8": (torch.uint8,),
    "u32": (torch.int32,),
    "i32": (torch.int32,),
    "i64": (torch.int64,),
    "f64": (torch.float64,),
}
_SCALARS: Mapping[str, tuple[Callable[[Any], np.integer[Any]], int, int]] = {
    "i32": (np.int32, -(1 << 31), (1 << 31) - 1),
    "u32": (np.uint32, 0, (1 << 32) - 1),
    "i64": (np.int64, -(1 << 63), (1 << 63) - 1),
}
_NAMES = {torch.int32: "i32", torch.int64: "i64"}


def type_name(dtype: torch.dtype) -> str:
    """Return the name of an id dtype in the kernels' text.

    Raises:
        TypeError: neither int32 nor int64.
    """
    if dtype not in _NAMES:
        raise TypeError(f"Kernels take int32 and int64 ids, got {dtype}.")
    return _NAMES[dtype]


class Compiler(Protocol):
    """Turns kernel text into something that can be launched."""

    device: torch.device
    processors: int  # streaming multiprocessors
    copies: Copies  # of users' tensors in the device's memory
    block_threads: int  # threads of a block, which the text sees as BLOCK_THREADS

    @property
    def registry(self) -> Registry:
        """The registry of the host memory that kernels read."""

    @property
    def streams(self) -> Streams:
        """The streams of the device."""

    def free_bytes(self) -> int:
        """Return how much device memory is free."""

    def build(
        self, file: str, text: str, kernels: Mapping[str, Declaration]
    ) -> Mapping[str, Launch]:
        """Compile some kernels of one file.

        Args:
            file: name of the `.cu` file, for messages.
            text: expanded source text.
            kernels: C++ names of the instances, with their declarations.
        """


class Kernel:
    """One instance of a kernel on one device.

    Args:
        declaration: what the text says about its parameters.
        types: values of its template parameters.
        launch: launches it, checking nothing.
        device: where its arrays must be.
        block_threads: threads of a block.
    """

    def __init__(
        self,
        declaration: Declaration,
        types: Mapping[str, str],
        launch: Launch,
        device: torch.device,
        block_threads: int,
    ) -> None:
        self.name = declaration.instance(types)
        self._launch, self._device, self._block_threads = launch, device, block_threads
        self._parameters = [
            (parameter, types.get(parameter.type, parameter.type))
            for parameter in declaration.parameters
        ]

    def __call__(self, grid: int | tuple[int, ...], *arguments: Tensor | int) -> None:
        """Launch on torch's current stream.

        Args:
            grid: number of blocks, at least 1, along each dimension.
            arguments: a contiguous tensor for each array, an int for each value, in the order of
                the declaration. Arrays are on the kernel's device; those that it only reads may
                be in pinned host memory.

        Raises:
            TypeError: the wrong number, kind or dtype of arguments.
            ValueError: a wrong device or layout, a value out of range, or an empty grid.
        """
        if len(arguments) != len(self._parameters):
            raise TypeError(
                f"Kernel {self.name} takes {len(self._parameters)} arguments, got {len(arguments)}."
            )
        checked = [
            self._check_array(parameter, kind, argument)
            if parameter.kind != "value"
            else self._check_value(parameter, kind, argument)
            for (parameter, kind), argument in zip(self._parameters, arguments, strict=True)
        ]
        grid = (grid,) if isinstance(grid, int) else grid
        if min(grid) < 1 or max(grid[1:], default=1) > 65535 or grid[0] > 0x7FFFFFFF:
            raise ValueError(f"Kernel {self.name} cannot run on a grid of {grid} blocks.")
        self._launch(grid, self._block_threads, checked)

    def _check_array(self, parameter: Parameter, kind: str, value: Any) -> Tensor:
        if not isinstance(value, Tensor):
            raise TypeError(
                f"{self.name}: {parameter.name} must be a tensor, got {type(value).__name__}."
            )
        if value.dtype not in _DTYPES[kind]:
            raise TypeError(
                f"{self.name}: {parameter.name} must be {_DTYPES[kind][0]}, got {value.dtype}."
            )
        if value.device != self._device and not self._can_read(parameter, value):
            raise ValueError(
                f"{self.name}: {parameter.name} must be on {self._device}"
                f"{' or in pinned memory' if parameter.kind == 'In' else ''}, got {value.device}."
            )
        if not value.is_contiguous():
            raise ValueError(
                f"{self.name}: {parameter.name} must be contiguous, got the strides "
                f"{value.stride()} for the shape {tuple(value.shape)}."
            )
        return value

    def _can_read(self, parameter: Parameter, value: Tensor) -> bool:
        """Whether an array is in host memory that the device can read under the same address."""
        on_host = self._device.type == "cuda" and value.device.type == "cpu"
        return parameter.kind == "In" and on_host and value.is_pinned()

    def _check_value(self, parameter: Parameter, kind: str, value: Any) -> np.integer[Any]:
        if isinstance(value, Tensor) or not isinstance(value, (int, np.integer)):
            raise TypeError(
                f"{self.name}: {parameter.name} must be an int, got {type(value).__name__}."
            )
        scalar, low, high = _SCALARS[kind]
        if not low <= value <= high:
            raise ValueError(
                f"{self.name}: {parameter.name} must be in [{low}, {high}] ({kind}), got {value}."
            )
        return scalar(value)


class Library:
    """The kernels of all files for one device, compiled when they are first asked for."""

    def __init__(self, compiler: Compiler) -> None:
        self.compiler = compiler
        self._loaded: dict[Any, Mapping[str, Kernel]] = {}
        self._lock = threading.Lock()  # producer threads ask for the same kernels at once

    def load(self, file: str, **types: str) -> Mapping[str, Kernel]:
        """Return the kernels of one file by name.

        Args:
            file: such as "sample.cu".
            **types: a value for every template parameter in the file.
        """
        key = (file, *sorted(types.items()))
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._build(file, types)
            return self._loaded[key]

    def _build(self, file: str, types: Mapping[str, str]) -> Mapping[str, Kernel]:
        text = read_source(file)
        kernels = {d.instance(types): d for d in declarations(text)}
        launches = self.compiler.build(file, text, kernels)
        device, threads = self.compiler.device, self.compiler.block_threads
        return {
            d.name: Kernel(d, types, launches[name], device, threads) for name, d in kernels.items()
        }


class CupyCompiler:
    """NVRTC through `cupy.RawModule`; compiled code is kept in CuPy's cache on disk."""

    def __init__(self, device: torch.device) -> None:
        self._cupy = require_cuda(device)
        self.device = device
        self.block_threads = BLOCK_THREADS
        self._cupy_streams: dict[int, Any] = {}
        self.copies: Copies = WeakValueDictionary()
        self.processors = self._cupy.cuda.Device(device.index).attributes["MultiProcessorCount"]

    @functools.cached_property
    def registry(self) -> Registry:
        """The registry of the process: registered memory can be read by all of its GPUs."""
        registry, runtime = _registry(self._cupy)
        runtime.devices.add(self.device.index)
        return registry

    @functools.cached_property
    def streams(self) -> Streams:
        """The streams of the device."""
        return CudaStreams(self.device)

    def free_bytes(self) -> int:
        """Return what the driver has free, and what torch's cache holds unused."""
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + cached

    def build(
        self, file: str, text: str, kernels: Mapping[str, Declaration]
    ) -> Mapping[str, Launch]:
        """Compile `kernels` for the device."""
        with self._cupy.cuda.Device(self.device.index):
            module = self._cupy.RawModule(
                code=text,
                options=(STANDARD, f"-DBLOCK_THREADS={self.block_threads}"),
                name_expressions=tuple(kernels),
            )
            functions = {name: module.get_function(name) for name in kernels}
        return {name: self._launcher(function) for name, function in functions.items()}

    def _launcher(self, function: Callable[..., None]) -> Launch:
        cuda, index = self._cupy.cuda, self.device.index

        def launch(grid: tuple[int, ...], block: int, arguments: Sequence[Any]) -> None:
            raw = tuple(np.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in arguments)
            with cuda.Device(index), self._stream(torch.cuda.current_stream(index).cuda_stream):
                function((*grid, 1, 1)[:3], (block, 1, 1), raw)

        return launch

    def _stream(self, handle: int) -> Any:
        """Return CuPy's object for one of torch's streams, which live as long as the process."""
        if handle not in self._cupy_streams:
            cuda = self._cupy.cuda
            if hasattr(cuda.Stream, "from_external"):  # CuPy 14, where ExternalStream is deprecated
                self._cupy_streams[handle] = cuda.Stream.from_external(_Handle(handle))
            else:
                self._cupy_streams[handle] = cuda.ExternalStream(handle, self.device.index)
        return self._cupy_streams[handle]


class _Handle:
    """A stream as the CUDA stream protocol wants it, which torch's own do in new versions only."""

    def __init__(self, handle: int) -> None:
        self._handle = handle

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self._handle


@functools.cache
def _registry(cupy: Any) -> tuple[Registry, CupyRuntime]:
    runtime = CupyRuntime(cupy)
    return Registry(runtime), runtime


@functools.cache
def library_for(device: torch.device) -> Library:
    """Return the kernels of a CUDA device; `device` has an index."""
    return Library(CupyCompiler(device))


def require_cuda(device: torch.device) -> Any:
    """Return the module cupy, if it and torch can use `device`.

    Raises:
        RuntimeError: something is missing; the message says what, and the command that mends it.
    """
    version = torch.version.cuda
    if version is None:
        raise RuntimeError(
            f"device={str(device)!r} needs a PyTorch with CUDA, but torch {torch.__version__} was "
            f"built without. On Linux, pip install --force-reinstall torch brings one; then "
            f"pip install 'pyg-direct[cuda12]' or 'pyg-direct[cuda13]', whichever is the major of "
            f"torch.version.cuda. Or use device='cpu'."
        )
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"device={str(device)!r} needs an NVIDIA GPU and its driver, and torch finds none "
            f"(torch.cuda.is_available() is False). See whether `nvidia-smi` lists the GPU; a "
            f"torch for CUDA {version} needs a driver for CUDA {version} or newer. Or use "
            f"device='cpu'."
        )
    if device.index is not None and device.index >= torch.cuda.device_count():
        raise RuntimeError(
            f"device={str(device)!r} does not exist: there are {torch.cuda.device_count()} CUDA "
            f"devices, from 'cuda:0' on."
        )
    return _require_cupy(device, int(version.split(".")[0]))


def _require_cupy(device: torch.device, major: int) -> Any:
    extra = f"pip install 'pyg-direct[cuda{major}]'"
    try:
        import cupy

        built_for = cupy.cuda.runtime.runtimeGetVersion() // 1000
    except ImportError as error:
        raise RuntimeError(
            f"device={str(device)!r} needs CuPy, which could not be imported ({error}). torch "
            f"uses CUDA {torch.version.cuda}, so install the matching extra: {extra}"
        ) from error
    if built_for != major:
        raise RuntimeError(
            f"CuPy {cupy.__version__} is for CUDA {built_for}, but torch {torch.__version__} uses "
            f"CUDA {torch.version.cuda}. Both must have the same major version: "
            f"pip uninstall -y cupy-cuda{built_for}x && {extra}"
        )
    return cupy
