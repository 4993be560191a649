"""Bidirectional subgraphs: which edge's id stays is stated, and open on no device."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.sampler import SamplerOutput

from pyg_direct.sampling.outputs import in_both_directions


def subgraph(pairs: list[tuple[int, int]], ids: list[int], dtype: torch.dtype, num_nodes: int):
    row, col = torch.tensor(pairs, dtype=dtype).t()
    return SamplerOutput(
        node=torch.arange(num_nodes), row=row, col=col, edge=torch.tensor(ids), batch=None,
        num_sampled_nodes=[num_nodes], num_sampled_edges=[len(pairs)],
    )  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_the_first_edge_keeps_its_id(dtype: torch.dtype) -> None:
    pairs = [(0, 1), (2, 0), (0, 1), (1, 0), (3, 3)]
    out = in_both_directions(subgraph(pairs, [7, 9, 6, 8, 5], dtype, 4), False)
    assert out.row.dtype == out.col.dtype == dtype
    assert list(zip(out.row.tolist(), out.col.tolist(), strict=True)) == [
        (1, 0), (2, 0), (0, 1), (0, 2), (3, 3),
    ]  # fmt: skip
    # 1->0 and 0->1 were sampled and keep their own; 0->2 has that of 2->0.
    assert out.edge.tolist() == [8, 9, 7, 9, 5]
    assert out.num_sampled_nodes is None


def test_the_edges_as_sampled_are_kept_where_they_are_asked_for() -> None:
    given = subgraph([(0, 1), (1, 0)], [3, 4], torch.int64, 2)
    out = in_both_directions(given, True)
    assert (out.orig_row, out.orig_col) == (given.row, given.col)
    assert out.num_sampled_edges == [2]
    given.edge = None  # as of samplers that know no ids
    assert in_both_directions(given, True).edge is None


def test_int32_ends_with_products_of_64_bits_are_paired() -> None:
    """As of int32 graphs with more than 46,341 nodes in a batch."""
    far = 70_000
    pairs = [(far - 1, far - 2), (0, 50_000), (far - 2, far - 1)]
    out = in_both_directions(subgraph(pairs, [1, 2, 3], torch.int32, far), False)
    assert out.edge.tolist() == [2, 2, 1, 3]
    assert out.col.tolist() == [0, 50_000, far - 2, far - 1]


def test_no_scatter_with_equal_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose winner torch leaves open on a GPU."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a scatter")

    for name in ("scatter_", "scatter_reduce_", "index_put_", "scatter"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    out = in_both_directions(subgraph([(0, 1), (0, 1)], [1, 2], torch.int64, 2), False)
    assert out.edge.tolist() == [1, 1]
