"""COO to CSC: NumPy's stable argsort is the oracle."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from graphs import edge_lists
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data

from pyg_direct.graph import coo_to_csc as sorting
from pyg_direct.graph.coo_to_csc import compress, narrow
from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.kernels import counting_sort as kernels


@pytest.fixture(autouse=True, scope="module")
def kernels_for_few_edges() -> Iterator[None]:
    """The graphs here are small, and nearly all tests are of the kernels for large ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "FEW_EDGES", 0)
        yield


def assert_is_csc(result: Any, row: Any, col: Any, num_dst: int) -> None:
    order = np.argsort(col, kind="stable")
    degree = np.bincount(col, minlength=num_dst)
    assert result.indptr[0] == 0
    assert np.array_equal(result.indptr[1:], degree.cumsum())
    assert np.array_equal(result.indices, row[order])
    perm = np.arange(len(row)) if result.perm is None else result.perm
    assert np.array_equal(perm, order)


@pytest.mark.parametrize("few_edges", [0, 100])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@given(case=edge_lists())
def test_any_graph(few_edges: int, dtype: type, case: tuple[Tensor, int]) -> None:
    edge_index, num_nodes = case
    row, col = edge_index.numpy().astype(dtype)
    row, col = np.ascontiguousarray(row), np.ascontiguousarray(col)
    before = row.copy(), col.copy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sorting, "FEW_EDGES", few_edges)
        result = compress(row, col, num_nodes, num_nodes, trusted=False)
    assert_is_csc(result, row, col, num_nodes)
    assert np.array_equal(row, before[0])
    assert np.array_equal(col, before[1])
    assert result.indptr.dtype == np.int32
    assert (result.perm is None) == bool((np.diff(col) >= 0).all())


@given(data=st.data())
def test_different_numbers_of_sources_and_destinations(data: st.DataObject) -> None:
    num_src, num_dst = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 9))
    pair = st.tuples(st.integers(0, num_src - 1), st.integers(0, num_dst - 1))
    pairs = data.draw(st.lists(pair, max_size=20))
    row, col = np.array(pairs, np.int64).reshape(-1, 2).T.copy()
    assert_is_csc(compress(row, col, num_src, num_dst, trusted=False), row, col, num_dst)


def test_few_edges_need_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "FEW_EDGES", 3)
    monkeypatch.setattr(sorting, "kernels", None)
    col = np.array([2, 0, 2])
    result = compress(np.array([5, 6, 7]), col, 8, 4)
    assert_is_csc(result, np.array([5, 6, 7]), col, 4)
    assert {array.dtype for array in result if array is not None} == {np.dtype(np.int32)}


@pytest.mark.parametrize(
    ("row", "col", "trusted", "message"),
    [
        ([0, 4], [0, 1], False, r"edge_index\[0, 1\] is 4"),
        ([0, -1], [0, 1], False, r"edge_index\[0, 1\] is -1"),
        ([0, 1], [0, 4], False, r"edge_index\[1, 1\] is 4"),
        ([0, 1], [1, 0], True, "not sorted"),
    ],
)
def test_errors_of_few_edges(
    monkeypatch: pytest.MonkeyPatch, row: list[int], col: list[int], trusted: bool, message: str
) -> None:
    monkeypatch.setattr(sorting, "FEW_EDGES", 10)
    with pytest.raises(ValueError, match=message):
        compress(np.array(row), np.array(col), 4, 4, trusted)


@pytest.mark.parametrize("cores", [1, 2, 5, 64])
@pytest.mark.parametrize("num_nodes", [1, 3, 100, 900])
def test_edges_compressed_by_several_threads_are_sorted_by_destination(
    monkeypatch: pytest.MonkeyPatch, cores: int, num_nodes: int
) -> None:
    chunks = []
    run_all = sorting.run_all
    monkeypatch.setattr(sorting, "MIN_EDGES_PER_THREAD", 50)
    monkeypatch.setattr(sorting, "available_cores", lambda: cores)
    monkeypatch.setattr(
        sorting, "run_all", lambda tasks: chunks.append(len(tasks)) or run_all(tasks)
    )
    row, col = np.random.default_rng(num_nodes).integers(0, num_nodes, (2, 1001))
    col[-1] = 0
    if num_nodes == 1:
        row, col = np.arange(1001) % 7, np.array([1] * 1000 + [0])
        num_nodes = 7
    assert_is_csc(compress(row, col, num_nodes, num_nodes, trusted=False), row, col, num_nodes)
    assert chunks == [min(cores, 20, 16)] * 3


