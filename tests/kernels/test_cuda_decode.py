"""The decoding gather kernel, emulated: the bits of the CPU, and requests for stored rows alone."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from emulator import emulated, pin
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import BASES, least_requests, read_by_id, table_at
from torch import Tensor

from pyg_direct.core.types import Table
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.backend import CudaBackend

STORED = ("int8 by column", "int8 by row", "float16", "bfloat16")
WANTED = (torch.float32, torch.float16, torch.bfloat16)
SIZES = {"int8 by column": 1, "int8 by row": 1, "float16": 2, "bfloat16": 2}


def narrow_table(stored: str, base: int, rows: int, width: int) -> tuple[Tensor, Tensor | None]:
    """Return a table of random bits whose address is `base` modulo 128, and its scale."""
    size = SIZES[stored]
    table = table_at(base // size * size, rows, width * size)
    if size == 2:
        return table.view(getattr(torch, stored)), None
    # Factors of all sizes, so that some products are too small for float32, and some too large.
    factors = torch.logspace(-46, 38, rows if "row" in stored else width)
    return table.view(torch.int8), factors.view(-1, 1) if "row" in stored else factors


def assert_as_on_the_cpu(
    backend: CudaBackend, table: Tensor, scale: Tensor | None, index: Tensor, dtype: torch.dtype
) -> None:
    """Decode rows in pinned memory, and compare the bits with those of the CPU's kernel."""
    placed = None if scale is None else pin(backend, scale)
    wanted = Table(pin(backend, table), dtype, placed)
    (found,) = backend.gather([wanted], index.to(backend.device))
    backend.library.compiler.memory.assert_written(found, "out")
    (expected,) = CpuBackend().gather([Table(table, dtype, scale)], index)
    assert (found.dtype, found.device, found.shape) == (dtype, backend.device, expected.shape)
    words = torch.int32 if dtype == torch.float32 else torch.int16
    same = found.cpu().view(words) == expected.view(words)
    assert bool((same | (found.cpu().isnan() & expected.isnan())).all())


@settings(max_examples=25, deadline=None)
@given(
    stored=st.sampled_from(STORED), dtype=st.sampled_from(WANTED), width=st.integers(1, 300),
    base=st.integers(0, 127), rows=st.integers(1, 9), seed=st.integers(0, 99), by_id=st.booleans(),
)  # fmt: skip
def test_any_row_at_any_address(
    stored: str, dtype: torch.dtype, width: int, base: int, rows: int, seed: int, by_id: bool
) -> None:
    table, scale = narrow_table(stored, base, 12, width)
    index = torch.from_numpy(np.random.default_rng(seed).integers(0, 12, rows))
    with emulated() as backend, read_by_id(by_id):
        assert_as_on_the_cpu(backend, table, scale, index, dtype)


@pytest.mark.parametrize("dtype", WANTED)
@pytest.mark.parametrize("stored", STORED)
def test_rows_of_whole_words(stored: str, dtype: torch.dtype) -> None:
    """Words of 16 bytes, of which a lane writes up to 64."""
    table, scale = narrow_table(stored, 64, 20, 48)
    with emulated() as backend, read_by_id():
        assert_as_on_the_cpu(backend, table, scale, torch.tensor([19, 0, 7, 7, 3]), dtype)


@pytest.mark.parametrize("dtype", WANTED)
@pytest.mark.parametrize("stored", [torch.float16, torch.bfloat16])
def test_every_stored_number(stored: torch.dtype, dtype: torch.dtype) -> None:
    table = torch.arange(1 << 16).to(torch.int16).view(256, 256).view(stored)
    with emulated(block_threads=32) as backend:
        assert_as_on_the_cpu(backend, table, None, torch.arange(256), dtype)


def test_nothing_to_decode() -> None:
    none = torch.empty(0, dtype=torch.int64)
    with emulated() as backend:
        device, table = backend.device, torch.ones(3, 4).half()
        wanted = Table(pin(backend, table), torch.float32)
        (found,) = backend.gather([wanted], none.to(device))
        assert found.shape == (0, 4)
        empty = Table(pin(backend, table[:, :0].clone()), torch.float32)
        (found,) = backend.gather([empty], torch.tensor([2, 1]).to(device))
        assert found.shape == (2, 0)
        with pytest.raises(IndexError, match="row 3 of a tensor with 3 rows"):
            backend.gather([wanted], torch.tensor([0, 3]).to(device))


def requests(
    table: Tensor, scale: Tensor | None, index: Tensor, dtype: torch.dtype, array: str = "table"
) -> int:
    """Return what decoding rows asks the link for."""
    with emulated(block_threads=32) as backend:
        device = backend.library.compiler
        device.recorded = array
        assert_as_on_the_cpu(backend, table, scale, index, dtype)
        return int(device.requests.requests)


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_requests_are_those_of_the_stored_rows(base: int, dtype: torch.dtype) -> None:
    """No line is asked for twice: an int8 row costs a quarter of what it is decoded to."""
    index = torch.tensor([4, 0, 18, 12])
    for width in (132, 200, 256, 300, 1000):
        for stored in ("int8 by column", "float16"):
            table, scale = narrow_table(stored, base, 20, width)
            found = requests(table, scale, index, dtype)
            # Words of less than 4 bytes, at odd addresses, do not reach a line's end together.
            word = math.gcd(16, table.data_ptr(), width * SIZES[stored])
            if word >= 4:
                assert found == least_requests(table, index), (width, stored)


def test_a_row_asks_for_its_factor_once() -> None:
    index = torch.tensor([40, 0, 199, 120])
    for width in (32, 100, 128):
        table, scale = narrow_table("int8 by row", 64, 200, width)
        assert scale is not None
        assert requests(table, scale, index, torch.float32, "scale") <= least_requests(scale, index)


def test_rows_are_read_and_decoded_by_one_kernel(monkeypatch: Any) -> None:
    """On a GPU nothing is gathered first and decoded afterwards."""
    with emulated() as backend:
        loaded: list[str] = []
        load = backend.library.load

        def recorded(file: str, **types: str) -> Any:
            loaded.append(file)
            return load(file, **types)

        monkeypatch.setattr(backend.library, "load", recorded)
        table, scale = narrow_table("int8 by row", 0, 20, 16)
        assert_as_on_the_cpu(backend, table, scale, torch.tensor([3]), torch.bfloat16)
    assert loaded == ["decode.cu"]
