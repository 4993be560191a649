"""Kernels and the CUDA runtime through CuPy: the only file that imports it, when it must."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from ..host_memory import driver_version, usable_bytes
from ..streams import Streams
from .cache_file import choose_cupy_folder, keep_cupy_in_memory
from .launch import (
    BLOCK_THREADS,
    STANDARD,
    Grid,
    Launch,
    Library,
    Prepare,
    compile_options,
    raw_arguments,
    threads_of,
)
from .link_file import gpu_key, read_link
from .nvrtc import preload_nvrtc
from .pinning import INVALID_VALUE, MEMORY_ALLOCATION, CudaError, Registry, tensor_at
from .placer import Copies
from .source import Declaration, sources_digest
from .streams import CudaStreams

logger = logging.getLogger("pyg_direct")

# As the extras of pyproject.toml have them: a command with the extra's name would look for
# pyg-direct on a package index, and not where a checkout was installed from.
CUPY_WHEELS = {12: "cupy-cuda12x>=13.3", 13: "cupy-cuda13x>=13.6"}
# What CuPy compiles with: NVRTC, and from CuPy 14 on CUDA's headers.
NVIDIA_WHEELS = {
    12: ("nvidia-cuda-nvrtc-cu12>=12.0", "nvidia-cuda-runtime-cu12>=12.0"),
    13: ("nvidia-cuda-nvrtc>=13.0,<14", "nvidia-cuda-runtime>=13.0,<14"),
}
# Of `cudaHostRegister` and `cudaHostAlloc`; from the CUDA runtime's headers.
PORTABLE, MAPPED, READ_ONLY = 1, 2, 8
CAN_USE_HOST_POINTER, READ_ONLY_SUPPORTED = 91, 113  # device attributes
PROBE = 'extern "C" __global__ void probe(int *out) { *out = 42; }'


def install_cupy(major: int) -> str:
    """Return the command that installs CuPy for a major version of CUDA."""
    return f"pip install '{CUPY_WHEELS.get(major, f'cupy-cuda{major}x')}'"


def install_compiler(major: int) -> str:
    """Return the command that installs what CuPy compiles with."""
    return "pip install " + " ".join(f"'{wheel}'" for wheel in NVIDIA_WHEELS.get(major, ()))


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
    def link_bytes_under_way(self) -> int | None:
        """What `python -m pyg_direct.info` measured of the device's link, at some time."""
        return read_link(gpu_key(self.device))

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

    def probe(self) -> None:
        """Compile and run a kernel of one line.

        Raises:
            torch.cuda.OutOfMemoryError: there is too little device memory at present.
            RuntimeError: that failed; the message says why, and the command that fixes it.
        """
        cupy, index = self._cupy, self.device.index
        out = torch.zeros(1, dtype=torch.int32, device=self.device)
        try:
            with (
                cupy.cuda.Device(index),
                self._stream(torch.cuda.current_stream(index).cuda_stream),
            ):
                (probe,) = self._compiled(PROBE, (STANDARD,), ["probe"])
                probe((1, 1, 1), (1, 1, 1), (np.uint64(out.data_ptr()),))
            found = int(out)
        except Exception as error:  # CuPy raises errors of many kinds for what it cannot find
            if getattr(error, "status", None) == MEMORY_ALLOCATION:  # of the runtime or the driver
                raise torch.cuda.OutOfMemoryError(str(error)) from error
            major = int(str(torch.version.cuda).split(".")[0])
            raise RuntimeError(
                f"CuPy {cupy.__version__} cannot compile or run a kernel "
                f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}). It "
                f"needs NVIDIA's compiler and headers: {install_compiler(major)}"
            ) from error
        if found != 42:
            raise RuntimeError(f"A kernel on {self.device} wrote {found} where it had to write 42.")

    @property
    def identity(self) -> str:
        """What the results of kernels depend on, as text: GPU, driver, compiler and package."""
        runtime, properties = self._cupy.cuda.runtime, torch.cuda.get_device_properties(self.device)
        nvrtc = ".".join(map(str, self._cupy.cuda.nvrtc.getVersion()))
        return (
            f"{properties.name} {properties.major}.{properties.minor}, driver "
            f"{runtime.driverGetVersion()} {driver_version()}, NVRTC {nvrtc}, CuPy "
            f"{self._cupy.__version__}, torch {torch.__version__}, kernels {sources_digest()}"
        )

    @functools.cached_property
    def foreign_allocator(self) -> bool:
        """Whether device memory comes from an allocator that is not torch's own."""
        return has_foreign_allocator()

    def free_bytes(self) -> int:
        """Return what the driver has free, and what torch's cache holds unused."""
        if self.foreign_allocator:  # which says nothing of its cache
            return torch.cuda.mem_get_info(self.device)[0]
        cached = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return torch.cuda.mem_get_info(self.device)[0] + cached

    def build(
        self, file: str, text: str, types: Mapping[str, str], kernels: Sequence[Declaration]
    ) -> Mapping[str, Prepare]:
        """Compile `kernels` for the device.

        Kernels have C linkage, so no name expressions are needed: with them, CuPy before 14.2
        compiles in every process again.
        """
        with self._cupy.cuda.Device(self.device.index):
            options = compile_options(text, types, threads_of(file, self.block_threads))
            names = [kernel.name for kernel in kernels]
            functions = self._compiled(text, options, names)
        return {
            name: self._preparer(function) for name, function in zip(names, functions, strict=True)
        }

    def _compiled(self, text: str, options: tuple[str, ...], names: Sequence[str]) -> list[Any]:
        """Return kernels of a text, whether or not CuPy can keep them on disk."""

        def compiled() -> list[Any]:
            module = self._cupy.RawModule(code=text, options=options)
            return [module.get_function(name) for name in names]

        try:
            return compiled()
        except OSError as problem:
            keep_cupy_in_memory(problem)
            return compiled()

    def _preparer(self, function: Callable[..., None]) -> Prepare:
        cuda, index = self._cupy.cuda, self.device.index

        def prepare(block: int, arguments: Sequence[Any]) -> Launch:
            raw = raw_arguments(arguments)
            threads = (block, 1, 1)

            def launch(grid: Grid) -> None:
                stream = self._stream(torch.cuda.current_stream(index).cuda_stream)
                if cuda.runtime.getDevice() == index:
                    function(grid, threads, raw, stream=stream)
                    return
                with cuda.Device(index):
                    function(grid, threads, raw, stream=stream)

            return launch

        return prepare

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