@pytest.mark.parametrize(
    ("end", "nodes", "edges"), [(50, 900, 900), (1000, 900, 3000), (1000, 2000, 900)]
)
def test_ids_of_64_bits(monkeypatch: pytest.MonkeyPatch, end: int, nodes: int, edges: int) -> None:
    """As if `end` were 2^31: of sources and edges, or of one of the two."""
    monkeypatch.setattr(sorting, "INT32_END", end)
    monkeypatch.setattr(sorting, "EDGES_PER_BUCKET", 16)
    row, col = np.random.default_rng(0).integers(0, nodes, (2, edges))
    fill, held = sorting.kernels.fill_buckets, list[np.dtype]()

    def fill_buckets(*args: Any) -> None:
        held.append(args[-1].dtype)
        fill(*args)

    monkeypatch.setattr(sorting.kernels, "fill_buckets", fill_buckets)
    result = compress(row, col, nodes, nodes, trusted=False)
    assert_is_csc(result, row, col, nodes)
    assert all(dtype.itemsize >= narrow(edges + 1)().itemsize for dtype in held)
    assert held, "edges are dealt out by number"
    assert result.perm is not None
    wide = [array.dtype == np.int64 for array in (result.indices, result.perm)]
    assert wide == [nodes > end, edges + 1 > end]


@pytest.mark.parametrize("num_src", [pytest.param(1 << 31, marks=pytest.mark.slow), (1 << 31) - 5])
@pytest.mark.parametrize("bits", [20, 24])
def test_ids_that_take_all_bits_of_a_key_are_sorted(
    monkeypatch: pytest.MonkeyPatch, num_src: int, bits: int
) -> None:
    """31 bits of a source, 10 of an edge and the rest of a destination are 61, or above 64."""
    monkeypatch.setattr(sorting, "EDGES_PER_BUCKET", 1 << 40)
    monkeypatch.setattr(sorting, "MAX_BUCKETS", 1)
    random = np.random.default_rng(0)
    row = random.integers(num_src - 900, num_src, 900)
    col = random.integers(0, 1 << bits, 900)
    col[0] = (1 << bits) - 1
    assert_is_csc(compress(row, col, num_src, 1 << bits, trusted=False), row, col, 1 << bits)


def test_one_destination_takes_all_edges() -> None:
    row = np.random.default_rng(0).integers(0, 50, 5000)
    col = np.full(5000, 49)
    col[0] = 50
    assert_is_csc(compress(row, col, 51, 51, trusted=False), row, col, 51)


# Sorted edges #####################################################################################


@pytest.mark.parametrize("trusted", [False, True])
@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_sorted_edges_are_copied_once(trusted: bool, dtype: type) -> None:
    row, col = np.array([3, 0, 2, 2], dtype), np.array([0, 0, 1, 3], dtype)
    result = compress(row, col, 4, 4, trusted)
    assert not np.shares_memory(result.indices, row)
    assert result.indices.tolist() == row.tolist()
    assert result.indices.dtype == np.int32
    assert result.perm is None
    assert result.indptr.tolist() == [0, 2, 3, 3, 4]


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("columns", [[0, 0, 1, 3], [3, 0, 0, 1]], ids=["sorted", "unsorted"])
@pytest.mark.parametrize("attributes", [{}, {"time_attr": "time"}, {"time_attr": "stamp"}])
def test_a_graph_has_no_memory_of_the_users(
    dtype: torch.dtype, columns: list[int], attributes: dict[str, str]
) -> None:
    data = Data(
        edge_index=torch.tensor([[3, 0, 2, 2], columns], dtype=dtype),
        time=torch.arange(5),
        stamp=torch.arange(4),
        weight=torch.ones(4, dtype=torch.float64),
        num_nodes=5,
    )
    graph = graph_of(data, weight_attr="weight", **attributes)
    arrays = [array for _, array in graph.csc.arrays()]
    arrays += (graph.node_times or {}).values()
    for array in arrays:
        for theirs in (data.edge_index, data.time, data.stamp, data.weight):
            assert not np.shares_memory(array, theirs.numpy())


