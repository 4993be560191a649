"""The text of the CUDA kernels: where it lies, what it declares, and which instances are used.

The declarations are read from the `.cu` text itself, so there is one place that says which
arguments a kernel takes.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILES = ("sample.cu", "weighted.cu", "relabel.cu", "emit.cu", "gather.cu", "bandwidth.cu")

TEMPLATE_VALUES: Mapping[str, tuple[str, ...]] = {
    "P": ("i32", "i64"),  # positions: `Csc.indptr`
    "I": ("i32", "i64"),  # node ids: `Csc.indices`
    "M": ("i32", "i64"),  # edge ids: `Csc.perm`
    "O": ("i32", "i64"),  # ids handed out
    "T": ("i32", "i64"),  # sums
    "V": ("u8", "u16", "u32", "u64", "uint4"),  # words of a row
    "kHashed": ("false", "true"),
}
"""The values that each template parameter of `cuda/*.cu` takes, in any combination."""

_KERNEL = re.compile(
    r"(?:template\s*<(?P<template>[^>]*)>\s*)?__global__\s+void\s+(?P<name>\w+)\s*"
    r"\((?P<parameters>[^)]*)\)\s*\{"
)
_INCLUDE = re.compile(r'^[ \t]*#include\s+"(?P<name>[^"]+)"[^\n]*$', re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel."""

    kind: str  # "In" (an array it reads), "Out" (an array it writes) or "value"
    type: str  # of the elements or the value, such as i32 or a template parameter
    name: str


@dataclass(frozen=True)
class Declaration:
    """A kernel as the `.cu` text declares it."""

    name: str
    template: tuple[str, ...]  # names of the template parameters
    parameters: tuple[Parameter, ...]

    def instance(self, types: Mapping[str, str]) -> str:
        """Return the C++ name under `types`: scan_runs<i32>.

        Raises:
            ValueError: a template parameter without a value, or with one that is not used anywhere.
        """
        for name in self.template:
            if types.get(name) not in TEMPLATE_VALUES[name]:
                raise ValueError(
                    f"Kernel {self.name} needs {name} to be one of "
                    f"{', '.join(TEMPLATE_VALUES[name])}, got {types.get(name)!r}."
                )
        if not self.template:
            return self.name
        return f"{self.name}<{', '.join(types[name] for name in self.template)}>"


def source_folder() -> Path:
    """Return the folder of the `.cu` files: in the package (a wheel) or beside it (a checkout).

    Raises:
        FileNotFoundError: neither is there.
    """
    package = Path(__file__).resolve().parents[2]
    for folder in (package / "cuda", package.parent / "cuda"):
        if (folder / FILES[0]).is_file():
            return folder
    raise FileNotFoundError(
        f"The CUDA sources are missing: neither {package / 'cuda'} nor {package.parent / 'cuda'} "
        f"holds {FILES[0]}. Install pyg-direct again."
    )


def read_source(name: str, folder: Path | None = None) -> str:
    """Return the text of one `.cu` file with our own headers in place of their `#include` lines.

    CuPy's disk cache looks at the text it is given and not into included files, so a text with
    includes would go on using old kernels after a header changed. `#line` marks keep file names and
    line numbers in the compiler's messages right.
    """
    return _expand(name, folder or source_folder(), set())


def _expand(name: str, folder: Path, done: set[str]) -> str:
    done.add(name)
    text = (folder / name).read_text(encoding="utf-8").replace("#pragma once\n", "\n")
    pieces, at = [f'#line 1 "cuda/{name}"\n'], 0
    for match in _INCLUDE.finditer(text):
        pieces.append(text[at : match.start()])
        included = match["name"]
        if included not in done:
            pieces.append(_expand(included, folder, done))
        line = text.count("\n", 0, match.start()) + 2
        pieces.append(f'\n#line {line} "cuda/{name}"')
        at = match.end()
    return "".join([*pieces, text[at:]])


@cache
def declarations(text: str) -> tuple[Declaration, ...]:
    """Return the kernels that an expanded source text declares."""
    bare = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return tuple(
        Declaration(
            match["name"],
            tuple(part.split()[-1] for part in (match["template"] or "").split(",") if part),
            tuple(_parameter(part) for part in match["parameters"].split(",") if part.strip()),
        )
        for match in _KERNEL.finditer(bare)
    )


def _parameter(text: str) -> Parameter:
    array = re.fullmatch(r"(In|Out)<(\w+)>\s+(\w+)", text.strip())
    if array is not None:
        return Parameter(array[1], array[2], array[3])
    kind, name = text.split()
    return Parameter("value", kind, name)


def instances(text: str) -> Iterator[str]:
    """Yield the C++ names of all kernel instances that may be used of an expanded source text."""
    for declaration in declarations(text):
        values = [TEMPLATE_VALUES[name] for name in declaration.template]
        for combination in itertools.product(*values):
            yield declaration.instance(dict(zip(declaration.template, combination, strict=True)))
