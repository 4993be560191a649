"""`inference` is compared with the model itself, on all of a graph or on a part of it."""

import os
import threading
import warnings

import pytest
import torch
from batches import heterogeneous_graph, homogeneous_graph
from between import Net
from models import HETEROGENEOUS, HOMOGENEOUS, LinkPredictor
from torch_geometric.data import Data
from torch_geometric.typing import SparseTensor

import pyg_direct
from pyg_direct import inference
from pyg_direct.models.inference import check
from pyg_direct.models.inference import check as graph_part
from pyg_direct.models.inference.check import neighbourhoods

GRAPH = homogeneous_graph(torch.float32)
INPUTS = ("x", "edge_index")


@pytest.fixture(params=["whole", "part"])
def size(request, monkeypatch) -> str:
    """Let the graph be small enough for the model itself, or not."""
    monkeypatch.setattr(check, "MOST_EDGES", 500 if request.param == "whole" else 100)
    return request.param


@pytest.fixture
def said(monkeypatch) -> list[str]:
    found: list[str] = []

    def warning(text: str, *args: object) -> None:
        if not text.startswith("Compiling CPU kernels"):  # of whichever test needs them first
            found.append(text % args)

    monkeypatch.setattr(check.logger, "warning", warning)
    return found


def by_type(net, h):
    """As code does that asks for the type of a tensor."""
    return h * (2 if type(h) is torch.Tensor else 1)


def by_rows(net, h):
    return torch.where((h > 0) & (type(h) is not torch.Tensor), h * 1.01, h)


@pytest.mark.parametrize("between", [by_type, by_rows])
def test_other_numbers_than_those_of_the_model_are_an_error(between, size, said) -> None:
    net = Net(between).eval()
    which = "outputs: its" if size == "whole" else "outputs on the subgraph around some nodes"
    with pytest.raises(RuntimeError, match=f"{which}.*outputs differ by .*certify=False"):
        inference(net, GRAPH)
    found = inference(net, GRAPH, certify=False)
    with torch.no_grad():
        assert not torch.allclose(found, net(GRAPH.x, GRAPH.edge_index))
    assert said == []


def test_no_file_is_left_by_what_differs(size, tmp_path) -> None:
    with pytest.raises(RuntimeError, match="certify=False"):
        inference(Net(by_type), GRAPH, out=tmp_path / "out.npy")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["sage-mean", "gat-attr", "gcn-weight", "relations", "pna"])
def test_homogeneous_models_pass(name, size, said) -> None:
    make, more = HOMOGENEOUS[name]
    model = make().eval()
    with torch.no_grad():
        expected = model(*(GRAPH[n] for n in INPUTS), **{n: GRAPH[n] for n in more})
    found = inference(model, GRAPH, (*INPUTS, *more))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert said == []


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_models_of_types(name, size, said) -> None:
    graph, model = heterogeneous_graph(torch.float32), HETEROGENEOUS[name]().eval()
    inference(model, graph)
    assert said == []
    forward = model.forward

    def otherwise(x_dict, edge_index_dict):
        plain = type(x_dict["paper"]) is torch.Tensor
        return {k: v * (1 + plain) for k, v in forward(x_dict, edge_index_dict).items()}

    model.forward = otherwise
    with pytest.raises(RuntimeError, match="outputs differ by"):
        inference(model, graph)


def test_the_model_runs_once(size) -> None:
    def counted(net, h):
        net.losses.append(1)
        net.mean.add_(1)
        return h * len(net.losses)

    net = Net(counted)
    before = torch.get_rng_state()
    inference(net, GRAPH)
    assert net.losses == [1]
    assert net.mean.tolist() == [1.0] * 8
    assert torch.equal(torch.get_rng_state(), before)


def locked(net):
    net.lock = threading.Lock()
    return lambda net, h: h


