"""Ranges of destinations whose edges are sorted at a time, and of ids."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyg_direct.files.convert.edge_table import EdgeTable
from pyg_direct.files.convert.node_files import check_range


def test_ranges_have_no_more_edges_or_nodes_than_are_sorted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Unless one node has more; by (node, edges to it), of 100 nodes."""
    edges = [(0, 4), (1, 4), (2, 4), (3, 25), (4, 1), (5, 1), (60, 3)]
    table: Any = EdgeTable.__new__(EdgeTable)
    table._layout = SimpleNamespace(num_dst=100, max_sorted=10)
    monkeypatch.setattr(EdgeTable, "_run", lambda self, statement: edges)
    cuts = [0, 2, 3, 4, 14, 24, 34, 44, 54, 60, 70, 80, 90, 100]
    assert table.partitions() == cuts


@pytest.mark.parametrize("first_id", [0, 1])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_first_id_beside_the_range_is_named(first_id: int, wrong: int) -> None:
    ids = torch.tensor([0, 2, wrong, wrong]) + first_id
    assert check_range(ids[:2], 3, "x", 7, first_id).tolist() == [0, 2]
    text = rf"Entry 9 of x is {wrong + first_id}, .* in \[{first_id}, {3 + first_id}\)"
    with pytest.raises(ValueError, match=text):
        check_range(ids, 3, "x", 7, first_id)
