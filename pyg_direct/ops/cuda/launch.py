"""From kernel text to checked launches.

CuPy checks nothing about the arguments of a kernel, so `Kernel.bind`, where every launch of the
package comes from, does.
"""

from __future__ import annotations

import threading
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ..streams import Streams
from .pinning import Registry
from .placer import Copies
from .source import Declaration, Parameter, declarations, instance_options, read_source

BLOCK_THREADS = 256
STANDARD = "-std=c++17"

Grid = tuple[int, ...]
Arguments = Mapping[str, "Tensor | int"]
Launch = Callable[[Grid], None]
"""Launches a kernel with the arguments that it was prepared with, on torch's current stream."""

Prepare = Callable[[int, Sequence[Any]], Launch]
"""Called with the threads of a block, and the arguments: tensors and NumPy scalars."""

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


def compile_options(text: str, types: Mapping[str, str], block_threads: int) -> tuple[str, ...]:
    """Return the options that one instance of an expanded source text is compiled with."""
    return (STANDARD, f"-DBLOCK_THREADS={block_threads}", *instance_options(text, types))


class Compiler(Protocol):
    """Turns kernel text into something that can be launched."""

    device: torch.device
    processors: int  # streaming multiprocessors
    copies: Copies  # of users' tensors in the device's memory
    block_threads: int  # threads of a block, which the text sees as BLOCK_THREADS

    @property
    def link_bytes_under_way(self) -> int | None:
        """Bytes under way that fill the link to host memory; None if that was not measured."""

    @property
    def registry(self) -> Registry:
        """The registry of the host memory that kernels read."""

    @property
    def streams(self) -> Streams:
        """The streams of the device."""

    @property
    def identity(self) -> str:
        """What the results of kernels depend on, as text: GPU, driver, compiler and package."""

    def probe(self) -> None:
        """Compile and run a kernel of one line, or raise a RuntimeError that says what to do."""

    def free_bytes(self) -> int:
        """Return how much device memory is free."""

    def build(
        self, file: str, text: str, types: Mapping[str, str], kernels: Sequence[Declaration]
    ) -> Mapping[str, Prepare]:
        """Compile one instance of a file, and return what prepares its kernels, by their names.

        Args:
            file: name of the `.cu` file, for messages.
            text: expanded source text.
            types: a value for every `INSTANCE_` name in it.
            kernels: what it declares.
        """


class Kernel:
    """One instance of a kernel on one device.

    Args:
        declaration: what the text says about its parameters.
        types: values of the `INSTANCE_` names of its file.
        prepare: makes launches of it, checking nothing.
        device: where its arrays must be.
        block_threads: threads of a block.
    """

    def __init__(
        self,
        declaration: Declaration,
        types: Mapping[str, str],
        prepare: Prepare,
        device: torch.device,
        block_threads: int,
    ) -> None:
        self.name = declaration.name
        self._prepare, self._device, self._block_threads = prepare, device, block_threads
        self._parameters = [
            (parameter, types.get(parameter.type, parameter.type))
            for parameter in declaration.parameters
        ]

    def bind(self, *arguments: Arguments, **named: Tensor | int) -> Launch:
        """Return a launch of the kernel, which can be called often and checks nothing any more.

        It takes a grid as `grid` returns it. The caller keeps the arrays for as long as it is used.

        Args:
            arguments: what the kernel's parameters are looked up in by name, the last first: a
                contiguous tensor for each array, an int for each value. Other names are passed
                over. Arrays are on the kernel's device; those that it only reads may be in pinned
                host memory.
            **named: looked up before them.

        Raises:
            TypeError: no argument for a parameter, or one of the wrong kind or dtype.
            ValueError: a wrong device or layout, or a value out of range.
        """
        known = ChainMap(named, *reversed(arguments))  # type: ignore[arg-type]
        missing = [p.name for p, _ in self._parameters if p.name not in known]
        if missing:
            raise TypeError(f"Kernel {self.name} has no argument for {', '.join(missing)}.")
        checked = [
            self._check_array(parameter, kind, known[parameter.name])
            if parameter.kind != "value"
            else self._check_value(parameter, kind, known[parameter.name])
            for parameter, kind in self._parameters
        ]
        return self._prepare(self._block_threads, checked)

    def __call__(self, grid: int | Grid, **arguments: Tensor | int) -> None:
        """Launch once on torch's current stream.

        Args:
            grid: number of blocks, at least 1, along each dimension.
            **arguments: as for `bind`, and no other.

        Raises:
            TypeError: as `bind`, or an argument too many.
            ValueError: as `bind`, or an empty grid.
        """
        others = arguments.keys() - {parameter.name for parameter, _ in self._parameters}
        if others:
            raise TypeError(f"Kernel {self.name} has no parameter {', '.join(sorted(others))}.")
        self.bind(arguments)(self.grid(grid))

    def grid(self, blocks: int | Grid) -> Grid:
        """Return the three dimensions of a grid.

        Raises:
            ValueError: it is empty, or larger than a GPU takes.
        """
        grid = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
        if min(grid) < 1 or max(grid[1:]) > 65535 or grid[0] > 0x7FFFFFFF:
            raise ValueError(f"Kernel {self.name} cannot run on a grid of {grid} blocks.")
        return grid

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
        if value.data_ptr() % value.element_size():  # no read on a GPU may be misaligned
            raise ValueError(
                f"{self.name}: {parameter.name} begins at an address that is no multiple of its "
                f"element size of {value.element_size()} bytes, as of a buffer read at an odd "
                f"offset. Pass a copy (x.clone())."
            )
        return value

    def _can_read(self, parameter: Parameter, value: Tensor) -> bool:
        """Whether an array is in host memory that the device can read under the same address."""
        return parameter.kind == "In" and value.device.type == "cpu" and value.is_pinned()

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
            **types: a value for every `INSTANCE_` name in the file.
        """
        key = (file, *sorted(types.items()))
        with self._lock:
            if key not in self._loaded:
                self._loaded[key] = self._build(file, types)
            return self._loaded[key]

    def _build(self, file: str, types: Mapping[str, str]) -> Mapping[str, Kernel]:
        text = read_source(file)
        kernels = declarations(text)
        prepare = self.compiler.build(file, text, types, kernels)
        device, threads = self.compiler.device, self.compiler.block_threads
        return {d.name: Kernel(d, types, prepare[d.name], device, threads) for d in kernels}