LEFT_OUT = {
    "no copy": (locked, "it cannot be copied (TypeError: cannot pickle"),
    "draws": (lambda net: lambda net, h: h + torch.rand(()), "it draws random numbers"),
    "other numbers each time": (
        lambda net: lambda net, h: h * (1 + int.from_bytes(os.urandom(4), "big")),
        "run twice, its outputs differ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_model_not_compared_is_reported_with_the_reason(name, size, said) -> None:
    net, (make, why) = Net(), LEFT_OUT[name]
    net.between = make(net)
    assert inference(net, GRAPH).shape == (60, 4)
    assert len(said) == 1
    assert why in said[0]


def test_sparse_matrices_are_compared_in_small_graphs(size, said) -> None:
    pytest.importorskip("torch_sparse")
    matrix = SparseTensor.from_edge_index(GRAPH.edge_index, sparse_sizes=(60, 60))
    graph = Data(x=GRAPH.x, adj_t=matrix.t())
    model = HOMOGENEOUS["sage-mean"][0]().eval()
    inference(model, graph)
    assert len(said) == (size == "part")


def test_rows_of_neither_nodes_nor_edges_leave_a_part_out(size, said) -> None:
    labels = {"edge_label_index": torch.tensor([[1, 59], [3, 4]])}
    inference(LinkPredictor(), GRAPH, {**{n: n for n in INPUTS}, **labels})
    assert len(said) == (size == "part")


def test_a_model_that_fails_on_a_part_is_not_compared(said, monkeypatch) -> None:
    def whole_only(net, h):
        assert h.size(0) == 60
        return h

    def whole_only_on_tables(net, h):
        assert h.size(0) == 60 or type(h) is torch.Tensor
        return h

    monkeypatch.setattr(check, "MOST_EDGES", 30)
    for between in (whole_only, whole_only_on_tables):
        assert inference(Net(between), GRAPH).shape == (60, 4)
    assert said == []


def test_inference_of_a_graph_without_node_attributes_warns_of_nothing(size, said) -> None:
    class Embedding(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.emb, self.net = torch.nn.Embedding(60, 12), Net()

        def forward(self, edge_index):
            return self.net(self.emb.weight, edge_index)

    model = Embedding().eval()
    with torch.no_grad():
        expected = model(GRAPH.edge_index)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = inference(model, Data(edge_index=GRAPH.edge_index))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert said == []


def test_the_self_check_of_inference_runs_on_saved_graphs(size, said, tmp_path) -> None:
    pyg_direct.save(GRAPH, tmp_path / "graph")
    saved = pyg_direct.open(tmp_path / "graph")
    net = Net().eval()
    with torch.no_grad():
        expected = net(GRAPH.x, GRAPH.edge_index)
    torch.testing.assert_close(inference(net, saved), expected, rtol=1e-4, atol=1e-4)
    assert said == []
    with pytest.raises(RuntimeError, match="outputs differ by"):
        inference(Net(by_type), saved)


def test_less_memory_takes_a_smaller_part(monkeypatch, said) -> None:
    taken = []
    part_of = graph_part.part_of
    monkeypatch.setattr(check, "part_of", lambda *args: taken.append(part_of(*args)) or taken[-1])
    monkeypatch.setattr(check, "BYTES_OF_EDGE", 1 << 21)
    inference(Net(), GRAPH, memory_bytes=60 << 20)
    assert taken[0]["edge_index"].size(1) == 30
    assert len(taken[0]["x"]) < 60
    assert said == []


def test_narrow_layers_may_differ_as_they_round(size) -> None:
    net = Net(lambda net, h: (h * 1000).cos())
    inference(net, GRAPH, dtype=torch.bfloat16, certify=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inference(Net(), GRAPH, dtype=torch.bfloat16)


def test_a_part_is_of_nodes_and_those_that_they_get_messages_from(monkeypatch) -> None:
    monkeypatch.setattr(graph_part, "SEEDS", 1)
    edges = torch.tensor([[3, 2, 0, 1, 4, 5], [1, 0, 1, 0, 5, 4]])
    nodes, ids = neighbourhoods({None: edges}, {None: 6}, 10)
    assert nodes[None].tolist() == [0, 1, 2, 3]
    assert ids[None].tolist() == [0, 1, 2, 3]
    nodes, ids = neighbourhoods({None: edges}, {None: 6}, 2)
    assert nodes[None].tolist() == [0, 1, 2]
    assert ids[None].tolist() == [1, 3]


def test_a_part_has_the_edges_of_all_chunks(monkeypatch) -> None:
    monkeypatch.setattr(graph_part, "CHUNK", 7)
    given = {"x": GRAPH.x, "edge_index": GRAPH.edge_index, "edge_attr": GRAPH.edge_attr}
    found = graph_part.part_of(GRAPH, given, 10_000)
    pairs = GRAPH.x[GRAPH.edge_index[0]], GRAPH.x[GRAPH.edge_index[1]], GRAPH.edge_attr
    known = {tuple(row) for row in torch.cat(pairs, 1).tolist()}
    ends = (found["x"][i] for i in found["edge_index"])
    rows = torch.cat([*ends, found["edge_attr"]], 1).tolist()
    assert len(rows) > 300
    assert {tuple(row) for row in rows} <= known


def test_certify_is_a_flag() -> None:
    with pytest.raises((TypeError, ValueError), match="certify"):
        inference(Net(), GRAPH, certify="always")
