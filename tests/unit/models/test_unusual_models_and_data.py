"""Models and data that take another way: what they give, or an error that says what to do."""

import numpy as np
import pytest
import torch
from batches import homogeneous_graph
from between import Net, reference, run
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch_geometric import EdgeIndex
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import GroupAddRev, SAGEConv

from pyg_direct import ClusterData, accelerate, inference
from pyg_direct.models.training.costs import StepCosts

GRAPH = homogeneous_graph(torch.float32)
NODES, WIDTH = GRAPH.x.shape


@pytest.fixture(autouse=True)
def steps_pay(monkeypatch) -> None:
    monkeypatch.setattr(StepCosts, "pay", lambda *args: True)


class Reversible(nn.Module):
    """Frees the memory of its inputs in the forward, and computes them again in the backward."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, 8), nn.Linear(8, 4)
        self.convs = nn.ModuleList([GroupAddRev(SAGEConv(4, 4), num_groups=2) for _ in range(2)])

    def forward(self, x, edge_index):
        h = self.first(x)
        for conv in self.convs:
            h = conv(h, edge_index)
        return self.last(h)


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(WIDTH, 8), SAGEConv(8, 4)
        self.between = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.LayerNorm(8)))

    def forward(self, x, edge_index):
        return self.second(self.between(self.first(x, edge_index)), edge_index)


class Projecting(nn.Module):
    """Multiplies features, which may be sparse, by a matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.conv = nn.Parameter(torch.randn(WIDTH, 8)), SAGEConv(8, 4)

    def forward(self, x, edge_index):
        return self.conv(x @ self.weight, edge_index)


