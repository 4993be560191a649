"""`inference` of what `accelerate` returned: that of the model itself."""

import copy

import pytest
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE

from pyg_direct import NeighborLoader, accelerate, inference

GRAPH = Data(x=torch.randn(80, 6), edge_index=torch.randint(80, (2, 400)))


class Within(torch.nn.Module):
    """A model with an accelerated one inside."""

    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, torch.nn.Linear(4, 2)

    def forward(self, x, edge_index):
        return self.head(self.inner(x, edge_index)).relu()


def fast_model():
    model = GraphSAGE(6, 8, 2, 4, dropout=0.5)
    return accelerate(model, NeighborLoader(GRAPH, [3, 3], batch_size=10)), model


@pytest.mark.parametrize("change", [lambda m: m, copy.deepcopy, copy.copy])
def test_an_accelerated_model(change) -> None:
    fast, model = fast_model()
    assert torch.equal(inference(change(fast), GRAPH), inference(model, GRAPH))
    assert model.training
    assert fast.training


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")  # the loader is another one
def test_inference_after_accelerated_training_uses_the_trained_parameters() -> None:
    model, loader = fast_model()[1], NeighborLoader(GRAPH, [3, 3], batch_size=10)
    fast = accelerate(model, loader)
    for batch in loader:
        fast(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
        with torch.no_grad():
            for parameter in fast.parameters():
                parameter -= 0.01 * parameter.grad
    found = inference(fast.eval(), GRAPH)
    with torch.no_grad():
        assert torch.allclose(found, model(GRAPH.x, GRAPH.edge_index), atol=1e-5)


def test_one_inside_of_another_model() -> None:
    model = Within(fast_model()[0]).eval()
    with torch.no_grad():
        expected = model(GRAPH.x, GRAPH.edge_index)
    assert torch.allclose(inference(model, GRAPH), expected, atol=1e-5)


def test_with_files_and_by_nodes(tmp_path) -> None:
    fast, model = fast_model()
    expected = inference(model, GRAPH)
    found = inference(fast, GRAPH, out=tmp_path / "out.npy", resume=True)
    assert torch.equal(found, expected)
    by_nodes = inference(fast, GRAPH, fallback="nodes")
    assert torch.allclose(by_nodes, expected, atol=1e-5)
