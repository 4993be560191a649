"""Kernels without reference counts do what Python does, in few instructions of LLVM."""

import numpy as np
import pytest
from numba.core.typing import Context

from pyg_direct.kernels import jit
from pyg_direct.kernels.compiler import KernelCompiler, _Library

NUMBERS = np.arange(12)


def compiled(function):
    return jit._compiled(function, pipeline_class=KernelCompiler, **jit.WITHOUT_COUNTS)


def visit_ranges(out, n):
    for i in range(n):
        out[i] += 1
    for i in range(2, n):
        out[i] += 10
    for i in range(n, 2):  # none
        out[i] += 100
    for i in range(1, n, 3):
        out[i] += 1000
    for i in range(n - 1, 1, -2):
        out[i] += 10_000
    twice = range(3)
    for i in twice:
        for j in twice:
            out[i * 3 + j] += 100_000


def visit_unsigned(out, n):
    for i in range(np.uint64(1), np.uint64(n)):
        out[i] += i


def read_tables(out, table, narrow, flags, column):
    rows, columns = table.shape
    for r in range(rows):
        for c in range(columns):
            out[r * columns + c] = table[r, c] + table[np.uint64(r), c]
    out[0] = narrow[narrow[1]] + column[2]  # `column` has gaps
    flags[1] = flags[0]
    out[1] += flags[1]
    row = table[1]
    row[2:][0] = 70
    narrow[0] = 300 + narrow[2]  # as many bits as fit


def choose(out, n):
    found, best = 0, 0
    for i in range(n):
        if i % 3 == 0:
            best = i
        elif i > 4:
            found, best = best, found
        out[i] = best - found
        if i > 8:
            break
    begin, end = (1, 3) if n > 4 else (3, 1)
    while begin < end:
        begin, end = begin + 1, end
    out[0] = begin + end + (n if n > 100 else -n) + (n << 2) + n // 5


@pytest.mark.parametrize("function", [visit_ranges, visit_unsigned, choose])
@pytest.mark.parametrize("n", [0, 1, 3, 11])
def test_loops_and_branches_are_those_of_python(function, n):
    expected, found = NUMBERS.copy(), NUMBERS.copy()
    function(expected, n)
    compiled(function)(found, n)
    assert found.tolist() == expected.tolist()


def test_elements_of_all_kinds_are_read_and_written():
    results = []
    for function in (read_tables, compiled(read_tables)):
        out, table = NUMBERS.copy(), np.arange(12, dtype=np.int32).reshape(3, 4)
        narrow, flags = np.arange(3, dtype=np.uint8), np.array([True, False])
        narrow_room = narrow.astype(np.int64)  # Python's NumPy refuses what does not fit
        function(out, table, narrow_room, flags, NUMBERS[::2])
        results.append([array.tolist() for array in (out, table, narrow_room, flags)])
    assert results[0] == results[1]


def test_elements_and_loops_take_few_instructions(monkeypatch):
    counts = []
    add_module = _Library.add_ir_module

    def counted(self, module):
        if module.name != "wrapper":  # Python's entry
            blocks = [block for function in module.functions for block in function.blocks]
            counts.append(sum(len(block.instructions) for block in blocks))
        add_module(self, module)

    def copy(out, a):
        for i in range(out.shape[0]):
            out[i] = a[i]

    def copy_twice(out, a):
        for i in range(out.shape[0]):
            out[i] = a[i]
        for i in range(out.shape[0]):
            out[i] = a[i]

    monkeypatch.setattr(_Library, "add_ir_module", counted)
    for function in (copy, copy_twice):
        compiled(function)(np.zeros(3), np.ones(3))
    once, twice = counts  # all that is not in a loop takes the arguments apart
    assert 0 < twice - once < 50  # numba itself writes 188


def test_an_operator_is_resolved_once(monkeypatch):
    asked = []
    resolve = Context.resolve_function_type

    def counted(self, func, args, kws):
        asked.append((func, tuple(args)))
        return resolve(self, func, args, kws)

    def add(out):
        for i in range(3):
            out[i] = out[i] + out[i] + (i + i) + (i + i + i)

    monkeypatch.setattr(Context, "resolve_function_type", counted)
    out = np.ones(3, np.float32)
    compiled(add)(out)
    assert out.tolist() == [2, 7, 12]
    assert len(asked) == len(set(asked))
