"""The text of the CUDA kernels: where it is stored, what it declares, and which instances are used.

The declarations are read from the `.cu` text itself, so there is one place that says which
arguments a kernel takes.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

FILES = (
    "sample.cu", "weighted.cu", "labor.cu", "relabel.cu", "small.cu", "picks.cu", "emit.cu",
    "gather.cu", "decode.cu", "cached.cu", "bandwidth.cu",
)  # fmt: skip
ONE_BLOCK_FILE = "small.cu"  # its kernels are launched as one block

INSTANCE_VALUES: Mapping[str, tuple[str, ...]] = {
    "P": ("i32", "i64"),  # positions: `Csc.indptr`
    "I": ("i32", "i64"),  # node ids: `Csc.indices`
    "M": ("i32", "i64"),  # edge ids: `Csc.perm`
    "O": ("i32", "i64"),  # ids handed out
    "V": ("u8", "u16", "u32", "u64", "uint4"),  # words of a row
    "kHashed": ("false", "true"),
    "kPlaced": ("false", "true"),
}
"""The values of each `INSTANCE_` name in `cuda/*.cu`, in any combination."""

_KERNEL = re.compile(r"^KERNEL\(\d+\)\s+(?P<name>\w+)\((?P<parameters>[^)]*)\)\s*\{", re.MULTILINE)
_STRUCT = re.compile(r"^struct (?P<name>\w+) \{\n(?P<fields>[^}]*)^\};", re.MULTILINE)
_INSTANCE = re.compile(r"\bINSTANCE_(\w+)")
_INCLUDE = re.compile(r'^[ \t]*#include\s+"(?P<name>[^"]+)"[^\n]*$', re.MULTILINE)


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kernel, or one field of a struct."""

    kind: str  # "In" (an array it reads), "Out" (an array it writes), "value" or "Descriptor"
    type: str  # of the elements or the value, such as i32, or a name of `INSTANCE_VALUES`; a struct
    name: str
    fields: tuple[Parameter, ...] = ()  # of a descriptor, those of structs inside it in their place


@dataclass(frozen=True)
class Declaration:
    """A kernel as the `.cu` text declares it."""

    name: str
    parameters: tuple[Parameter, ...]


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

    Those of `source_folder` are read once in a process.

    CuPy's disk cache looks at the text it is given and not into included files, so a text with
    includes would keep using old kernels after a header changed. `#line` marks keep file names and
    line numbers in the compiler's messages right.
    """
    return _installed(name) if folder is None else _expand(name, folder, set())


@cache
def _installed(name: str) -> str:
    return _expand(name, source_folder(), set())


def sources_digest() -> str:
    """Return a short digest of all kernels' text."""
    texts = "".join(read_source(name) for name in FILES)
    return hashlib.sha256(texts.encode()).hexdigest()[:16]


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
    bare = _without_comments(text)
    structs = {match["name"]: match["fields"] for match in _STRUCT.finditer(bare)}
    return tuple(
        Declaration(
            match["name"],
            tuple(
                _parameter(part, structs) for part in match["parameters"].split(",") if part.strip()
            ),
        )
        for match in _KERNEL.finditer(bare)
    )


def _without_comments(text: str) -> str:
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)


def _parameter(text: str, structs: Mapping[str, str]) -> Parameter:
    array = re.fullmatch(r"(In|Out|Descriptor)<(\w+)>\s+(\w+)", text.strip())
    if array is not None:
        fields = tuple(_fields(array[2], structs)) if array[1] == "Descriptor" else ()
        return Parameter(array[1], array[2], array[3], fields)
    kind, name = text.split()
    return Parameter("value", kind, name)


def _fields(struct: str, structs: Mapping[str, str]) -> Iterator[Parameter]:
    """Yield the fields of a struct in the order of their addresses."""
    for part in structs[struct].split(";"):
        if part.strip():
            field = _parameter(part, structs)
            if field.type in structs:
                yield from _fields(field.type, structs)
            else:
                yield field


@cache
def instance_names(text: str) -> tuple[str, ...]:
    """Return the names that an expanded source text needs values for: ("I", "P")."""
    return tuple(sorted(set(_INSTANCE.findall(text))))


def instances(text: str) -> Iterator[dict[str, str]]:
    """Yield all values of `instance_names` under which an expanded source text may be used."""
    names = instance_names(text)
    for values in itertools.product(*(INSTANCE_VALUES[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def instance_options(text: str, types: Mapping[str, str]) -> tuple[str, ...]:
    """Return the compiler's options for one instance of an expanded source text.

    Raises:
        ValueError: a name without a value, with one that is not used anywhere, or one too many.
    """
    names = instance_names(text)
    for name in (*names, *types):
        if name not in names or types.get(name) not in INSTANCE_VALUES[name]:
            allowed = ", ".join(INSTANCE_VALUES[name]) if name in names else "left out"
            raise ValueError(f"{name} must be one of {allowed}, got {types.get(name)!r}.")
    return tuple(f"-DINSTANCE_{name}={types[name]}" for name in names)
