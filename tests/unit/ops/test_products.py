"""Sparse products of message passing: values, transposes, a planted fault."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch_geometric.utils import scatter

from pyg_direct.kernels.aggregate import transpose_csr
from pyg_direct.ops import products as module
from pyg_direct.ops.products import (
    Adjacency,
    aggregate,
    can_aggregate,
    can_reduce_lists,
    reduce_lists,
)

REDUCTIONS = ("sum", "mean", "max", "min")


@st.composite
def adjacencies(draw: st.DrawFn) -> tuple[Adjacency, Tensor]:
    """Draw a matrix and its edges as [2, E] (source, destination), sorted by destination."""
    sources, destinations = draw(st.integers(1, 6)), draw(st.integers(0, 5))
    edge = st.tuples(st.integers(0, sources - 1), st.integers(0, max(0, destinations - 1)))
    edges = draw(st.lists(edge, max_size=20 if destinations else 0))
    edge_index = torch.tensor(sorted(edges, key=lambda e: e[1])).reshape(-1, 2).t().long()
    return adjacency(edge_index, sources, destinations), edge_index


def adjacency(edge_index: Tensor, sources: int, destinations: int) -> Adjacency:
    indptr = torch._convert_indices_from_coo_to_csr(edge_index[1].contiguous(), destinations)
    return Adjacency(indptr, edge_index[0].contiguous(), sources)


def reference(
    edge_index: Tensor, destinations: int, x: Tensor, weight: Tensor | None, reduce: str
) -> Tensor:
    """Message passing as PyG does it, with messages."""
    messages = x[edge_index[0]]
    messages = messages if weight is None else weight.view(-1, 1) * messages
    return scatter(messages, edge_index[1], 0, dim_size=destinations, reduce=reduce)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@given(drawn=adjacencies(), weighted=st.booleans(), ties=st.booleans(), spare=st.integers(0, 2))
def test_equals_messages(reduce, drawn, weighted, ties, spare) -> None:
    matrix, edge_index = drawn
    x = torch.randn(matrix.num_sources + spare, 3, dtype=torch.float64)
    x = x.round() if ties else x
    weight = torch.rand(edge_index.size(1), dtype=torch.float64) if weighted else None
    if weighted and reduce in ("max", "min"):
        assert not can_aggregate(x, weight, reduce)
        return
    ours = aggregate(matrix, x, weight, reduce)
    theirs = reference(edge_index, matrix.num_destinations, x, weight, reduce)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("reduce", ["sum", "max", "min"])
@given(counts=st.lists(st.integers(0, 4), max_size=5), heads=st.integers(1, 3), data=st.data())
def test_lists_are_reduced_as_torch_does(reduce, counts, heads, data) -> None:
    count = sum(counts)
    x = torch.randn(count, heads, 2)
    for place in data.draw(st.sets(st.integers(0, max(0, count - 1)), max_size=2)):
        x[place : place + 1, 0, 0] = float("nan")
    indptr = torch.tensor([0, *counts]).cumsum(0)
    assert can_reduce_lists(x, torch.float32)
    of_list = torch.repeat_interleave(torch.tensor(counts, dtype=torch.int64))
    index = of_list.view(-1, 1, 1).expand_as(x)
    found = torch.zeros(len(counts), heads, 2)
    kind = {"sum": "sum", "max": "amax", "min": "amin"}[reduce]
    found.scatter_reduce_(0, index, x, kind, include_self=reduce == "sum")
    ours = reduce_lists(indptr, x, reduce)
    torch.testing.assert_close(ours, found, rtol=0, atol=0, equal_nan=True)


def test_only_wide_floats_are_reduced_by_lists() -> None:
    assert not can_reduce_lists(torch.ones(2), torch.float32)
    assert not can_reduce_lists(torch.ones(2, 0), torch.float32)
    assert not can_reduce_lists(torch.ones(2, 1).half(), torch.float16)
    assert not can_reduce_lists(torch.ones(2, 1), torch.float64)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize("reduce", ["sum", "mean"])
@given(drawn=adjacencies(), weighted=st.booleans())
def test_torch_products_equal_kernels(reduce, drawn, weighted) -> None:
    """What runs on a GPU, here on the CPU."""
    matrix, edge_index = drawn
    x = torch.randn(matrix.num_sources, 3)
    weight = torch.rand(edge_index.size(1)) if weighted else None
    if edge_index.size(1) and matrix.num_destinations:
        out = module._torch_product(matrix, x, weight, reduce == "mean")
        torch.testing.assert_close(out, aggregate(matrix, x, weight, reduce))


@given(drawn=adjacencies())
def test_transposes_agree(drawn) -> None:
    matrix, edge_index = drawn
    dense = torch.zeros(matrix.num_destinations, matrix.num_sources)
    dense.index_put_((edge_index[1], edge_index[0]), torch.ones(()), accumulate=True)
    for transpose, position in (module._transpose_on_host(matrix), module._transpose(matrix)):
        columns = torch.repeat_interleave(transpose.indptr.diff())
        again = torch.zeros(matrix.num_sources, matrix.num_destinations)
        again.index_put_((columns, transpose.index), torch.ones(()), accumulate=True)
        assert torch.equal(again.t(), dense)
        assert torch.equal(edge_index[0][position], columns)
        assert torch.equal(edge_index[1][position], transpose.index)


@pytest.mark.parametrize("wanted", [0, 1])
def test_positions_of_one_entry_are_written_where_they_are_wanted_alone(wanted: int) -> None:
    position = np.array([-1])
    transpose_csr(
        np.array([0, 1]), np.array([0]), np.zeros(3, int), np.empty(1, int), position[:wanted]
    )
    assert position.tolist() == [0 if wanted else -1]


def large() -> tuple[Adjacency, Tensor]:
    edge_index = torch.randint(500, (2, 20_000))
    edge_index = edge_index[:, edge_index[1].argsort()].contiguous()
    return adjacency(edge_index, 500, 500), edge_index


@pytest.mark.parametrize("reduce", REDUCTIONS)
def test_threads_do_not_change_a_bit(monkeypatch, reduce) -> None:
    matrix, _ = large()
    x = torch.randn(500, 40)
    results = []
    for threads in (1, 2, 7):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=threads: n)
        results.append(aggregate(matrix, x, None, reduce))
    for other in results[1:]:
        assert torch.equal(results[0], other)


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_summed_in_float32(dtype, reduce) -> None:
    matrix, _ = large()
    x = torch.randn(500, 8).to(dtype)
    out = aggregate(matrix, x, None, reduce)
    assert out.dtype == dtype
    assert torch.equal(out, aggregate(matrix, x.float(), None, reduce).to(dtype))


def test_too_few_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="name 500 source nodes, but x has 499 rows"):
        aggregate(large()[0], torch.randn(499, 2), None, "sum")


def test_reductions_dtypes_and_shapes_without_kernel_are_not_taken() -> None:
    x = torch.randn(3, 2)
    assert can_aggregate(x, None, "add")
    assert not can_aggregate(x, None, "lstm")
    assert not can_aggregate(x.view(3, 2, 1), None, "sum")
    assert not can_aggregate(x.long(), None, "sum")
    assert not can_aggregate(x, torch.rand(5, requires_grad=True), "sum")
    assert not can_aggregate(x, torch.rand(5, 2), "sum")


def test_the_comparison_catches_a_list_that_ends_early() -> None:
    matrix, edge_index = large()
    matrix.indptr = torch.cat([matrix.indptr[:1], matrix.indptr[1:] - 1]).clamp(min=0)
    x = torch.randn(500, 4)
    with pytest.raises(AssertionError):
        torch.testing.assert_close(
            aggregate(matrix, x, None, "sum"), reference(edge_index, 500, x, None, "sum")
        )
