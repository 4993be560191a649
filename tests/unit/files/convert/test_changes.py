"""Edges that are added or dropped on the way."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conversions import as_npy, attributed, edge_list
from torch_geometric.data import Data
from torch_geometric.utils import add_self_loops, coalesce, remove_self_loops, to_undirected

import pyg_direct
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


def converted(data: Data, folder: Path, **changes: Any) -> Any:
    spec = as_npy(data, folder / "raw")
    edges = [replace(spec.edges[0], **changes)]
    convert(replace(spec, edges=edges), folder / "out")
    return pyg_direct.open(folder / "out", verify=True)


def plain(nodes: int = 30, edges: int = 400) -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        edge_index=torch.randint(nodes, (2, edges), generator=generator), y=torch.arange(nodes)
    )


def pairs(edge_index: torch.Tensor) -> list[tuple[int, int]]:
    return [(s, t) for s, t in edge_index.t().tolist()]


def by_destination(edges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    return sorted(edges, key=lambda edge: edge[1])


def test_undirected_as_pyg_makes_it(tmp_path: Path) -> None:
    data = plain()
    found = converted(data, tmp_path, symmetrise=True, deduplicate=True)
    assert sorted(edge_list(found)) == sorted(pairs(to_undirected(data.edge_index)))


def test_reverse_edges_come_behind_all_others(tmp_path: Path) -> None:
    data = plain()
    reverse = [(t, s) for s, t in pairs(data.edge_index) if s != t]
    found = converted(data, tmp_path, symmetrise=True)
    assert edge_list(found) == by_destination([*pairs(data.edge_index), *reverse])


def test_the_first_of_equal_edges_stays(tmp_path: Path) -> None:
    data = plain()
    first = list(dict.fromkeys(pairs(data.edge_index)))
    found = converted(data, tmp_path, deduplicate=True)
    assert edge_list(found) == by_destination(first)
    assert sorted(first) == sorted(pairs(coalesce(data.edge_index)))
    assert len(first) < data.num_edges


def test_self_loops_are_removed_and_added_as_pyg_does(tmp_path: Path) -> None:
    data = plain()
    without = remove_self_loops(data.edge_index)[0]
    (tmp_path / "a").mkdir()
    found = converted(data, tmp_path / "a", self_loops="remove")
    assert edge_list(found) == by_destination(pairs(without))
    assert without.size(1) < data.num_edges
    found = converted(data, tmp_path, self_loops="add")
    assert edge_list(found) == by_destination(pairs(add_self_loops(without, num_nodes=30)[0]))


def test_attributes_follow_their_edges(tmp_path: Path) -> None:
    """The number of every edge is its attribute: reversed ones have the same."""
    data = attributed(20, 300)
    data.edge_attr = torch.stack([torch.arange(300), torch.arange(300) * 2], dim=1)
    data.edge_weight = torch.arange(300)
    found = converted(data, tmp_path, symmetrise=True, deduplicate=True, self_loops="remove")
    given = pairs(data.edge_index)
    first: dict[tuple[int, int], int] = {}
    for reverse in (False, True):
        for number, (s, t) in enumerate(given):
            if s != t:
                first.setdefault((t, s) if reverse else (s, t), number)
    edges = edge_list(found)
    assert sorted(edges) == sorted(first)
    assert found.edge_weight.tolist() == [first[edge] for edge in edges]
    assert torch.equal(found.edge_attr[:, 1], 2 * found.edge_weight)


def test_attributes_follow_reversed_edges_beside_self_loops(tmp_path: Path) -> None:
    data = attributed(20, 300)
    data.edge_weight = torch.arange(300)
    found = converted(data, tmp_path, symmetrise=True)
    given = pairs(data.edge_index)
    forward = [(s, t, e) for e, (s, t) in enumerate(given)]
    backward = [(t, s, e) for e, (s, t) in enumerate(given) if s != t]
    assert len(backward) < 300
    expected = sorted([*forward, *backward], key=lambda edge: edge[1])
    edges = zip(edge_list(found), found.edge_weight.tolist(), strict=True)
    assert [(s, t, e) for (s, t), e in edges] == expected


def test_changes_between_types_or_of_attributes_are_refused(tmp_path: Path) -> None:
    source = ArraySource("e.npy")
    typed = [NodeSpec("a", 3), NodeSpec("b", 3)]
    for change in ({"symmetrise": True}, {"self_loops": "add"}):
        with pytest.raises(ValueError, match="among nodes of one type"):
            GraphSpec(typed, [EdgeSpec(("a", "to", "b"), source, **change)])
    with pytest.raises(ValueError, match="without the attributes w"):
        GraphSpec([NodeSpec(None, 3)], [EdgeSpec(None, source, {"w": source}, self_loops="add")])
    with pytest.raises(ValueError, match="self_loops must be one of"):
        GraphSpec([NodeSpec(None, 3)], [EdgeSpec(None, source, self_loops="both")])
    with pytest.raises(ValueError, match="node type 'c'"):
        GraphSpec(typed, [EdgeSpec(("a", "to", "c"), source)])
    with pytest.raises(ValueError, match="feature_dtype"):
        GraphSpec([NodeSpec(None, 3)], [EdgeSpec(None, source)], "int4")
    with pytest.raises(ValueError, match="no edges"):
        GraphSpec([NodeSpec(None, 3)], [])
    for nodes, kind in (([NodeSpec(None, 3)], None), (typed, ("a", "to", "b"))):
        with pytest.raises(ValueError, match=r"edge type .* is given twice: .* one file"):
            GraphSpec(nodes, [EdgeSpec(kind, source), EdgeSpec(kind, source)])
