"""When the lists of a saved graph stand for the data, and when these were changed since."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

import pyg_direct
from pyg_direct.graph.compressed import CscEdgeIndex, compressed_graph

X, Y = ("a", "x", "a"), ("a", "y", "a")


@pytest.fixture
def opened(tmp_path: Path) -> Any:
    data = HeteroData()
    data["a"].num_nodes, data["a"].time = 4, torch.arange(4)
    for shift, key in enumerate((X, Y)):
        data[key].edge_index = torch.tensor([[0, 1, 2], [1 + shift, 2, 3]])
        data[key].weight, data[key].other = torch.rand(2, 3)
    pyg_direct.save(data, tmp_path / "graph", time_attr="time", weight_attr="weight")
    return pyg_direct.open(tmp_path / "graph")


def swap(data: Any) -> None:
    data[X].edge_index, data[Y].edge_index = data[Y].edge_index, data[X].edge_index


def add_matrix(data: Any) -> None:
    data[X].adj_t = torch.eye(4).to_sparse()


CHANGES: dict[str, Callable[[Any], Any]] = {
    "edges change places": swap,
    "a matrix comes before edge_index": add_matrix,
    "other edges": lambda data: setattr(data[Y], "edge_index", data[Y].edge_index.clone()),
    "another number of nodes": lambda data: setattr(data["a"], "num_nodes", 5),
    "a time is written": lambda data: data["a"].time.add_(1),
    "a weight is written": lambda data: data[Y].weight.mul_(2),
    "other times": lambda data: setattr(data["a"], "time", data["a"].time.clone()),
    "one weight is missing": lambda data: data[Y].pop("weight"),
    "another type": lambda data: setattr(data["b"], "num_nodes", 2),
}


def test_a_compressed_graph_serves_the_saved_times_and_weights(opened: Any) -> None:
    for names in (("time", "weight"), ("time", None), (None, "weight"), (None, None)):
        assert compressed_graph(opened, *names) is opened[X].edge_index.graph
    for names in (("time", "other"), ("number", None), (None, "other")):
        assert compressed_graph(opened, *names) is None


@pytest.mark.parametrize("name", CHANGES)
def test_a_compressed_graph_does_not_serve_changed_data(opened: Any, name: str) -> None:
    CHANGES[name](opened)
    assert compressed_graph(opened, "time", "weight") is None


def test_lists_of_more_edges_than_there_are_make_no_edge_index(opened: Any) -> None:
    index = opened[X].edge_index
    csc = index.graph.csc
    damaged = replace(index.graph, csc=replace(csc, indptr=np.array([0, 0, 1, 2, 4, 4, 5, 6])))
    with pytest.raises(ValueError, match="neighbour lists are not in order"):
        CscEdgeIndex(damaged, 0).dense()


def test_attributes_not_asked_for_may_change(opened: Any) -> None:
    opened[X].weight.mul_(2)
    opened["a"].y = torch.arange(4)
    assert compressed_graph(opened, "time", None) is not None


def test_ids_are_read_and_checked_where_something_is_found_by_them(opened: Any) -> None:
    graph = opened[X].edge_index.graph
    for names, checks_ids in (
        (("time", None), True), ((None, "weight"), True), ((None, None), False),
    ):  # fmt: skip
        assert graph.with_attributes(*names, checks_ids).verified
    assert not graph.with_attributes(None, None, True).verified


def test_times_of_edges_are_not_those_of_nodes(tmp_path: Path) -> None:
    """Nodes and edges of a graph without types are of the one type None."""
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    data = Data(edge_index=edge_index, num_nodes=4, edge_time=torch.arange(3), at=torch.arange(4))
    for name, times in (("edge_time", []), ("at", [[0, 1, 2, 3]])):
        pyg_direct.save(data, tmp_path / name, time_attr=name)
        graph = compressed_graph(pyg_direct.open(tmp_path / name), name, None)
        assert graph is not None
        assert [of_type.tolist() for of_type in graph.node_times().values()] == times


def test_nodes_have_the_times_of_their_own_type(tmp_path: Path) -> None:
    data = HeteroData()
    for kind, times in (("a", torch.arange(3)), ("b", torch.arange(10, 12))):
        data[kind].num_nodes, data[kind].time = len(times), times
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    data["b", "to", "a"].edge_index = torch.tensor([[0, 1], [2, 0]])
    pyg_direct.save(data, tmp_path / "graph", time_attr="time")
    graph = compressed_graph(pyg_direct.open(tmp_path / "graph"), "time", None)
    assert graph is not None
    found = {kind: times.tolist() for kind, times in graph.node_times().items()}
    assert found == {"a": [0, 1, 2], "b": [10, 11]}
