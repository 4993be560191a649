"""`accelerate` with loaders of whole subgraphs: it says so, and nothing changes."""

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct import accelerate

GRAPH = Data(x=torch.randn(80, 6), edge_index=torch.randint(80, (2, 400)))

LOADERS = {
    "ShaDowKHopSampler": lambda: pyg_direct.ShaDowKHopSampler(GRAPH, 2, 4, batch_size=10),
    "GraphSAINTNodeSampler": lambda: pyg_direct.GraphSAINTNodeSampler(GRAPH, batch_size=20),
    "ClusterLoader": lambda: pyg_direct.ClusterLoader(
        pyg_direct.ClusterData(GRAPH, 4, log=False), batch_size=2
    ),
}


@pytest.mark.parametrize("name", LOADERS)
def test_models_on_whole_subgraphs_run_as_they_are_with_a_warning(name) -> None:
    model, loader = GraphSAGE(6, 8, 2, 4).eval(), LOADERS[name]()
    with pytest.warns(UserWarning, match=f"{name} are whole subgraphs"):
        fast = accelerate(model, loader)
    assert "whole subgraphs" in fast.acceleration.reason
    for batch in loader:
        found = fast(batch.x, batch.edge_index)
        assert torch.equal(found, model(batch.x, batch.edge_index))
    assert "whole subgraphs" in fast.acceleration.forms()["as it is"]


def test_beside_a_loader_of_neighbourhoods() -> None:
    model, near = GraphSAGE(6, 8, 2, 4), pyg_direct.NeighborLoader(GRAPH, [3, 3], batch_size=10)
    with pytest.warns(UserWarning, match="ShaDowKHopSampler are whole subgraphs"):
        fast = accelerate(model, LOADERS["ShaDowKHopSampler"](), near)
    assert "whole subgraphs" in fast.acceleration.reason
    batch = next(iter(near))
    fast(batch.x, batch.edge_index)
    assert fast.acceleration.reason == ""
    assert fast.acceleration.forms() == {"sums": "products"}
