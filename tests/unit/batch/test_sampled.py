"""Outputs of any sampler of PyG's interface, as subgraphs whose attributes are to be gathered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch_geometric.sampler import HeteroSamplerOutput, SamplerOutput

from pyg_direct.batch.sampled import _stack, of_output
from pyg_direct.batch.tensors import with_edge_ids
from pyg_direct.ops.devices import HOST

# Of memory of their own, of which rows are views.
TWO, THREE, LINE = torch.randn(2, 3), torch.randn(3, 3), torch.randn(10)


@pytest.mark.parametrize(
    "pair",
    [
        (TWO[0], TWO[1]),
        (TWO[1], TWO[0]),
        (TWO[0], TWO[0]),
        (TWO[0], THREE[1]),
        (THREE[1], THREE[2]),
        (TWO.t().contiguous().t()[0], TWO.t().contiguous().t()[1]),
        (LINE[2:5], LINE[5:8]),
        (LINE[2:5], LINE[6:9]),
        (LINE[:6:2], LINE[6:9]),
        (LINE[:0], LINE[:0]),
    ],
    ids=range(10),
)
def test_rows_and_columns_are_stacked_whatever_they_lie_in(pair: Any) -> None:
    assert torch.equal(_stack(*pair), torch.stack(pair))


def test_rows_and_columns_that_are_adjacent_are_not_copied() -> None:
    assert _stack(LINE[2:5], LINE[5:8]).data_ptr() == LINE[2:5].data_ptr()


def test_rows_and_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(RuntimeError, match="equal size"):
        _stack(LINE[2:5], LINE[5:7])


def test_types_without_nodes_keep_their_counts() -> None:
    key = ("a", "to", "b")
    out = HeteroSamplerOutput(
        node={"a": torch.tensor([4, 2])}, row={}, col={}, edge={}, batch=None,
        num_sampled_nodes={"a": [2, 0], "b": [0, 0]}, num_sampled_edges={key: [0]},
    )  # fmt: skip
    sampled = of_output(out, HOST, lambda tensor: tensor)
    assert [(k, v.node.tolist(), v.num_sampled) for k, v in sampled.nodes.items()] == [
        ("a", [4, 2], [2, 0]), ("b", [], [0, 0]),
    ]  # fmt: skip
    assert (sampled.edges[key].edge_index.shape, sampled.edges[key].num_sampled) == ((2, 0), [0])


def test_edges_as_they_were_sampled_keep_their_direction() -> None:
    node = torch.arange(2)
    out = SamplerOutput(node, node, node.flip(0), None, orig_row=node[:1], orig_col=node[1:])
    found = of_output(out, HOST, lambda tensor: tensor).edges[None].original
    assert found is not None
    assert found.tolist() == [[0], [1]]
    half = replace(out, orig_col=None)
    assert of_output(half, HOST, lambda tensor: tensor).edges[None].original is None


def test_positions_become_ids_of_edges() -> None:
    order, node = torch.tensor([2, 0, 1]), torch.arange(2)
    out = SamplerOutput(node, row=node, col=node, edge=torch.tensor([0, 2]))
    assert with_edge_ids(out, order).edge.tolist() == [2, 1]
    assert out.edge.tolist() == [0, 2]
    assert with_edge_ids(out, None) is out
    of_types = {"x": torch.tensor([0, 2]), "y": torch.tensor([1]), "z": None}
    typed = HeteroSamplerOutput(node={}, row={}, col={}, edge=of_types)
    found = with_edge_ids(typed, {"x": order, "z": order}).edge
    assert [None if v is None else v.tolist() for v in found.values()] == [[2, 1], [1], None]
