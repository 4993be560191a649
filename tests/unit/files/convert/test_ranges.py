"""Ranges of destinations whose edges are sorted at a time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pyg_direct.files.convert.edge_table import EdgeTable


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
