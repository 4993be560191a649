"""Kernels index arrays as NumPy does."""

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


def second_row(table):
    return table[1].sum()


def extents(table):
    return table.shape[0], table.shape[1], len(table)


read_kernel, write_kernel = jit.light_kernel(read), jit.light_kernel(write)
read_place_kernel = jit.light_kernel(read_place)
write_place_kernel = jit.light_kernel(write_place)

INDICES = [0, 3, np.int32(2), np.uint64(2), np.uint32(1), np.int64(1)]  # none is negative


@pytest.mark.parametrize("index", INDICES, ids=lambda index: f"{type(index).__name__}_{index}")
@pytest.mark.parametrize("dtype", ["int32", "int64", "uint32", "uint64", "float32", "bool"])
def test_elements_are_those_of_numpy(dtype, index):
    values = np.arange(8).astype(dtype)[4:]
    assert read_kernel(values, index) == values[index]
    expected = values.copy()
    expected[index] = 9
    write_kernel(values, index, 9)
    assert values.tolist() == expected.tolist()


@pytest.mark.parametrize("layout", ["C", "F", "A"])
@pytest.mark.parametrize("place", [(0, 0), (1, 2), (0, np.uint64(2)), (np.int32(1), 0)])
def test_places_are_those_of_numpy(place, layout):
    table = np.arange(6, dtype=np.int64).reshape(2, 3)
    if layout == "A":
        table = np.arange(24, dtype=np.int64).reshape(4, 6)[::2, ::2]
    table = np.asfortranarray(table) if layout == "F" else table
    assert read_place_kernel(table, *place) == table[place]
    expected = table.copy()
    expected[place] = -7
    write_place_kernel(table, *place, -7)
    assert table.tolist() == expected.tolist()


def test_a_row_and_the_shape():
    table = np.arange(6).reshape(2, 3)
    assert jit.kernel(second_row)(table) == 12
    assert jit.light_kernel(extents)(table) == (2, 3, 2)


def test_a_value_is_converted_as_numpy_does():
    values = np.zeros(2, np.int8)
    write_kernel(values, 1, 300)
    assert values.tolist() == [0, 44]
