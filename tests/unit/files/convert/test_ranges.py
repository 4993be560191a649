"""Ranges of destinations whose edges are sorted at a time, and of ids."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pyg_direct.files.convert.convert import _Conversion
from pyg_direct.files.convert.edge_table import EdgeTable
from pyg_direct.files.convert.node_files import check_range
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec


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


@pytest.mark.parametrize("memory_bytes", [10**9, 10**11])
@pytest.mark.parametrize("reverse", [False, True])
def test_edges_on_their_way_take_a_sixth_of_the_memory_at_most(
    tmp_path: Path, memory_bytes: int, reverse: bool
) -> None:
    np.save(tmp_path / "e.npy", np.zeros((5, 2), np.int64))
    np.save(tmp_path / "w.npy", np.zeros((5, 30), np.float32))
    edge = EdgeSpec(
        None, ArraySource(str(tmp_path / "e.npy")), {"w": ArraySource(str(tmp_path / "w.npy"))},
        symmetrise=reverse,
    )  # fmt: skip
    (made,) = _Conversion(GraphSpec([NodeSpec(None, 3)], [edge]), memory_bytes)._edges
    assert 1000 < made.piece_edges < memory_bytes / 6 / (30 * 4 * (1 + reverse))


@pytest.mark.parametrize("first_id", [0, 1])
@pytest.mark.parametrize("wrong", [-1, 3])
def test_the_first_id_beside_the_range_is_named(first_id: int, wrong: int) -> None:
    ids = torch.tensor([0, 2, wrong, wrong]) + first_id
    assert check_range(ids[:2], 3, "x", 7, first_id).tolist() == [0, 2]
    text = rf"Entry 9 of x is {wrong + first_id}, .* in \[{first_id}, {3 + first_id}\)"
    with pytest.raises(ValueError, match=text):
        check_range(ids, 3, "x", 7, first_id)
