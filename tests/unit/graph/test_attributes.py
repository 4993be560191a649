"""Times by type: of nodes or of edges, and not of both."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.testing import MyFeatureStore, MyGraphStore

from pyg_direct.graph.attributes import TimeAttributes, edge_weights, find

EDGES = ("a", "to", "b")


def graph(*keys: object) -> HeteroData:
    """Return a graph whose nodes or edges of some types have times."""
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 3, 2
    data[EDGES].edge_index = torch.tensor([[0, 1, 2], [0, 1, 1]])
    for key in keys:
        data[key].time = torch.arange(2 if key == "b" else 3)
    return data


@pytest.mark.parametrize("keys", [("a", EDGES), ("a", "b", EDGES)])
def test_times_of_nodes_and_of_edges_are_refused(keys: tuple[object, ...]) -> None:
    with pytest.raises(ValueError, match="'time' is an attribute of nodes and of edges; rename"):
        TimeAttributes(graph(*keys), "time")


def test_times_of_nothing_are_refused() -> None:
    text = "'time' is not an attribute of the nodes or of the edges\\. Those are: none"
    with pytest.raises(ValueError, match=text):
        TimeAttributes(graph(), "time")


def test_an_attribute_that_is_missing_is_told_with_those_that_are_there() -> None:
    edges = torch.tensor([[0, 1, 1], [1, 0, 1]])
    data = Data(x=torch.ones(2, 1), edge_index=edges, w=torch.ones(3), num_nodes=2)
    with pytest.raises(ValueError, match=r"nodes or of the edges\. Those are: 'w', 'x'\."):
        TimeAttributes(data, "time")
    with pytest.raises(ValueError, match=r"weight_attr='v' is .* the edges\. Those are: 'w'\."):
        edge_weights(data, "v")
    features, typed = MyFeatureStore(), HeteroData()
    for key, name in (("a", "x"), (EDGES, "w")):
        features.put_tensor(torch.ones(2), group_name=key, attr_name=name, index=None)
        typed[key][name] = torch.ones(2)
    for graph_or_stores in (typed, (features, MyGraphStore())):
        with pytest.raises(ValueError, match=r"Those are: 'w', 'x'\."):
            TimeAttributes(graph_or_stores, "time")
        with pytest.raises(ValueError, match=r"the edges\. Those are: 'w'\."):
            edge_weights(graph_or_stores, "weight")


def test_times_are_found_by_type() -> None:
    of_nodes, of_edges = (TimeAttributes(graph(*k), "time") for k in (("a", "b"), (EDGES,)))
    found = {kind: time.tolist() for kind, time in of_nodes.node.items()}
    assert (found, of_nodes.edge) == ({"a": [0, 1, 2], "b": [0, 1]}, {})
    assert (of_edges.node, of_edges.edge[EDGES].tolist()) == ({}, [0, 1, 2])


def test_times_in_stores_without_types_are_of_nodes_by_their_name() -> None:
    """As in PyG."""
    features = MyFeatureStore()
    for name in ("time", "stamp"):
        features.put_tensor(torch.arange(3), group_name=None, attr_name=name, index=None)
    (of_nodes, none), (nothing, of_edges) = (find((features, None), n) for n in ("time", "stamp"))
    assert list(of_nodes) == list(of_edges) == [None]
    assert none == nothing == {}
