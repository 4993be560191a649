"""What a graph is made of, by types."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import HeteroData

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
