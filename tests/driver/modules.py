"""Lets each module that CuPy loads run natively: what g++ makes of the text that NVRTC was given.

NVRTC compiles the text and CuPy loads the machine code as ever, but the stand-in cannot run it. So
each module is announced before it is loaded, with a library that the emulator made of its text.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from typing import Any

from emulator.library import library_of

from pyg_direct.ops.cuda.compiler import PROBE
from pyg_direct.ops.cuda.source import Declaration, Parameter, declarations, read_source

from . import standin

INSTANCE = "-DINSTANCE_"
PLANT_VARIABLE = "STANDIN_PLANT"  # "old=>new": words of the kernels that are changed
BYTES = {"u8": 1, "i8": 1, "u16": 2, "i16": 2, "u32": 4, "i32": 4, "u64": 8, "i64": 8}
KINDS = {"value": 0, "In": 1, "Out": 2}
# The compiler's probe, in the words of the kernels.
NATIVE_PROBE = """
KERNEL(1)
probe(Out<i32> out) {
  if (threadIdx.x == 0) out[0] = 42;
}
"""


def run_natively(cupy: Any) -> None:
    """Replace `cupy.RawModule` by a function that announces each module before it is loaded."""
    original = cupy.RawModule

    @functools.wraps(original, updated=())
    def raw_module(*, code: str, options: Sequence[str] = (), **named: Any) -> Any:
        module = original(code=code, options=tuple(options), **named)
        _announce(code, tuple(options))
        module.compile()
        return module

    cupy.RawModule = raw_module


def _announce(code: str, options: tuple[str, ...]) -> None:
    old, _, new = os.environ.get(PLANT_VARIABLE, "").partition("=>")
    if old:  # a mistake that must be noticed
        code = code.replace(old, new)
    if code == PROBE:
        code = read_source("common.cuh") + NATIVE_PROBE
        options = (*options, "-DBLOCK_THREADS=256")
    given = (option.removeprefix(INSTANCE) for option in options if option.startswith(INSTANCE))
    types = dict(pair.split("=") for pair in given)
    kernels = declarations(code)
    library = library_of("module.cu", code, tuple(types.items()), kernels, options)
    standin.driver.standin_module(library._name.encode())
    for number, kernel in enumerate(kernels):
        standin.driver.standin_kernel(kernel.name.encode(), number)
        _announce_parameters(kernel, types)


def _announce_parameters(kernel: Declaration, types: dict[str, str]) -> None:
    for parameter in kernel.parameters:
        if parameter.kind == "Descriptor":
            standin.driver.standin_descriptor()
            for field in parameter.fields:
                _announce_parameter(field, types, is_field=True)
        else:
            _announce_parameter(parameter, types, is_field=False)


def _announce_parameter(parameter: Parameter, types: dict[str, str], is_field: bool) -> None:
    kind, type_ = KINDS[parameter.kind], types.get(parameter.type, parameter.type)
    nbytes = BYTES[type_] if kind == 0 else 8
    standin.driver.standin_parameter(
        kind, nbytes, int(type_.startswith("i")), parameter.name.encode(), int(is_field)
    )
