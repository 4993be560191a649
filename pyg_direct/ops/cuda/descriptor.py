"""Checked arguments of kernels, and the structs of them that lie in device memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .source import Parameter

DTYPES: Mapping[str, tuple[torch.dtype, ...]] = {
    # torch has few operations for unsigned integers, so tensors of the same width stand in.
    "u8": (torch.uint8,),
    "u64": (torch.int64,),
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


class Descriptor:
    """The values of a struct that kernels find in device memory: see cuda/batch.cuh.

    Every field takes 8 bytes, the address of an array or an int64. The owner uploads `words` to
    where `place` says, whenever they have changed and before the next launch.

    Args:
        fields: as the struct declares them, with the types of an instance.
        device: where its arrays must be.

    Attributes:
        values: what the fields hold, by name; the arrays are kept alive.
        words: int64 [fields], the struct as it must lie in device memory.
    """

    def __init__(self, fields: tuple[Parameter, ...], device: torch.device) -> None:
        self.fields = fields
        self.values: dict[str, Tensor | int] = {}
        self.words = np.zeros(len(fields), np.int64)
        self.device = device
        self._place: Tensor | None = None
        self._at = {field.name: i for i, field in enumerate(fields)}

    def set(self, **values: Tensor | int) -> None:
        """Set fields.

        Raises:
            TypeError: no such field, or a value of the wrong kind or dtype.
            ValueError: a wrong device or layout, or a value out of range.
        """
        for name, value in values.items():
            if name not in self._at:
                raise TypeError(f"The descriptor has no field {name}.")
            number = self._at[name]
            if isinstance(value, Tensor):
                self.words[number] = check_array("descriptor", self.fields[number], value,
                                                 self.device).data_ptr()  # fmt: skip
            else:
                self.words[number] = check_value("descriptor", self.fields[number], value)
            self.values[name] = value

    def array(self, name: str) -> Tensor:
        """Return the array of a field."""
        value = self.values[name]
        assert isinstance(value, Tensor)
        return value

    def place(self, place: Tensor) -> None:
        """Say where in device memory the struct is stored: int64 [fields]."""
        self._place = place

    @property
    def placed(self) -> Tensor:
        """Where in device memory the struct is stored.

        Raises:
            ValueError: a field has no value, or the struct no place.
        """
        missing = [name for name in self._at if name not in self.values]
        if missing or self._place is None:
            raise ValueError(f"The descriptor lacks {', '.join(missing) or 'a place'}.")
        return self._place


def resolved(fields: Sequence[Parameter], types: Mapping[str, str]) -> tuple[Parameter, ...]:
    """Return fields with the types of one instance in the place of `INSTANCE_` names.

    The same tuple for the same fields and types, so that comparing two takes no time.
    """
    names = {inner.type for field in fields for inner in (field, *field.fields)}
    return _resolved(tuple(fields), tuple((name, types[name]) for name in sorted(names & {*types})))


@cache
def _resolved(
    fields: tuple[Parameter, ...], types: tuple[tuple[str, str], ...]
) -> tuple[Parameter, ...]:
    type_of = dict(types)
    return tuple(
        Parameter(f.kind, type_of.get(f.type, f.type), f.name, resolved(f.fields, type_of))
        for f in fields
    )


def check_array(owner: str, parameter: Parameter, value: Any, device: torch.device) -> Tensor:
    """Return an array that a kernel can read, or raise a TypeError or ValueError that names it."""
    name = f"{owner}: {parameter.name}"
    dtypes = DTYPES.get(parameter.type)
    if dtypes is None or parameter.kind == "value":
        raise TypeError(f"{name} must be an int, got {type(value).__name__}.")
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")
    if value.dtype not in dtypes:
        raise TypeError(f"{name} must be {dtypes[0]}, got {value.dtype}.")
    if value.device != device and not _can_read(parameter, value):
        raise ValueError(
            f"{name} must be on {device}"
            f"{' or in pinned memory' if parameter.kind == 'In' else ''}, got {value.device}."
        )
    if not value.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous, got the strides {value.stride()} for the shape "
            f"{tuple(value.shape)}."
        )
    if value.data_ptr() % value.element_size():  # no read on a GPU may be misaligned
        raise ValueError(
            f"{name} begins at an address that is not a multiple of its element size of "
            f"{value.element_size()} bytes, as of a buffer read at an odd offset. Pass a copy "
            f"(x.clone())."
        )
    return value


def _can_read(parameter: Parameter, value: Tensor) -> bool:
    """Whether an array is in host memory that the device can read under the same address."""
    in_host = value.device.type == "cpu"
    return parameter.kind == "In" and in_host and (value.numel() == 0 or value.is_pinned())


def check_value(owner: str, parameter: Parameter, value: Any) -> np.integer[Any]:
    """Return a number of the parameter's width, or raise an error that names it."""
    name = f"{owner}: {parameter.name}"
    if parameter.kind != "value":
        raise TypeError(f"{name} must be a tensor, got {type(value).__name__}.")
    if isinstance(value, Tensor) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}.")
    scalar, low, high = _SCALARS[parameter.type]
    if not low <= value <= high:
        raise ValueError(f"{name} must be in [{low}, {high}] ({parameter.type}), got {value}.")
    return scalar(value)