def test_equal_destinations_count_as_sorted() -> None:
    row, col = np.array([2, 1, 0]), np.array([1, 1, 1])
    assert compress(row, col, 3, 3, trusted=False).perm is None


def test_a_strided_edge_index() -> None:
    edge_index = torch.tensor([[3, 0], [2, 1], [0, 0], [2, 3]]).t()
    csc = graph_of(Data(edge_index=edge_index, num_nodes=4)).csc
    assert csc.indptr.tolist() == [0, 2, 3, 3, 4]
    assert csc.indices.tolist() == [3, 0, 2, 2]
    assert csc.perm.tolist() == [0, 2, 1, 3]


# Errors ###########################################################################################

BAD_EDGES = [
    # row, col, trusted, message
    ([0, 3], [1, 1], False, r"edge_index\[0, 1\] is 3, but .* in \[0, 3\)"),
    ([0, -1], [1, 1], False, r"edge_index\[0, 1\] is -1, but "),
    ([0, 1], [1, 3], False, r"edge_index\[1, 1\] is 3, but .* in \[0, 3\)"),
    ([0, 1], [-1, 1], False, r"edge_index\[1, 0\] is -1, but "),
    ([0, 1, 7], [2, 1, 1], False, r"edge_index\[0, 2\] is 7"),  # found behind the first disorder
    ([0, 1, 1], [2, 1, -9], False, r"edge_index\[1, 2\] is -9"),
    ([0, 1, 1], [2, 1, 3], False, r"edge_index\[1, 2\] is 3"),
    ([0, 1, 1], [0, 2, 1], True, r"edges are not sorted: edge_index\[1, 2\] is 1 after 2"),
    ([0, 5], [0, 1], True, r"edge_index\[0, 1\] is 5"),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
@pytest.mark.parametrize(("row", "col", "trusted", "message"), BAD_EDGES)
def test_edges_out_of_range_are_refused_with_their_position(
    row: Any, col: Any, trusted: bool, message: str, dtype: type
) -> None:
    with pytest.raises(ValueError, match=message):
        compress(np.array(row, dtype), np.array(col, dtype), 3, 3, trusted)


def test_bad_edges_in_any_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorting, "MIN_EDGES_PER_THREAD", 10)
    monkeypatch.setattr(sorting, "available_cores", lambda: 4)
    for at in (1, 30, 55, 99):
        row, col = np.arange(100) % 3, (np.arange(100) + 1) % 3
        row[at] = 3
        with pytest.raises(ValueError, match=rf"edge_index\[0, {at}\] is 3"):
            compress(row, col, 3, 3, trusted=False)


# Narrow integers ##################################################################################


def test_the_boundary_of_int32() -> None:
    assert narrow(2**31) is np.int32  # the largest id is 2^31 - 1
    assert narrow(2**31 + 1) is np.int64


def test_ids_at_the_boundary_of_int32() -> None:
    """With 2^31 sources the largest id is the largest int32; with one more it does not fit."""
    for num_src, dtype in ((2**31, np.int32), (2**31 + 1, np.int64)):
        row, col = np.array([num_src - 1, 5]), np.array([1, 0])
        result = compress(row, col, num_src, 2, trusted=False)
        assert result.indices.dtype == dtype
        assert result.indices.tolist() == [5, num_src - 1]


# The kernels' own examples ########################################################################


def test_count_buckets_counts_edges_by_destination_range() -> None:
    counts = np.zeros(2, np.int64)
    row, col = np.zeros(3, np.int64), np.array([2, 0, 3])
    assert kernels.count_buckets(row, col, 0, 3, 1, 4, 1, counts) == (0, -1)
    assert counts.tolist() == [1, 2]


def test_fill_buckets_writes_edges_in_order_to_their_bucket() -> None:
    edge, next_place = np.zeros(3, np.int64), np.array([0, 1])
    kernels.fill_buckets(np.array([2, 0, 3]), 0, 3, 1, next_place, edge)
    assert edge.tolist() == [1, 0, 2]
    assert next_place.tolist() == [1, 3]