@pytest.mark.parametrize("kind", [Reversible, Scripted])
def test_inference_of_scripted_models_and_those_that_read_memory_is_right(kind) -> None:
    model = kind().eval()
    with torch.no_grad():
        expected = model(GRAPH.x.clone(), GRAPH.edge_index)
    torch.testing.assert_close(inference(model, GRAPH), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("certify", [True, False])
@pytest.mark.parametrize("kind", [Reversible, Scripted])
def test_steps_of_scripted_models_and_those_that_read_memory_are_right(
    kind, certify, loader, batch
) -> None:
    torch.manual_seed(0)
    model = kind()
    fast, found = accelerate(model, loader, certify=certify), []
    for call in (run, run, run, reference):  # scripted code is compiled at the second call
        model.zero_grad()
        out = call(fast if call is run else model, batch)
        out.square().sum().backward()
        found.append([out.detach(), *(p.grad.clone() for p in model.parameters())])
    assert fast.acceleration.reason == ""
    for ours in found[:3]:
        torch.testing.assert_close(ours, found[3], rtol=1e-3, atol=1e-4)


class Squared(nn.Module):
    def forward(self, weight):
        return weight.square()


REGISTERED = {
    "parametrization": lambda m: parametrize.register_parametrization(m, "bias", Squared()),
    "weight norm": lambda m: parametrizations.weight_norm(m, "bias", dim=None),
}


@pytest.mark.parametrize("name", REGISTERED)
def test_parametrizations_are_registered_on_the_plain_model(name, loader, batch) -> None:
    between = lambda net, h: h * net.bias  # noqa: E731
    fast = accelerate(Net(between), loader)
    REGISTERED[name](fast)
    with pytest.raises(RuntimeError, match=r"parametrization of 'bias'.*before accelerate\(\)"):
        run(fast, batch)
    for late in (False, True):
        model = Net(between)
        if late:
            fast = accelerate(model, loader)
        REGISTERED[name](model)
        if not late:
            fast = accelerate(model, loader)
        torch.testing.assert_close(run(fast, batch), reference(model, batch))
        assert fast.acceleration.reason == ""


def test_parametrizations_of_parts(loader, batch) -> None:
    model = Net()
    fast = accelerate(model, loader)
    parametrize.register_parametrization(fast.first.lin_l, "weight", Squared())
    torch.testing.assert_close(run(fast, batch), reference(model, batch))


LAYOUTS = {
    "csr": torch.Tensor.to_sparse_csr,
    "csc": torch.Tensor.to_sparse_csc,
    "coo": torch.Tensor.to_sparse,
}


@pytest.mark.filterwarnings("ignore:Sparse:UserWarning")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_sparse_features_give_the_outputs_of_the_plain_model(layout, loader, batch) -> None:
    torch.manual_seed(0)
    model = Projecting()
    fast = accelerate(model, loader)
    x = LAYOUTS[layout](batch.x.relu())
    out = fast(x, batch.edge_index)[: batch.batch_size]
    torch.testing.assert_close(out, reference_of(model, x, batch))
    assert fast.acceleration.reason == ""
    data = Data(x=LAYOUTS[layout](GRAPH.x.relu()), edge_index=GRAPH.edge_index, num_nodes=NODES)
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
    torch.testing.assert_close(inference(model, data), expected, rtol=1e-4, atol=1e-5)


def reference_of(model, x, batch):
    return model(x, batch.edge_index.as_tensor())[: batch.batch_size]


def test_sparse_outputs_are_returned_as_they_are(loader, batch) -> None:
    class Sparse(Net):
        def forward(self, x, edge_index):
            return super().forward(x, edge_index), torch.eye(3).to_sparse()

    fast = accelerate(Sparse(), loader)
    assert fast(batch.x, batch.edge_index)[1].is_sparse
    assert fast.acceleration.reason == ""


def test_long_errors_are_told_in_a_line(loader, batch) -> None:
    def fails(net, h):
        if type(h) is not torch.Tensor:
            raise NotImplementedError("Could not run it. " * 50 + "\n" + "CPU: registered\n" * 300)
        return h

    fast = accelerate(Net(fails), loader)
    with pytest.warns(UserWarning, match="Could not run it") as said:
        run(fast, batch)
    assert len(fast.acceleration.reason) < 300
    assert len(str(said[0].message)) < 400
    assert "\n" not in fast.acceleration.reason


ARRAYS = {
    "rows": lambda x: x.numpy(),
    "columns first": lambda x: np.asfortranarray(x.numpy()),
    "backwards": lambda x: x.flip(0).numpy()[::-1],
    "read only": lambda x: np.frombuffer(x.numpy().tobytes(), np.float32).reshape(x.shape),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_numpy_features_in_inference(name) -> None:
    model = Net()
    data = Data(x=ARRAYS[name](GRAPH.x), edge_index=GRAPH.edge_index, num_nodes=NODES)
    torch.testing.assert_close(inference(model, data), inference(model, GRAPH))
    given = Data(edge_index=GRAPH.edge_index, num_nodes=NODES)
    found = inference(model, given, {"x": ARRAYS[name](GRAPH.x), "edge_index": "edge_index"})
    torch.testing.assert_close(found, inference(model, GRAPH))


def test_numpy_features_from_files_and_by_type(tmp_path) -> None:
    np.save(tmp_path / "x.npy", GRAPH.x.numpy())
    data = Data(x=np.load(tmp_path / "x.npy", mmap_mode="r"), edge_index=GRAPH.edge_index)
    data.num_nodes = NODES
    model = Net()
    torch.testing.assert_close(inference(model, data), inference(model, GRAPH))
    typed, plain = types_with(GRAPH.x[:9].numpy()), types_with(GRAPH.x[:9])
    layer = OfTypes()
    torch.testing.assert_close(inference(layer, typed), inference(layer, plain))


@pytest.mark.parametrize("array", [np.array([["a"] * WIDTH] * NODES), np.array([[None]] * NODES)])
def test_arrays_without_numbers_are_refused(array) -> None:
    data = Data(x=array, edge_index=GRAPH.edge_index, num_nodes=NODES)
    with pytest.raises(TypeError, match=r"x is a NumPy array of .*astype"):
        inference(Net(), data)


class OfTypes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = SAGEConv((WIDTH, WIDTH), 3)

    def forward(self, x_dict, edge_index_dict):
        return self.conv((x_dict["a"], x_dict["b"]), edge_index_dict["a", "to", "b"])


def types_with(x, edges=((0, 5, 8), (1, 2, 6))) -> HeteroData:
    data = HeteroData()
    data["a"].x, data["b"].x = x, x[:7]
    data["a"].num_nodes, data["b"].num_nodes = 9, 7
    data["a", "to", "b"].edge_index = torch.tensor(edges)
    return data


@pytest.mark.parametrize(("side", "node"), [(0, NODES), (1, NODES + 40), (0, -1), (1, -7)])
def test_edges_out_of_range_are_named(side, node) -> None:
    data = GRAPH.clone()
    data.edge_index[side, 5] = node
    said = rf"edge_index\[{side}, 5\] is {node}, but the ids .* in \[0, {NODES}\)"
    for call in (lambda: inference(Net(), data), lambda: ClusterData(data, 4, log=False)):
        with pytest.raises(ValueError, match=said):
            call()


@pytest.mark.parametrize(("side", "node", "end"), [(0, 9, 9), (1, 7, 7), (1, -1, 7)])
def test_edges_of_types_out_of_range_are_named(side, node, end) -> None:
    data = types_with(GRAPH.x[:9])
    data["a", "to", "b"].edge_index[side, 1] = node
    with pytest.raises(ValueError, match=rf"'b'\)\]\.edge_index\[{side}, 1\] .* in \[0, {end}\)"):
        inference(OfTypes(), data)


def test_edges_that_are_no_ids_are_refused_by_inference() -> None:
    for wrong in (GRAPH.edge_index.float(), GRAPH.edge_index.numpy(), GRAPH.edge_index[0]):
        data = Data(x=GRAPH.x, edge_index=wrong)
        with pytest.raises(ValueError, match=r"data\.edge_index must be"):
            inference(Net(), data)


def test_edges_of_other_classes_are_taken(batch) -> None:
    """Edges that know their hops, and `EdgeIndex`, are checked as plain ones are."""
    model = Net()
    expected = reference(model.eval(), batch)
    for edges in (batch.edge_index, EdgeIndex(batch.edge_index.as_tensor())):
        batch.edge_index = edges
        torch.testing.assert_close(inference(model, batch)[: batch.batch_size], expected)
