"""A fault planted in functions that are imported already: their code is exchanged for other code.

So a process that has imported everything and collected all tests can be forked for each fault. What
runs at import alone (constants, defaults, decorators), and what numba compiles, cannot be swapped.
"""

from __future__ import annotations

import gc
import inspect
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType

from .copies import KERNELS
from .fault import Fault

Swap = tuple[CodeType, CodeType]
"""The code of a function without the fault and with it."""
OWN = (
    "co_code", "co_names", "co_varnames", "co_freevars", "co_cellvars", "co_flags", "co_argcount",
    "co_kwonlyargcount", "co_posonlyargcount", "co_exceptiontable",
)  # fmt: skip


def swaps_of(fault: Fault, root: Path) -> list[Swap]:
    """Return what is to be exchanged for a fault in a tree without it; [] if that is not enough."""
    if not fault.file.endswith(".py") or fault.file.startswith(KERNELS):
        return []
    path = root / fault.file
    text = path.read_text(encoding="utf-8")
    try:
        old, new = (
            compile(content, str(path), "exec", dont_inherit=True)
            for content in (text, text.replace(fault.old, fault.new))
        )
        return [*_pairs(old, new)]
    except (SyntaxError, NotSwappableError):
        return []


class NotSwappableError(Exception):
    """A fault is in what runs while its module is imported."""


def _pairs(old: CodeType, new: CodeType) -> Iterator[Swap]:
    """Yield the functions that differ, from outside to inside."""
    if _same(old, new):
        return
    is_function = bool(old.co_flags & inspect.CO_OPTIMIZED)  # neither a module nor a class
    if is_function:
        yield old, new
    inner = [[const for const in code.co_consts if _is_code(const)] for code in (old, new)]
    names = [[code.co_name for code in codes] for codes in inner]
    if not is_function and (_own(old) != _own(new) or names[0] != names[1]):
        raise NotSwappableError(old.co_name)
    if names[0] == names[1]:  # those that decorators keep, of calls that are over
        for pair in zip(*inner, strict=True):
            yield from _pairs(*pair)


def _is_code(const: object) -> bool:
    return isinstance(const, CodeType)


def _own(code: CodeType) -> list[object]:
    """Return what a function does, without those inside of it and without numbers of lines."""
    consts = [None if _is_code(const) else (type(const), const) for const in code.co_consts]
    return [*(getattr(code, name, None) for name in OWN), repr(consts)]


def _same(old: CodeType, new: CodeType) -> bool:
    if _own(old) != _own(new):
        return False
    pairs = zip(old.co_consts, new.co_consts, strict=True)
    return all(_same(a, b) for a, b in pairs if _is_code(a))


class Functions:
    """The functions of a tree that are imported, by their code."""

    def __init__(self, root: Path) -> None:
        self._found: dict[CodeType, list[FunctionType]] = {}
        gc.unfreeze()  # what is frozen is not listed
        for value in gc.get_objects():
            if type(value) is FunctionType and value.__code__.co_filename.startswith(str(root)):
                self._found.setdefault(value.__code__, []).append(value)
        gc.freeze()

    def swap(self, swaps: Sequence[Swap]) -> bool:
        """Exchange the code of functions; tell whether there were any, and all of them could."""
        found = [
            (function, new)
            for old, new in swaps
            for function in self._found.get(old, [])
            if function.__code__.co_filename == old.co_filename
        ]
        try:
            for function, new in found:
                function.__code__ = new
        except ValueError:  # it uses other variables of the function around it
            return False
        return bool(found)