def test_sort_buckets_writes_a_csc_part_in_stable_order() -> None:
    indptr, indices, perm = np.zeros(4, np.int64), np.arange(3), np.zeros(3, np.int64)
    row, col = np.array([5, 6, 7]), np.array([2, 0, 2])
    kernels.sort_buckets(row, col, 0, 1, 2, np.array([0, 3]), indices, indptr, indices, perm)
    assert indptr.tolist() == [0, 1, 1, 3]
    assert indices.tolist() == [6, 5, 7]
    assert perm.tolist() == [1, 0, 2]


@pytest.mark.parametrize("num_dst", [1, 2, 255, 256, 257, 5000])
@pytest.mark.parametrize("threads", [1, 3])
def test_buckets_are_no_matter(monkeypatch: pytest.MonkeyPatch, num_dst: int, threads: int) -> None:
    """Many small ones, empty ones, and one with half of the edges; in parts that threads share.

    The latter is too large to be copied.
    """
    monkeypatch.setattr(sorting, "EDGES_PER_BUCKET", 8)
    monkeypatch.setattr(sorting, "LARGEST_COPIED_BUCKET", 1000)
    monkeypatch.setattr(sorting, "MIN_EDGES_PER_THREAD", 100)
    monkeypatch.setattr(sorting, "available_cores", lambda: threads)
    draw = np.random.default_rng(num_dst)
    row, col = draw.integers(0, 70, 3000), draw.integers(0, num_dst, 3000)
    col[::2] = num_dst // 2
    result, order = compress(row, col, 70, num_dst), np.argsort(col, kind="stable")
    if num_dst == 1:  # in order already
        assert result.perm is None
        return
    assert result.perm is not None
    assert np.array_equal(result.perm, order)
    assert np.array_equal(result.indices, row[order])
    assert np.array_equal(np.diff(result.indptr), np.bincount(col, minlength=num_dst))
    assert result.indptr[0] == 0


@pytest.mark.parametrize(
    ("col", "num_nodes", "expected"),
    [([0, 2, 2], 3, [0, 1, 1, 3]), ([], 2, [0, 0, 0]), ([3], 5, [0, 0, 0, 0, 1, 1]), ([], 0, [0])],
)
def test_index_to_ptr(col: list[int], num_nodes: int, expected: list[int]) -> None:
    for base in (0, 7):
        indptr = np.full(num_nodes + 1, -1)
        kernels.index_to_ptr(np.array(col, np.int64), base, indptr)
        assert (indptr - base).tolist() == expected


@pytest.mark.parametrize(
    ("row", "col", "expected"),
    [
        ([0, 1], [0, 1], (kernels.OK, -1)),
        ([], [], (kernels.OK, -1)),
        ([0, 1], [1, 0], (kernels.UNSORTED, 1)),
        ([0, 2], [0, 1], (kernels.BAD_SOURCE, 1)),
        ([0, 1], [0, 2], (kernels.BAD_DESTINATION, 1)),
        ([1, 1], [-1, 1], (kernels.BAD_DESTINATION, 0)),
    ],
)
def test_copy_sorted_copies_rows_up_to_the_first_bad_edge(
    row: list[int], col: list[int], expected: tuple[int, int]
) -> None:
    row_, col_, indices = np.array(row, np.int64), np.array(col, np.int64), np.zeros(2, np.int32)
    assert kernels.copy_sorted(row_, col_, 2, 2, indices) == expected
    done = len(row) if expected[0] == kernels.OK else expected[1]
    assert indices[:done].tolist() == row[:done]


def test_destinations_behind_the_last_list_have_empty_ones() -> None:
    given = sorting.Compressed(np.array([0, 1, 3]), np.array([1, 0, 2]), None)
    indptr, indices, perm = sorting.pad_and_check(given, (3, 4), "data.adj_t")
    assert (indptr.tolist(), indices.tolist(), perm) == ([0, 1, 3, 3, 3], [1, 0, 2], None)


def test_more_lists_than_destinations_are_refused() -> None:
    given = sorting.Compressed(np.array([0, 1, 3, 3]), np.array([1, 0, 2]), None)
    with pytest.raises(ValueError, match="has 3 destinations, but there are 2 nodes"):
        sorting.pad_and_check(given, (3, 2), "data.adj_t")
