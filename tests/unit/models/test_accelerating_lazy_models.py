"""`accelerate` on models whose parameters get their shapes from the first batch."""

import warnings

import pytest
import torch
from batches import arguments, heterogeneous_graph, homogeneous_graph, loader_of, plain
from models import WIDTH
from torch_geometric.nn import HeteroConv, SAGEConv

from pyg_direct import accelerate


class Lazy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = SAGEConv((-1, -1), 16), SAGEConv((-1, -1), 4)
        self.between = torch.nn.LazyLinear(16)

    def forward(self, x, edge_index):
        return self.second(self.between(self.first(x, edge_index)).relu(), edge_index)


class LazyHetero(torch.nn.Module):
    """A convolution for each edge type, and one layer for a type that no batch has."""

    def __init__(self, edge_types):
        super().__init__()
        self.conv = HeteroConv({key: SAGEConv((-1, -1), 8) for key in edge_types}, aggr="sum")
        self.unused = torch.nn.LazyLinear(3)

    def forward(self, x_dict, edge_index_dict):
        return self.conv(x_dict, edge_index_dict)


class LazyStatistics(Lazy):
    """Of the lazy layers, one has buffers and no parameters."""

    def __init__(self):
        super().__init__()
        del self.between
        self.first, self.second = SAGEConv(WIDTH, 16), SAGEConv(16, 4)
        self.norm = torch.nn.LazyBatchNorm1d(affine=False)

    def forward(self, x, edge_index):
        return self.second(self.norm(self.first(x, edge_index)), edge_index)


@pytest.mark.parametrize("kind", [Lazy, LazyStatistics])
def test_a_lazy_model_is_accelerated_from_the_second_batch_on(kind) -> None:
    model, loader = kind().double().eval(), loader_of(homogeneous_graph())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message="Lazy modules are a new feature")
        fast, reasons = accelerate(model, loader), list[str]()
        for batch in loader:
            given, size = arguments(batch), batch.batch_size
            found = fast(**given)[:size]
            assert torch.allclose(found, model(**plain(given))[:size])
            reasons.append(fast.acceleration.reason)
    assert reasons[0] == "it has lazy parameters, which get their shapes from a batch"
    assert reasons[1:] == [""] * (len(loader) - 1)
    assert fast.acceleration.forms()["sums"] == "products"


def test_a_model_with_a_lazy_layer_no_batch_reaches_stays_plain() -> None:
    graph = heterogeneous_graph()
    loader = loader_of(graph, hops=1)
    fast = accelerate(LazyHetero(graph.edge_types).double(), loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _, batch in zip(range(4), loader, strict=False):
            fast(**arguments(batch))
    assert "lazy parameters" in fast.acceleration.reason  # one of them has no shape yet
    assert fast.acceleration.forms() == {"as it is": fast.acceleration.reason}
