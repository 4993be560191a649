"""What a graph is made of, by types."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct.graph.from_pyg import graph_of


@pytest.mark.parametrize(
    ("first", "second", "wanted"),
    [("int32", "int32", "int32"), ("int32", "int64", "int64"), ("int64", "int32", "int64")],
)
def test_ids_are_narrow_where_those_of_all_types_are(first: str, second: str, wanted: str) -> None:
    data = HeteroData()
    data["a"].num_nodes = 2
    for name, dtype in (("x", first), ("y", second)):
        data["a", name, "a"].edge_index = torch.zeros(2, 1, dtype=getattr(torch, dtype))
    assert graph_of(data).id_dtype == getattr(torch, wanted)


def test_lists_of_a_saved_graph_are_turned_around(tmp_path: Path) -> None:
    """Node 0 leads to 1 and 2."""
    data = Data(edge_index=torch.tensor([[0, 0], [1, 2]]), num_nodes=3)
    pyg_direct.save(data, tmp_path / "graph")
    for given in (data, pyg_direct.open(tmp_path / "graph")):
        csc = graph_of(given, backward=True).csc
        assert (csc.indptr.tolist(), csc.indices.tolist()) == ([0, 2, 2, 2], [1, 2])


def test_adj_comes_before_adj_t() -> None:
    """As in PyG. Here they hold the edges 0 -> 1 and 2 -> 0."""
    one = torch.ones(1)
    data = Data(num_nodes=3)
    data.adj_t = torch.sparse_coo_tensor([[0], [2]], one, (3, 3), check_invariants=True)
    data.adj = torch.sparse_coo_tensor([[0], [1]], one, (3, 3), check_invariants=True)
    csc = graph_of(data).csc
    assert (csc.indptr.tolist(), csc.indices.tolist()) == ([0, 0, 1, 1], [0])
