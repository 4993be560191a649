"""Heterogeneous graphs: the same rules for every node type and edge type."""

import pytest
import torch
from hetero import graph

from pyg_direct import NeighborLoader

pytestmark = pytest.mark.usefixtures("each_backend")


@pytest.mark.pyg("input_nodes")
@pytest.mark.parametrize(
    ("input_nodes", "message"),
    [
        (None, "must name a node type"),
        ("c", "must name a node type"),
        (("c", [0]), "must name a node type"),
        (torch.arange(3), "must name a node type"),
        (("a", torch.ones(3, dtype=torch.bool)), "needs 40 entries"),
    ],
)
def test_seeds_of_no_known_type_or_range_are_refused(input_nodes, message):
    with pytest.raises(ValueError, match=message):
        NeighborLoader(graph(), [2], input_nodes=input_nodes)


def test_bad_fan_outs():
    data = graph()
    with pytest.raises(ValueError, match="Missing number of neighbors"):
        NeighborLoader(data, {("a", "to", "a"): [2]}, input_nodes="a")
    fanouts = {key: [2] for key in data.edge_types}
    with pytest.raises(ValueError, match=r"not in the graph: \['a__no__b'\]"):
        NeighborLoader(data, {**fanouts, ("a", "no", "b"): [2]}, input_nodes="a")
    fanouts["a", "to", "a"] = [2, 2]
    with pytest.raises(ValueError, match="Number of hops must be the same"):
        NeighborLoader(data, fanouts, input_nodes="a")


def test_bad_edges_are_named():
    data = graph()
    data["a", "to", "a"].edge_index[0, 3] = 40
    with pytest.raises(ValueError, match=r"data\[\('a', 'to', 'a'\)\].edge_index\[0, 3\] is 40"):
        NeighborLoader(data, [2], input_nodes="a")
