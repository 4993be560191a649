"""The arguments of an emulated launch: what must hold of them, and how C++ gets them."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_direct.ops.cuda.descriptor import Descriptor
from pyg_direct.ops.cuda.source import Declaration, Parameter

from .memory import EmulatorError, Memory

# `EmulatorArgument` of `entry.h`
_ARGUMENT = np.dtype(
    [("value", "u8"), ("bytes", "u8"), ("written", "u8"), ("kind", "i4"), ("recorded", "i4"),
     ("name", "u8"), ("low", "u8")]
)  # fmt: skip

Flat = list[tuple[Parameter, Any]]  # parameters and arguments, with descriptors' fields
Range = tuple[int, int]  # address and bytes of an array

_texts: list[ctypes.Array[ctypes.c_char]] = []  # whose addresses C++ has


def packed(
    declaration: Declaration,
    template: np.ndarray,
    arguments: Sequence[Any],
    device: torch.device,
    memory: Memory,
    recorded: str,
    far: Mapping[str, int],
) -> np.ndarray:
    """Return the arguments of a launch as `EmulatorArgument` of `entry.h`.

    Args:
        declaration: of the kernel.
        template: see `constant`.
        arguments: a tensor, an int or a `Descriptor` for each parameter.
        device: that runs it.
        memory: knows which bytes have been written.
        recorded: name of the array whose reads are counted, or "".
        far: elements before the first one of arrays, by name: see `EmulatedDevice.far`.

    Raises:
        EmulatorError: the device could not reach an array, a written one overlaps another, or
            device memory does not hold what a descriptor's fields are.
    """
    flat = _flat(declaration, arguments)
    ranges = [(a.data_ptr(), a.nbytes) if isinstance(a, Tensor) else None for _, a in flat]
    _check_aliases(declaration.name, flat, ranges)
    _check_places(declaration.name, flat, device)
    found = template.copy()
    found["value"] = [
        int(value) & 0xFFFFFFFFFFFFFFFF if array is None else array[0]
        for (_, value), array in zip(flat, ranges, strict=True)
    ]
    found["bytes"] = [0 if array is None else array[1] for array in ranges]
    found["written"] = [0 if array is None else memory.flags_at(*array) for array in ranges]
    if recorded:
        found["recorded"] = [parameter.name == recorded for parameter, _ in flat]
    names = [parameter.name for parameter, _ in flat]
    for name in far.keys() & set(names) if far else ():
        i = names.index(name)  # of a descriptor, if a parameter is called as one of its fields
        if (value := flat[i][1]).numel() > 0:
            low = far[name] * value.element_size()
            found["value"][i] -= np.uint64(low)
            found["written"][i] -= np.uint64(low if found["written"][i] else 0)
            found["bytes"][i] += np.uint64(low)
            found["low"][i] = low
    return found


def places_of(arguments: Sequence[Any]) -> list[int]:
    """Return the addresses of the descriptors, which a GPU is given when a launch is prepared."""
    return [value.placed.data_ptr() for value in arguments if isinstance(value, Descriptor)]


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
        for i in np.flatnonzero(placed != value.words):
            raise EmulatorError(
                f"{declaration.name}: {value.fields[i].name} of the descriptor in device memory is "
                f"{placed[i]}, not {value.words[i]}: it was not uploaded after a change."
            )
        flat += [(field, value.values[field.name]) for field in value.fields]
    return flat


def constant(declaration: Declaration) -> np.ndarray:
    """Return the arguments of a kernel with what is the same in all its launches."""
    fields = [f for p in declaration.parameters for f in (p.fields or (p,))]
    found = np.zeros(len(fields), _ARGUMENT)
    found["kind"] = [{"In": 1, "Out": 2}.get(field.kind, 0) for field in fields]
    found["name"] = [_address(f"{declaration.name}: {field.name}") for field in fields]
    return found


@functools.cache
def _address(name: str) -> int:
    """Return the address of a text that is kept for good."""
    _texts.append(ctypes.create_string_buffer(name.encode()))
    return ctypes.addressof(_texts[-1])


def _check_places(kernel: str, arguments: Flat, device: torch.device) -> None:
    """Raise unless a GPU could reach every array: in its memory, or pinned and only read."""
    for parameter, value in arguments:
        if not isinstance(value, Tensor) or value.device == device or value.numel() == 0:
            continue
        if value.device.type != "cpu" or parameter.kind != "In" or not value.is_pinned():
            raise EmulatorError(
                f"{kernel}: {parameter.name} lies on {value.device}, not on "
                f"{device} or in pinned memory that is only read."
            )


def _check_aliases(kernel: str, arguments: Flat, arrays: Sequence[Range | None]) -> None:
    """Raise if an array that a kernel writes overlaps another one of the launch."""
    ranges = sorted(
        (array[0], array[0] + array[1], parameter.kind, parameter.name)
        for (parameter, _), array in zip(arguments, arrays, strict=True)
        if array is not None and array[1] > 0
    )
    end, furthest = 0, ("", "")  # of the array so far that reaches furthest
    for first, last, kind, name in ranges:
        if first < end and "Out" in (kind, furthest[0]):
            raise EmulatorError(f"{kernel}: {furthest[1]} and {name} overlap.")
        if last > end:
            end, furthest = last, (kind, name)
