"""Compiled kernels index arrays as NumPy does, also from the end."""

import numpy as np
import pytest

from pyg_direct.kernels import jit


def read(values, index):
    return values[index]


def write(values, index, value):
    values[index] = value


def read_place(table, row, column):
    return table[row, column]


def write_place(table, row, column, value):
    table[row, column] = value


@jit.helper
def last_of(values):
    return values[-1]


def last_twice(values):
    return last_of(values) + values[-1]


COMPILERS = [jit.kernel, jit.light_kernel]
INDICES = [0, 3, -1, -4, np.int32(-2), np.int64(-3), np.int32(2), np.uint64(2), np.uint32(1)]


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "float32", "bool"])
def test_elements_are_those_of_numpy(compiler, dtype):
    read_kernel, write_kernel = compiler(read), compiler(write)
    for index in INDICES:
        around = np.arange(12).astype(dtype)  # there is something in front of the array
        values = around[4:8]
        assert read_kernel(values, index) == values[index]
        expected = around.copy()
        expected[4:8][index] = 9
        write_kernel(values, index, 9)
        assert around.tolist() == expected.tolist()


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("layout", ["C", "F", "A"])
def test_places_are_those_of_numpy(compiler, layout):
    read_kernel, write_kernel = compiler(read_place), compiler(write_place)
    for place in [(0, 0), (1, 2), (-1, -1), (0, -3), (-2, np.uint64(2)), (np.int32(-1), 0)]:
        table = np.arange(6, dtype=np.int64).reshape(2, 3)
        if layout == "A":
            table = np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::2]
        table = np.asfortranarray(table) if layout == "F" else table
        assert read_kernel(table, *place) == table[place]
        expected = table.copy()
        expected[place] = -7
        write_kernel(table, *place, -7)
        assert table.tolist() == expected.tolist()


@pytest.mark.parametrize("compiler", COMPILERS)
def test_the_last_element_in_a_helper(compiler):
    assert compiler(last_twice)(np.array([3, 4, 5])[:2]) == 8


def test_a_value_is_converted_as_numpy_does():
    values = np.zeros(2, np.int8)
    jit.light_kernel(write)(values, 1, 300)
    assert values.tolist() == [0, 44]