def has_foreign_allocator() -> bool:
    """Whether torch was given an allocator, as `rmm.allocators.torch` does, in place of its own.

    It counts no bytes, and need not know which streams use its memory (`record_stream`). None can
    be given once the device has been used.
    """
    try:
        if torch.cuda.get_allocator_backend() != "pluggable":
            return False
    except AttributeError:  # of a torch that was built without CUDA
        return False
    _note_foreign_allocator()
    return True


@functools.cache
def _note_foreign_allocator() -> None:
    logger.warning(
        "torch uses a pluggable allocator (such as RMM's), which does not know which streams use "
        "its memory: batches are made on the consumer's stream when they are asked for, which is "
        "slower than beside training."
    )


@functools.cache
def library_for(device: torch.device) -> Library:
    """Return the kernels of a CUDA device; `device` has an index."""
    return Library(CupyCompiler(device))


def require_cuda(device: torch.device) -> Any:
    """Return the module cupy, if it and torch can use `device`.

    Raises:
        RuntimeError: something is missing; the message says what, and the command that installs it.
    """
    version = torch.version.cuda
    if version is None:
        raise RuntimeError(
            f"device={str(device)!r} needs a PyTorch with CUDA, but torch {torch.__version__} was "
            f"built without. On Linux, pip install --force-reinstall torch brings one; then "
            f"pip install '{CUPY_WHEELS[12]}' or '{CUPY_WHEELS[13]}', whichever is the major of "
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
    extra = install_cupy(major)
    preload_nvrtc(major)
    choose_cupy_folder()
    try:
        import cupy

        built_for = cupy.cuda.runtime.runtimeGetVersion() // 1000
    except Exception as error:  # of any kind, as of files that it reads and folders that it makes
        raise RuntimeError(
            f"device={str(device)!r} needs CuPy, which could not be imported "
            f"({type(error).__name__}: {error}). torch uses CUDA {torch.version.cuda}, so install "
            f"the wheel for it: {extra}"
        ) from error
    if built_for != major:
        raise RuntimeError(
            f"CuPy {cupy.__version__} is for CUDA {built_for}, but torch {torch.__version__} uses "
            f"CUDA {torch.version.cuda}. Both must have the same major version: "
            f"pip uninstall -y cupy-cuda{built_for}x && {extra}"
        )
    return cupy


class CupyRuntime:
    """The CUDA runtime that CuPy is linked with; it clears the error state when it raises.

    Args:
        cupy: the module.
    """

    def __init__(self, cupy: Any) -> None:
        self._runtime, self._error = cupy.cuda.runtime, cupy.cuda.runtime.CUDARuntimeError
        self.devices: set[int] = set()  # with kernels; on others a wait would open a context
        self.same_address = self._all_have(CAN_USE_HOST_POINTER)
        self._read_only = self._all_have(READ_ONLY_SUPPORTED)

    def _all_have(self, attribute: int) -> bool:
        devices = range(self._runtime.getDeviceCount())
        return all(self._runtime.deviceGetAttribute(attribute, device) for device in devices)

    def register(self, address: int, nbytes: int) -> None:
        """Page-lock memory and map it for every GPU."""
        try:
            self._call(self._runtime.hostRegister, address, nbytes, PORTABLE | MAPPED)
        except CudaError as failure:
            # Pages that the process itself may not write, as of a file mapped read-only.
            if failure.code != INVALID_VALUE or not self._read_only:
                raise
            flags = PORTABLE | MAPPED | READ_ONLY
            self._call(self._runtime.hostRegister, address, nbytes, flags)

    def unregister(self, address: int) -> None:
        """Undo `register`."""
        self._call(self._runtime.hostUnregister, address)

    def is_pinned(self, address: int) -> bool:
        """Whether the page is locked and mapped already."""
        return tensor_at(address, 1).is_pinned()

    def allocate(self, nbytes: int) -> int:
        """Return the address of new pinned and mapped memory."""
        return int(self._call(self._runtime.hostAlloc, nbytes, PORTABLE | MAPPED))

    def free(self, address: int) -> None:
        """Free what `allocate` returned."""
        self._call(self._runtime.freeHost, address)

    def synchronize(self) -> None:
        """Wait for the GPUs that kernels were made for."""
        for device in tuple(self.devices):
            torch.cuda.synchronize(device)

    def available_bytes(self) -> int:
        """Return what can be had without swapping, and within the limits of a container."""
        return usable_bytes()

    def _call(self, function: Callable[..., Any], *arguments: int) -> Any:
        try:
            return function(*arguments)
        except self._error as error:
            raise CudaError(error.status, str(error).split(":")[0]) from None
