"""Why the last call of an accelerated model ran the plain one: `acceleration.reason`."""

import warnings

import pytest
import torch
from batches import arguments, heterogeneous_graph, homogeneous_graph, loader_of
from between import Net, reference, run
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGLoader
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero

from pyg_direct import NeighborLoader, ShaDowKHopSampler, accelerate
from pyg_direct.models.costs import StepCosts

GRAPH = homogeneous_graph(torch.float32)


def of_other_loader(net, batch):
    return next(iter(loader_of(GRAPH)))


def of_pyg(net, batch):
    pytest.importorskip("torch_sparse")
    return next(iter(PyGLoader(GRAPH, [3, 2], batch_size=7)))


def whole_graph(net, batch):
    return GRAPH


def with_other_edges(net, batch):
    batch.edge_index = batch.edge_index.flip(0)
    return batch


def with_written_edges(net, batch):
    batch.edge_index.add_(0)
    return batch


def without_edges(net, batch):
    net.forward = lambda x, edge_index=None: net.first.lin_r(x)
    return Data(x=batch.x, edge_index=None)


OTHERS = {
    of_other_loader: "not those of a loader that was given",
    of_pyg: "not those of a loader that was given",
    whole_graph: "not those of a loader that was given",
    with_other_edges: "not those of a loader that was given",
    with_written_edges: "the edges were written to",
    without_edges: "not those of a loader that was given",
}


@pytest.mark.parametrize("given", OTHERS)
def test_what_runs_plain_is_named_until_a_batch_is_accelerated(given, loader, batch) -> None:
    net = Net()
    fast = accelerate(net, loader)
    assert fast.acceleration.reason == ""
    run(fast, batch)
    assert fast.acceleration.reason == ""
    other, forward = given(net, next(iter(loader))), net.forward
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is no fault
        out = fast(other.x, other.edge_index)
    assert OTHERS[given] in fast.acceleration.reason
    assert fast.acceleration.forms()["as it is"] == fast.acceleration.reason
    edges = getattr(other.edge_index, "as_tensor", lambda: other.edge_index)()
    assert torch.equal(out, forward(other.x, edges))


def test_small_batches_are_named(loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(StepCosts, "pay", lambda self, num_edges: self._columns is None)
    fast = accelerate(Net(), loader)
    for _ in range(2):
        run(fast, batch)
    assert fast.acceleration.reason == (
        f"a batch of {batch.num_edges} edges is expected to be faster so"
    )


def test_of_types() -> None:
    graph = heterogeneous_graph(torch.float32)

    class Sage(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = SAGEConv((-1, -1), 4)

        def forward(self, x_dict, edge_index_dict):
            return self.conv(x_dict, edge_index_dict)

    loader, other = loader_of(graph, hops=1), loader_of(graph, hops=1)
    fast = accelerate(to_hetero(Sage(), graph.metadata()), loader)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fast(graph.x_dict, graph.edge_index_dict)  # shapes of lazy parameters
    batch = next(iter(loader))
    fast(**arguments(batch))
    assert fast.acceleration.reason == ""
    key = next(iter(batch.edge_types))
    batch[key].edge_index.add_(0)
    fast(**arguments(batch))
    assert fast.acceleration.reason == "the edges were written to"
    fast(**arguments(next(iter(other))))
    assert "not those of a loader" in fast.acceleration.reason


def test_what_is_refuted_stays_so(loader, batch) -> None:
    def fails(net, h):
        if type(h) is not torch.Tensor:
            raise KeyError("planted")
        return h

    net = Net(fails)
    fast = accelerate(net, loader)
    with pytest.warns(UserWarning, match="planted"):
        run(fast, batch)
    fast(GRAPH.x, GRAPH.edge_index)
    assert "planted" not in fast.acceleration.reason
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        torch.testing.assert_close(run(fast, batch), reference(net, batch))
    assert "planted" in fast.acceleration.reason


def test_a_whole_data_is_warned_of_once_and_named(loader, batch) -> None:
    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.sage = GraphSAGE(12, 8, 2, 4)

        def forward(self, data):
            return self.sage(data.x, data.edge_index)

    fast = accelerate(Whole(), loader)
    with pytest.warns(UserWarning, match="takes a whole Data"):
        fast(batch)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fast(batch)
    assert "takes a whole Data" in fast.acceleration.reason


def test_several_refused_loaders_are_all_named() -> None:
    loaders = [
        ShaDowKHopSampler(GRAPH, 2, 4, batch_size=10),
        NeighborLoader(GRAPH, [3, 3], batch_size=10, subgraph_type="induced"),
        loader_of(GRAPH),
    ]
    with pytest.warns(UserWarning, match="run through the model as it is"):
        fast = accelerate(GraphSAGE(12, 8, 2, 4), *loaders)
    for loader in loaders[:2]:
        given = next(iter(loader))
        fast(given.x, given.edge_index)
        assert "whole subgraphs" in fast.acceleration.reason
        assert "'induced'" in fast.acceleration.reason
