"""From kernel text to checked launches.

CuPy checks nothing about the arguments of a kernel, so `Kernel.bind`, where every launch of the
package comes from, does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from ...core.types import Csc, SamplingPlan
from ...kernels.jit import COMPILING
from ..streams import Streams
from .descriptor import Descriptor, check_array, check_value, resolved
from .pinning import Registry
from .placer import Copies
from .source import (
    ONE_BLOCK_FILE,
    Declaration,
    Parameter,
    declarations,
    instance_names,
    instance_options,
    read_source,
)
from .table import NodeTable

BLOCK_THREADS = 256
STANDARD = "-std=c++17"

Grid = tuple[int, ...]
Arguments = Mapping[str, "Tensor | int | Descriptor"]
Launch = Callable[[Grid], None]
"""Launches a kernel with the arguments that it was prepared with, on torch's current stream."""

Prepare = Callable[[int, Sequence[Any]], Launch]
"""Called with the threads of a block, and the arguments: tensors, NumPy scalars, descriptors."""

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


def threads_of(file: str, block_threads: int) -> int:
    """Return the threads of a block of a file's kernels.

    Args:
        file: such as "sample.cu".
        block_threads: of kernels that are launched as many blocks.
    """
    return 2 * block_threads if file == ONE_BLOCK_FILE else block_threads


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
    def foreign_allocator(self) -> bool:
        """Whether device memory comes from an allocator that is not torch's own."""

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

        The options are those of `compile_options` for the threads of `threads_of`.

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
        self._prepare, self._device, self.block_threads = prepare, device, block_threads
        self._parameters = resolved(declaration.parameters, types)
        self._names = frozenset(parameter.name for parameter in self._parameters)

    def bind(self, *arguments: Arguments, **named: Tensor | int | Descriptor) -> Launch:
        """Return a launch of the kernel, which can be called often and checks nothing any more.

        It takes a grid as `grid` returns it. The caller keeps the arrays for as long as it is used.

        Args:
            arguments: what the kernel's parameters are looked up in by name, the last first: a
                contiguous tensor for each array, an int for each value, a `Descriptor` for each
                struct. Other names are passed over. Arrays are on the kernel's device; those that
                it only reads may be in pinned host memory.
            **named: looked up before them.

        Raises:
            TypeError: no argument for a parameter, or one of the wrong kind or dtype.
            ValueError: a wrong device or layout, or a value out of range.
        """
        known: dict[str, Tensor | int | Descriptor] = {}
        for given in arguments:
            known.update(given)
        known.update(named)
        missing = self._names - known.keys()
        if missing:
            names = (p.name for p in self._parameters if p.name in missing)
            raise TypeError(f"Kernel {self.name} has no argument for {', '.join(names)}.")
        checked = [self._check(parameter, known[parameter.name]) for parameter in self._parameters]
        return self._prepare(self.block_threads, checked)

    def _check(self, parameter: Parameter, value: Any) -> Any:
        if parameter.kind == "value":
            return check_value(self.name, parameter, value)
        if parameter.kind != "Descriptor":
            return check_array(self.name, parameter, value, self._device)
        if not isinstance(value, Descriptor):
            raise TypeError(
                f"{self.name}: {parameter.name} must be a Descriptor, got {type(value).__name__}."
            )
        if value.fields != parameter.fields:
            raise TypeError(
                f"{self.name}: {parameter.name} must have the fields of {parameter.type}."
            )
        return value

    def __call__(self, grid: int | Grid, **arguments: Tensor | int | Descriptor) -> None:
        """Launch once on torch's current stream.

        Args:
            grid: number of blocks, at least 1, along each dimension.
            **arguments: as for `bind`, and no other.

        Raises:
            TypeError: as `bind`, or an argument too many.
            ValueError: as `bind`, or an empty grid.
        """
        others = arguments.keys() - self._names
        if others:
            raise TypeError(f"Kernel {self.name} has no parameter {', '.join(sorted(others))}.")
        self.bind(arguments)(self.grid(grid))

    def descriptor(self, name: str) -> Descriptor:
        """Return an empty descriptor for a parameter."""
        (parameter,) = (p for p in self._parameters if p.name == name)
        return Descriptor(parameter.fields, self._device)

    def grid(self, blocks: int | Grid) -> Grid:
        """Return the three dimensions of a grid.

        Raises:
            ValueError: it is empty, or larger than a GPU takes.
        """
        grid = (*((blocks,) if isinstance(blocks, int) else blocks), 1, 1)[:3]
        if min(grid) < 1 or max(grid[1:]) > 65535 or grid[0] > 0x7FFFFFFF:
            raise ValueError(f"Kernel {self.name} cannot run on a grid of {grid} blocks.")
        return grid


def raw_arguments(arguments: Sequence[Any]) -> tuple[Any, ...]:
    """Return checked arguments as a driver takes them.

    NumPy scalars have the width of the parameter; CuPy would take an int for 64 bits.
    """
    places = [a.placed if isinstance(a, Descriptor) else a for a in arguments]
    return tuple([np.uint64(a.data_ptr()) if isinstance(a, Tensor) else a for a in places])


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
        with COMPILING:
            prepare = self.compiler.build(file, text, types, kernels)
        device, threads = self.compiler.device, threads_of(file, self.compiler.block_threads)
        return {d.name: Kernel(d, types, prepare[d.name], device, threads) for d in kernels}


FILES = (
    "sample.cu",
    "relabel.cu",
    ONE_BLOCK_FILE,
    "weighted.cu",
    "labor.cu",
    "picks.cu",
    "emit.cu",
)


class PlanKernels(Mapping[str, Kernel]):
    """Kernels of one graph and plan, by name.

    Args:
        csc: the graph.
        plan: how it is sampled.
        library: of the device.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, library: Library) -> None:
        self._library = library
        perm = csc.indices if csc.perm is None else csc.perm
        self._types = {
            "P": type_name(csc.indptr.dtype),
            "I": type_name(csc.indices.dtype),
            "M": type_name(perm.dtype),
            "O": type_name(plan.id_dtype),
            "kHashed": str(NodeTable.is_hashed(csc.num_nodes, plan.disjoint)).lower(),
        }
        self._loaded: dict[str, Kernel] = {}
        self._file = _file_by_kernel()

    def __getitem__(self, name: str) -> Kernel:
        """Return a kernel, having compiled its file."""
        if name not in self._loaded:
            file = self._file[name]
            names = instance_names(read_source(file))
            types = {name: self._types[name] for name in names}
            self._loaded.update(self._library.load(file, **types))
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        return iter(self._file)

    def __len__(self) -> int:
        """Return how many kernels there are."""
        return len(self._file)

    def descriptor(self) -> Descriptor:
        """Return an empty descriptor of a batch: see cuda/batch.cuh."""
        fields = resolved(_batch_fields(), self._types)
        return Descriptor(fields, self._library.compiler.device)


@cache
def _file_by_kernel() -> Mapping[str, str]:
    return {kernel.name: file for file in FILES for kernel in declarations(read_source(file))}


@cache
def _batch_fields() -> tuple[Parameter, ...]:
    """Return the fields of a batch's descriptor, which all kernels declare alike."""
    (fields,) = {
        parameter.fields
        for file in FILES
        for kernel in declarations(read_source(file))
        for parameter in kernel.parameters
        if parameter.kind == "Descriptor"
    }
    return fields
