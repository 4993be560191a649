"""Why the last call of an accelerated model ran the plain one: `acceleration.reason`."""

import copy
import pickle
import warnings

import pytest
import torch
from batches import arguments, heterogeneous_graph, homogeneous_graph, loader_of
from between import Net, reference, run
from torch import nn
from torch_geometric import transforms, utils
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader as PyGLoader
from torch_geometric.nn import GraphSAGE, SAGEConv, to_hetero

from pyg_direct import NeighborLoader, ShaDowKHopSampler, accelerate
from pyg_direct.models.training.costs import StepCosts

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
    of_other_loader: "not from a loader that was passed",
    of_pyg: "not from a loader that was passed",
    whole_graph: "not from a loader that was passed",
    with_other_edges: "not from a loader that was passed",
    with_written_edges: "the edges were written to",
    without_edges: "not from a loader that was passed",
}


@pytest.mark.parametrize("given", OTHERS)
def test_the_reason_for_a_plain_run_stays_until_a_batch_is_accelerated(
    given, loader, batch
) -> None:
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
        f"a batch of {batch.num_edges} edges is expected to run faster on all rows"
    )


def test_a_heterogeneous_model_names_the_loader_of_a_foreign_batch() -> None:
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
    fast.eval()(**arguments(next(iter(other))))
    assert "not from a loader" in fast.acceleration.reason


def test_a_refuted_acceleration_stays_plain(loader, batch) -> None:
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


def add_loops(batch):
    return transforms.AddSelfLoops()(batch)


def drop_edges(batch):
    batch.edge_index, _ = utils.dropout_edge(batch.edge_index, 0.2)
    return batch


CHANGES = {
    "undirected": transforms.ToUndirected(),
    "loops": add_loops,
    "dropped": drop_edges,
    "mask": lambda b: b.update({"edge_index": b.edge_index[:, b.edge_index[0] > 3]}),
    "written": lambda b: (b.edge_index.add_(0), b)[1],
    "one more node": transforms.VirtualNode(),
}


def changing(change, within, width=12):
    """Return a model, a loader, and a change in the loop: it is made there or in the loader."""
    options = {"transform": change} if within == "loader" else {}
    loader = NeighborLoader(GRAPH, [3, 2], batch_size=10, seed=0, **options)
    fast = accelerate(GraphSAGE(width, 8, 2, 4), loader)
    return fast, loader, change if within == "loop" else lambda b: b


def trained(fast, loader, change):
    """Train for an epoch; return what was warned of."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for batch in loader:
            batch = change(batch)
            fast(batch.x, batch.edge_index)[: batch.batch_size].sum().backward()
    return [str(w.message) for w in found if "as it is" in str(w.message)]


@pytest.mark.parametrize("within", ["loader", "loop"])
@pytest.mark.parametrize("name", CHANGES)
def test_changed_edges_are_said_after_the_first_batches(name, within, monkeypatch) -> None:
    monkeypatch.setattr(StepCosts, "pay", lambda *args: True)
    fast, loader, change = changing(CHANGES[name], within)
    (said,) = trained(fast, loader, change)
    assert "edges" in said
    assert fast.acceleration.reason in said
    assert trained(fast, loader, change) == []


def halved(batch):
    batch.x = batch.x / 2
    return batch


KEPT = {
    "features": transforms.NormalizeFeatures(), "constant": transforms.Constant(), "values": halved,
    "device": transforms.ToDevice("cpu"), "clone": lambda b: b.clone(), "copy": copy.copy,
    "several": transforms.Compose([transforms.NormalizeFeatures(), lambda b: b.clone()]),
    "contiguous": lambda b: b.contiguous(), "moved": lambda b: b.to("cpu"), "deep": copy.deepcopy,
    "pickled": lambda b: pickle.loads(pickle.dumps(b)),
}  # fmt: skip


@pytest.mark.parametrize("within", ["loader", "loop"])
@pytest.mark.parametrize("name", KEPT)
def test_batches_whose_edges_stay_are_accelerated(name, within, monkeypatch) -> None:
    monkeypatch.setattr(StepCosts, "pay", lambda *args: True)
    fast, loader, change = changing(KEPT[name], within, 13 if name == "constant" else 12)
    assert trained(fast, loader, change) == []
    assert fast.acceleration.reason == ""


def test_evaluation_on_other_graphs_is_not_warned_of(loader) -> None:
    fast = accelerate(Net(), loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(5):
            fast.eval()(GRAPH.x, GRAPH.edge_index)
            with torch.no_grad():
                fast.train()(GRAPH.x, GRAPH.edge_index)
    assert "not from a loader" in fast.acceleration.reason


class Exponential(torch.autograd.Function):
    """Has a backward that is not zero for a gradient of zero."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.exp() - 1


ON_ALL_ROWS = {
    "unknown": (lambda net, h: Exponential.apply(h), "aten.exp.default"),
    "mixing": (lambda net, h: h.cumsum(0), "aten.cumsum.default"),
    "none": (lambda net, h: h.log_softmax(1), ""),
}


@pytest.mark.parametrize("name", ON_ALL_ROWS)
def test_operations_of_a_backward_on_all_rows_are_named(name, loader, batch) -> None:
    between, expected = ON_ALL_ROWS[name]
    fast = accelerate(Net(between), loader)
    out = run(fast, batch)
    assert "all rows of gradients" not in fast.acceleration.forms()
    out.sum().backward()
    assert expected in fast.acceleration.forms().get("all rows of gradients", "")
    assert bool(expected) == ("all rows of gradients" in fast.acceleration.forms())
