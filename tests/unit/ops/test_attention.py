"""Sums and products by heads: values, threads, planted faults."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from pyg_direct.core.private_torch import pointers_of
from pyg_direct.kernels import aggregate as kernels
from pyg_direct.ops import products
from pyg_direct.ops import products as module
from pyg_direct.ops.products import Adjacency, can_sum_by_heads, dot_by_heads, sum_by_heads


def matrix_of(source: Tensor, destination: Tensor, sources: int, rows: int) -> Adjacency:
    return Adjacency(pointers_of(destination, rows), source, sources)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Draw sources and sorted destinations of edges, rows, weights, and the number of lists."""
    sources, rows = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    edge = st.tuples(st.integers(0, rows - 1), st.integers(0, sources - 1))
    edges = sorted(draw(st.lists(edge, max_size=20)))
    destination, source = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t().contiguous()
    heads, columns = draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 8, 19]))
    x = torch.randn(sources, heads, columns, dtype=torch.float64)
    weight = torch.randn(len(edges), heads, dtype=torch.float64)
    return source, destination, x, weight, rows


def summed(source: Tensor, destination: Tensor, x: Tensor, weight: Tensor, rows: int) -> Tensor:
    messages = weight.unsqueeze(-1) * x[source]
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, destination, messages)


@given(cases())
def test_sums_equal_those_of_messages(case) -> None:
    source, destination, x, weight, rows = case
    matrix = matrix_of(source, destination, len(x), rows)
    torch.testing.assert_close(sum_by_heads(matrix, None, x, weight), summed(*case))
    transposed, position = matrix.transpose()
    grad = torch.randn(rows, *x.shape[1:], dtype=x.dtype)
    expected = summed(destination, source, grad, weight, len(x))
    torch.testing.assert_close(sum_by_heads(transposed, position, grad, weight), expected)


@given(cases())
def test_products_equal_those_of_messages(case) -> None:
    source, destination, x, _, rows = case
    grad = torch.randn(rows, *x.shape[1:], dtype=x.dtype)
    expected = (grad[destination] * x[source]).sum(-1)
    torch.testing.assert_close(dot_by_heads(destination, source, grad, x), expected)


def test_the_worked_examples() -> None:
    x, edges = torch.tensor([[[1.0], [10.0]], [[2.0], [20.0]]]), torch.tensor([0, 1])
    weight = torch.tensor([[3.0, 0.0], [1.0, 2.0]])
    matrix = matrix_of(edges, torch.tensor([0, 0]), 2, 1)
    assert sum_by_heads(matrix, None, x, weight).flatten().tolist() == [5, 40]
    first, second = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[7.0], [8.0]], [[1.0], [10.0]]])
    found = dot_by_heads(torch.tensor([0]), torch.tensor([1]), first, second)
    assert found.tolist() == [[1, 20]]


def test_threads_share_the_work(monkeypatch) -> None:
    for place in (products, module):
        monkeypatch.setattr(place, "MIN_BYTES_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    source, destination = torch.randint(50, (400,)), torch.randint(50, (400,)).sort().values
    x, y, weight = torch.randn(50, 2, 16), torch.randn(50, 2, 16), torch.randn(400, 2)
    found = sum_by_heads(matrix_of(source, destination, 50, 50), None, x, weight)
    torch.testing.assert_close(found, summed(source, destination, x, weight, 50))
    expected = (y[destination] * x[source]).sum(-1)
    torch.testing.assert_close(dot_by_heads(destination, source, y, x), expected)


def test_no_sources_and_no_destinations() -> None:
    none = torch.empty(0, dtype=torch.int64)
    x, weight = torch.empty(0, 2, 3), torch.empty(0, 2)
    assert torch.equal(
        sum_by_heads(matrix_of(none, none, 0, 4), None, x, weight), torch.zeros(4, 2, 3)
    )
    assert sum_by_heads(matrix_of(none, none, 0, 0), None, x, weight).shape == (0, 2, 3)
    assert dot_by_heads(none, none, x, x).shape == (0, 2)


def test_sums_by_heads_take_three_dimensions_of_supported_dtypes() -> None:
    host, wide = torch.device("cpu"), torch.float64
    assert can_sum_by_heads((5, 2, 3), wide, host)
    assert not can_sum_by_heads((5, 3), wide, host), "no heads"
    assert not can_sum_by_heads((5, 0, 3), wide, host)
    assert not can_sum_by_heads((5, 2, 0), wide, host)
    assert not can_sum_by_heads((5, 2, 3), torch.float16, host)
    assert not can_sum_by_heads((5, 2, 3), wide, torch.device("meta"))


@pytest.mark.parametrize("name", ["sum_by_heads", "dot_by_heads"])
def test_a_wrong_kernel_is_found(name, monkeypatch) -> None:
    def without_last_head(*arguments):
        getattr(kernels, name)(*arguments)
        arguments[-1][:, -1] = 0

    monkeypatch.setattr(module, "kernels", type("", (), {name: without_last_head}))
    one, rows = torch.tensor([0]), torch.ones(1, 2, 1)
    if name == "sum_by_heads":
        found = sum_by_heads(matrix_of(one, one, 1, 1), None, rows, torch.ones(1, 2))
    else:
        found = dot_by_heads(one, one, rows, rows)
    assert found.flatten().tolist() == [1, 0]
