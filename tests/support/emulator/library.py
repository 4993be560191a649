"""The C++ source of a file of kernels, and the library that g++ makes of it."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyg_direct.ops.cuda.source import Declaration, Parameter

from .build import build

HERE = Path(__file__).parent


@functools.cache
def library_of(
    file: str,
    text: str,
    types: tuple[tuple[str, str], ...],
    kernels: tuple[Declaration, ...],
    options: tuple[str, ...],
) -> ctypes.CDLL:
    """Compile one instance of a file, or take it from the cache, and load it: once in a process.

    Args:
        file: such as "sample.cu".
        text: its expanded text.
        types: names and values of the instance.
        kernels: those that can be launched, by their position.
        options: of the compiler.
    """
    source = translation_unit(text, dict(types), kernels)
    flags = [
        *options, "-O1", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unknown-pragmas",
        "-Wno-unused-parameter", "-ffp-contract=off",
    ]  # fmt: skip
    headers = _headers(explores=any("EMULATED_LANES" in option for option in options))
    path = build(Path(file).stem, source, flags, folders=[HERE], key=headers)
    library = ctypes.CDLL(str(path))
    library.emulator_outcome.restype = ctypes.c_void_p
    return library


def translation_unit(text: str, types: Mapping[str, str], kernels: Sequence[Declaration]) -> str:
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


def _headers(explores: bool) -> str:
    return "".join(
        path.read_text()
        for path in sorted(HERE.glob("*.h"))
        if explores or path.name != "explore.h"
    )
