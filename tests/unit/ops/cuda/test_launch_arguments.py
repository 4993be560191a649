"""Launches are checked, and what is wrong with an argument is said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from descriptors import filled

from pyg_direct.ops.cuda.launch import Kernel, Launch, Library, type_name
from pyg_direct.ops.cuda.source import Declaration, declarations, read_source


def _kernel(launched: list[object]) -> Kernel:
    text = (
        "KERNEL(1) example(  // of the checks\n"
        "In<I> ids,  // [n], each in [0, N)\nOut<u32> table, i32 n, u32 base\n) {}"
    )
    (declaration,) = declarations(text)
    assert isinstance(declaration, Declaration)

    def prepare(block: int, arguments: Sequence[object]) -> Launch:
        return lambda grid: launched.append((grid, block, arguments))

    return Kernel(declaration, {"I": "i64"}, prepare, torch.device("cpu"), 32)


IDS, TABLE = torch.arange(3), torch.zeros(4, dtype=torch.int32)
RIGHT = {"ids": IDS, "table": TABLE, "n": 3, "base": 0}


def test_the_launcher_passes_on_what_is_right() -> None:
    launched: list = []
    kernel = _kernel(launched)
    kernel(2, ids=IDS, table=TABLE, n=3, base=0xFFFFFFFF)
    ((grid, block, arguments),) = launched
    assert (kernel.name, grid, block) == ("example", (2, 1, 1), 32)
    assert arguments[0] is IDS
    assert [type(value) for value in arguments[2:]] == [np.int32, np.uint32]


def test_a_launch_is_prepared_once() -> None:
    """Arguments are found by name, the last mapping first, and what has other names is left."""
    launched: list = []
    kernel = _kernel(launched)
    launch = kernel.bind({**RIGHT, "n": 1, "other": 2}, {"n": 5}, base=7)
    assert launched == []
    launch(kernel.grid(3))
    launch(kernel.grid((3, 2)))
    assert [grid for grid, _, _ in launched] == [(3, 1, 1), (3, 2, 1)]
    assert [values[2:] for _, _, values in launched] == [[5, 7], [5, 7]]


@pytest.mark.parametrize(
    ("grid", "wrong", "error", "message"),
    [
        (1, {"m": 3}, TypeError, "example has no parameter m"),
        (1, {"ids": IDS.int()}, TypeError, "ids must be torch.int64, got torch.int32"),
        (1, {"ids": 3}, TypeError, "ids must be a tensor, got int"),
        (1, {"n": IDS}, TypeError, "n must be an int, got Tensor"),
        (1, {"n": 1.5}, TypeError, "n must be an int, got float"),
        (
            1,
            {"n": 1 << 31},
            ValueError,
            r"n must be in \[-2147483648, 2147483647\] \(i32\), got 2147483648",
        ),
        (1, {"base": -1}, ValueError, r"base must be in \[0, 4294967295\] \(u32\), got -1"),
        (1, {"table": TABLE[::2]}, ValueError, "table must be contiguous"),
        (
            1,
            {"ids": IDS.to("meta")},
            ValueError,
            "ids must be on cpu or in pinned memory, got meta",
        ),
        (0, {}, ValueError, "grid of"),
        ((1, 65536), {}, ValueError, "grid of"),
    ],
)
def test_the_launcher_refuses_what_is_wrong(
    grid: int, wrong: dict, error: type[Exception], message: str
) -> None:
    launched: list[object] = []
    with pytest.raises(error, match=message):
        _kernel(launched)(grid, **{**RIGHT, **wrong})
    assert launched == []


def test_a_struct_of_another_instance_is_refused() -> None:
    (text,) = (d for d in declarations(read_source("relabel.cu")) if d.name == "mark_first")
    types = {"P": "i64", "kHashed": "false"}
    narrow, wide = (
        Kernel(text, {**types, "I": ids}, lambda *_: lambda _: None, torch.device("cpu"), 32)
        for ids in ("i32", "i64")
    )
    wide.bind(batch=filled(wide.descriptor("batch")), hop=0)
    with pytest.raises(TypeError, match="mark_first: batch must have the fields of Batch"):
        wide.bind(batch=filled(narrow.descriptor("batch")), hop=0)


def test_a_missing_argument_of_a_launch_is_named() -> None:
    with pytest.raises(TypeError, match="example has no argument for n, base"):
        _kernel([])(1, ids=IDS, table=TABLE)


def test_ids_of_other_widths() -> None:
    with pytest.raises(TypeError, match=r"int32 and int64 ids, got torch\.int16"):
        type_name(torch.int16)


class Compiler:
    """Compiles nothing, and keeps what it was asked for."""

    device, block_threads = torch.device("cpu"), 32

    def __init__(self) -> None:
        self.built: list[Mapping[str, str]] = []

    def build(
        self, file: str, text: str, types: Mapping[str, str], kernels: Sequence[Declaration]
    ) -> Any:
        self.built.append(types)
        return dict.fromkeys(kernel.name for kernel in kernels)


def test_each_combination_of_widths_is_compiled_once() -> None:
    compiler = Compiler()
    library = Library(compiler)  # type: ignore[arg-type]
    for _ in range(2):
        for ids, positions in (("i32", "i64"), ("i64", "i32")):
            library.load("relabel.cu", I=ids, P=positions, kHashed="false")
    assert [types["I"] for types in compiler.built] == ["i32", "i64"]
