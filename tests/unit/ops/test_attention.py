"""Sums by heads: values, first and second gradients, threads, half precision, planted faults."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch import Tensor

from pyg_direct.kernels import heads as kernels
from pyg_direct.ops import attention as module
from pyg_direct.ops import products
from pyg_direct.ops.attention import attend, can_attend


def reference(edge_index: Tensor, x: Tensor, weight: Tensor, rows: int) -> Tensor:
    messages = weight.unsqueeze(-1) * x[edge_index[0]]
    return x.new_zeros(rows, *x.shape[1:]).index_add(0, edge_index[1], messages)


@st.composite
def cases(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, int]:
    sources, rows = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    edge = st.tuples(st.integers(0, sources - 1), st.integers(0, rows - 1))
    edges = draw(st.lists(edge, max_size=20))
    edge_index = torch.tensor(edges, dtype=torch.int64).reshape(-1, 2).t()
    heads, columns = draw(st.integers(1, 3)), draw(st.sampled_from([1, 3, 8, 19]))
    x = torch.randn(sources, heads, columns, dtype=torch.float64)
    return edge_index, x, torch.randn(len(edges), heads, dtype=torch.float64), rows


def outcome(function, case) -> list[Tensor]:
    edge_index, x, weight, rows = case
    x, weight = x.clone().requires_grad_(), weight.clone().requires_grad_()
    out = function(edge_index, x, weight, rows)
    grad = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad(out, (x, weight), grad)]


@given(cases())
def test_equals_messages(case) -> None:
    assert can_attend(*case[:3])
    torch.testing.assert_close(outcome(attend, case), outcome(reference, case))


def test_the_worked_example() -> None:
    x = torch.tensor([[[1.0], [10.0]], [[2.0], [20.0]]], requires_grad=True)
    weight = torch.tensor([[3.0, 0.0], [1.0, 2.0]], requires_grad=True)
    out = attend(torch.tensor([[0, 1], [0, 0]]), x, weight, 1)
    assert out.flatten().tolist() == [5, 40]
    out.backward(torch.tensor([[[1.0], [2.0]]]))
    assert x.grad is not None
    assert weight.grad is not None
    assert x.grad[0].flatten().tolist() == [3, 0]
    assert weight.grad[0].tolist() == [1, 20]


def test_gradients_by_differences() -> None:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(4, (2, 12), generator=generator)
    x = torch.randn(4, 2, 9, dtype=torch.float64, generator=generator, requires_grad=True)
    weight = torch.randn(12, 2, dtype=torch.float64, generator=generator, requires_grad=True)

    def softmax_over_edges(x: Tensor, scores: Tensor) -> Tensor:
        shares = scores.exp()
        sums = torch.zeros(4, 2, dtype=x.dtype).index_add(0, edge_index[1], shares)
        return attend(edge_index, x, shares / sums[edge_index[1]], 4)

    assert torch.autograd.gradcheck(softmax_over_edges, (x, weight))
    assert torch.autograd.gradgradcheck(softmax_over_edges, (x, weight))


def test_threads_share_the_rows(monkeypatch) -> None:
    monkeypatch.setattr(products, "MIN_BYTES_PER_THREAD", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(50, (2, 400), generator=generator)
    case = edge_index, torch.randn(50, 2, 16), torch.randn(400, 2), 50
    torch.testing.assert_close(outcome(attend, case), outcome(reference, case))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_summed_in_float32(dtype) -> None:
    edge_index = torch.stack([torch.zeros(4000, dtype=torch.int64)] * 2)
    x, weight = torch.ones(1, 1, 1, dtype=dtype), torch.ones(4000, 1, dtype=dtype)
    out = attend(edge_index, x, weight, 1)
    assert out.dtype == dtype
    assert float(out) == pytest.approx(4000, rel=0.01)


def test_no_sources_and_no_destinations() -> None:
    nothing = torch.empty(2, 0, dtype=torch.int64)
    x, weight = torch.empty(0, 2, 3, requires_grad=True), torch.empty(0, 2, requires_grad=True)
    out = attend(nothing, x, weight, 4)
    assert torch.equal(out, torch.zeros(4, 2, 3))
    out.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == x.shape
    assert attend(nothing, torch.ones(4, 2, 3), weight, 0).shape == (0, 2, 3)


def test_what_it_takes() -> None:
    edge_index, x, weight = torch.zeros(2, 5, dtype=torch.int64), torch.ones(1, 2, 3), torch.ones
    assert can_attend(edge_index, x, weight(5, 2))
    assert not can_attend(edge_index, x, weight(5, 1)), "one weight for all heads"
    assert not can_attend(edge_index, x, weight(4, 2)), "another number of edges"
    assert not can_attend(edge_index, x[0], weight(5, 2)), "no heads"
    assert not can_attend(edge_index, x, weight(5, 2).double())
    assert not can_attend(edge_index, x.to("meta"), weight(5, 2))


def test_a_wrong_kernel_is_found(monkeypatch) -> None:
    def without_last_head(*arguments):
        kernels.sum_by_heads(*arguments)
        arguments[-1][:, -1] = 0

    stand_in = type("", (), {"sum_by_heads": without_last_head, "spread_by_heads": None})
    monkeypatch.setattr(module, "kernels", stand_in)
    edge_index = torch.tensor([[0], [0]])
    x, weight = torch.ones(1, 2, 1), torch.ones(1, 2)
    assert not np.allclose(attend(edge_index, x, weight, 1), reference(edge_index, x, weight, 1))
