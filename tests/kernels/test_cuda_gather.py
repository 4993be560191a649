"""The gather kernel, emulated: every row, dtype and address, and every request that it makes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from emulator import ORDERS, Requests, emulated, pin
from hypothesis import given, settings
from hypothesis import strategies as st
from tables import BASES, least_requests, read_by_id, table_at
from torch import Tensor

from pyg_direct.core.types import Table, Traffic
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.backend import CudaBackend, blocks_to_fill_link, row_shape


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    with emulated() as backend:
        yield backend


def gather(backend: CudaBackend, table: Tensor, index: Tensor) -> Tensor:
    """Gather from a table in pinned memory, so that its address is what a test chose."""
    return backend.gather([Table(pin(backend, table))], index.to(backend.device))[0]


@pytest.fixture
def counting() -> Iterator[CudaBackend]:
    """Yield a backend that counts what is read of tables."""
    with emulated(block_threads=32) as backend:
        backend.library.compiler.recorded = "table"
        yield backend


def count_requests(backend: CudaBackend, table: Tensor, index: Tensor) -> Requests:
    device = backend.library.compiler
    device.requests = Requests()
    assert torch.equal(gather(backend, table, index).cpu(), table[index])
    return device.requests


@pytest.mark.parametrize(
    "dtype",
    [
        torch.uint8, torch.int8, torch.bool, torch.int16, torch.float16, torch.bfloat16,
        torch.int32, torch.float32, torch.int64, torch.float64, torch.complex64, torch.complex128,
    ],
)  # fmt: skip
def test_rows_of_every_dtype_are_gathered_from_host_and_device(
    backend: CudaBackend, dtype: torch.dtype
) -> None:
    for shape in [(20,), (20, 1), (20, 3), (20, 2, 5), (20, 100)]:
        table = torch.randint(0, 2, shape).to(dtype)
        index = torch.randint(0, 20, (13,))
        for source in (pin(backend, table), table.to(backend.device)):
            got = backend.gather([Table(source)], index.to(backend.device))[0]
            assert got.dtype == dtype
            assert got.device == backend.device
            assert torch.equal(got.cpu(), table[index])


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("base", BASES)
def test_rows_of_every_size_are_gathered_from_every_base(base: int, order: int) -> None:
    index = torch.tensor([5, 0, 39, 39, 7, 21, 3])
    with emulated(order=order) as backend:
        for row_bytes in (1, 2, 3, 4, 12, 64, 100, 128, 130, 132, 200, 256, 400, 512, 1000, 2408):
            table = table_at(base, 40, row_bytes)
            got = gather(backend, table, index)
            assert torch.equal(got.cpu(), table[index]), row_bytes
            backend.library.compiler.memory.assert_written(got, "out")


@settings(max_examples=60, deadline=None)
@given(
    row_bytes=st.integers(1, 700), base=st.integers(0, 127), rows=st.integers(1, 9),
    seed=st.integers(0, 99), by_id=st.booleans(),
)  # fmt: skip
def test_any_row_at_any_address(
    row_bytes: int, base: int, rows: int, seed: int, by_id: bool
) -> None:
    table = table_at(base, 12, row_bytes)
    index = torch.from_numpy(np.random.default_rng(seed).integers(0, 12, rows))
    with emulated() as backend, read_by_id(by_id):
        got = gather(backend, table, index)
        assert torch.equal(got.cpu(), table[index])
        backend.library.compiler.memory.assert_written(got, "out")


def test_nothing_to_gather(backend: CudaBackend) -> None:
    none = torch.empty(0, dtype=torch.int64)
    assert gather(backend, torch.ones(3, 4), none).shape == (0, 4)
    assert gather(backend, torch.ones(3, 0), torch.tensor([1, 2])).shape == (2, 0)
    no_rows, traffic = Table(torch.empty(0, 4)), Traffic()
    (got,) = backend.gather([no_rows], none.to(backend.device), traffic=traffic)
    assert (got.shape, traffic.requests) == ((0, 4), 0)


def test_a_parameter_is_gathered_as_its_values(backend: CudaBackend) -> None:
    table = torch.nn.Parameter(torch.randn(4, 3))
    got = gather(backend, table, torch.tensor([3, 3]))
    assert torch.equal(got.cpu(), table.detach()[[3, 3]])


@pytest.mark.parametrize("step", [28, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("base", BASES)
def test_requests_equal_the_lower_bound(counting: CudaBackend, base: int, step: int) -> None:
    """Rows of 132 to 4,096 bytes: not one line is asked for twice.

    Steps of 28 meet every remainder of a line's 32 words at least four times.
    """
    rng = np.random.default_rng(base)
    for row_bytes in range(132, 4097, step):
        table = table_at(base, 64, row_bytes)
        # Not neighbours: a line that two rows share may be asked for once or twice.
        index = torch.from_numpy(rng.permutation(32)[:2] * 2)
        counted = count_requests(counting, table, index)
        assert counted.requests == least_requests(table, index), row_bytes


@pytest.mark.parametrize(
    ("row_bytes", "base", "requests"),
    [(200, 0, 2.51), (400, 0, 4.00), (400, 64, 4.00), (512, 0, 4.00), (512, 64, 5.00),
     (1536, 64, 13.0), (2408, 0, 19.75), (2408, 64, 19.75)],
)  # fmt: skip
def test_mean_requests_of_common_rows(
    counting: CudaBackend, row_bytes: int, base: int, requests: float
) -> None:
    period = 128 // int(np.gcd(row_bytes, 128))  # rows until the phases repeat
    table = table_at(base, 2 * period + 1, row_bytes)
    index = torch.arange(0, 2 * period, 2)
    counted = count_requests(counting, table, torch.cat([index, index + 1]))
    expected = (row_bytes - 128 // period) / 128 + 1 if row_bytes % 128 else row_bytes / 128
    expected += 1 if row_bytes % 128 == 0 and base else 0
    # Neighbours in the index share no warp instruction here, so the mean is exact.
    assert counted.requests / (2 * period) == pytest.approx(expected)
    assert expected == pytest.approx(requests, abs=0.011)


def test_short_rows_waste_no_requests(counting: CudaBackend) -> None:
    """Rows of up to a line are at the bound without any shift."""
    for row_bytes in (4, 16, 64, 100, 128):
        table = table_at(64, 200, row_bytes)
        index = torch.arange(0, 200, 40)
        assert count_requests(counting, table, index).requests <= least_requests(table, index)


def test_rows_of_a_large_table_are_read_page_by_page() -> None:
    """A step of eight warps touches the pages of 32 rows in a row, which are fewer than eight."""
    table = torch.zeros(64 << 20, dtype=torch.uint8).view(-1, 512)  # 32 pages, most never touched
    index = torch.from_numpy(np.random.default_rng(0).permutation(len(table))[:512])
    table[index, :8] = torch.arange(512).view(-1, 1).view(torch.uint8)
    pages = {}
    for by_id in (False, True):
        with emulated(block_threads=64) as backend, read_by_id(by_id):
            backend.gather_blocks = 4
            backend.library.compiler.recorded = "table"
            counted = count_requests(backend, table, index)
            assert counted.requests == least_requests(table, index)
            pages[by_id] = counted.pages
    steps = len(index) // 8
    assert pages[False] > 6 * steps
    assert pages[True] < 4 * steps


@pytest.mark.parametrize(
    ("large", "sorts"),
    [([True], 1), ([False], 0), ([True, False, True], 1), ([], 0)],
)
def test_ids_are_sorted_once_for_all_large_tables(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, large: list[bool], sorts: int
) -> None:
    """Tables on the device, and those in host memory up to the limit, are read as ids come."""
    tables = [pin(backend, torch.rand(40, 30 if is_large else 3)) for is_large in large]
    on_device = torch.rand(40, 100).to(backend.device)
    index = torch.tensor([5, 0, 39, 39, 7])
    calls: list[int] = []
    sort = torch.sort
    monkeypatch.setattr(torch, "sort", lambda ids: calls.append(len(ids)) or sort(ids))
    monkeypatch.setattr(tuning, "SORTED_TABLE_BYTES", 40 * 29 * 4)
    launches = backend.library.compiler.launches
    found = backend.gather([*map(Table, tables), Table(on_device)], index.to(backend.device), 40)
    assert calls == [len(index)] * sorts
    assert backend.library.compiler.launches == launches + len(found)
    for rows, table in zip(found, [*tables, on_device], strict=True):
        assert torch.equal(rows.cpu(), table.cpu()[index])


def test_the_limit_is_not_passed_by_a_table_of_its_size(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = pin(backend, torch.rand(40, 30))
    monkeypatch.setattr(tuning, "SORTED_TABLE_BYTES", table.nbytes)
    assert not backend._is_large(table)
    monkeypatch.setattr(tuning, "SORTED_TABLE_BYTES", table.nbytes - 1)
    assert backend._is_large(table)


@pytest.mark.parametrize("by_id", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_ids_out_of_range_are_noted_and_their_rows_are_set(order: int, by_id: bool) -> None:
    ids = torch.tensor([3, 40, -1, 2**40, 0, 39, -(2**63)])
    for row_bytes in (1, 12, 100, 400, 2408):
        with emulated(order=order) as backend, read_by_id(by_id):
            table = pin(backend, table_at(64, 40, row_bytes).clone())
            wrong = torch.zeros(1, dtype=torch.int64).to(backend.device)
            (rows,) = backend.gather([Table(table)], ids.to(backend.device), wrong=wrong)
            inside = (ids >= 0) & (ids < 40)
            assert torch.equal(rows.cpu()[inside], table[ids[inside]])
            assert set(rows.cpu()[~inside].unique().tolist()) == {255}
            assert int(wrong) in ids[~inside].tolist()
            backend.library.compiler.memory.assert_written(rows, "out")
            for row in [*ids[~inside].tolist(), 0]:
                wrong.zero_()
                backend.gather([Table(table)], torch.tensor([3, row]).to(wrong.device), wrong=wrong)
                assert int(wrong) == row


def test_no_row_of_a_table_without_rows() -> None:
    with emulated() as backend:
        wrong = torch.zeros(1, dtype=torch.int64).to(backend.device)
        table = torch.empty(0, 4).to(backend.device)
        with pytest.raises(IndexError, match="row 0 of a tensor with 0 rows"):
            backend.gather([Table(table)], torch.tensor([0]).to(backend.device), wrong=wrong)


def test_row_shape_picks_lanes_steps_and_alignment_mask() -> None:
    assert row_shape(64, 400, 16) == (32, 1, 127)
    assert row_shape(0, 512, 16) == (32, 1, 127)
    assert row_shape(64, 512, 16) == (32, 2, 127)
    assert row_shape(0, 100, 4) == (32, 1, 0)
    assert row_shape(0, 64, 16) == (4, 1, 0)
    assert row_shape(0, 132, 4) == (32, 2, 127)


def test_blocks_that_fill_the_link_follow_from_bytes_in_flight() -> None:
    """102 KB under way, a third of the time; see the example of `blocks_to_fill_link`."""
    assert blocks_to_fill_link(400, 8, 102_400) == 24
    assert blocks_to_fill_link(400, 8, 51_200) == 12
    assert blocks_to_fill_link(4, 256, 102_400) == blocks_to_fill_link(32, 256, 102_400) == 10


@pytest.mark.parametrize(
    ("given", "measured", "blocks"), [(None, None, 24), (None, 51_200, 12), (3, 51_200, 3)]
)
def test_blocks_of_a_gather_follow_the_argument_then_the_measurement(
    monkeypatch: pytest.MonkeyPatch, given: int | None, measured: int | None, blocks: int
) -> None:
    """The argument decides, else what was measured, else the fastest link."""
    launched: list[int] = []
    with emulated(block_threads=256) as backend:
        compiler = backend.library.compiler
        monkeypatch.setattr(compiler, "link_bytes_under_way", measured)
        monkeypatch.setattr(compiler, "_run", lambda *launch: launched.append(launch[1][0]))
        backend.gather_blocks = given
        table = pin(backend, torch.zeros(8, 100))
        index = torch.zeros(5000, dtype=torch.int64).to(backend.device)
        out = torch.zeros(5000 * 400, dtype=torch.uint8).to(backend.device)
        backend.gather_bytes(table.view(-1).view(torch.uint8), index, out, 5000)
        assert backend.__reduce__() == (CudaBackend, (backend.device, None, given))
    assert launched == [blocks]
