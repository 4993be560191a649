"""Layer-wise inference: the numbers of the whole-graph forward, whatever the blocks."""

import copy
import unittest

import numpy as np
import pytest
import torch
import torch_geometric.nn
from models import (
    HETEROGENEOUS,
    HOMOGENEOUS,
    OUT,
    WIDTH,
    Residual,
    assert_close,
    basic,
    forward,
    graph_inputs,
    hetero_data,
    hetero_inputs,
    to_hetero_sage,
)
from torch import nn
from torch_geometric.data import Data, HeteroData
from torch_geometric.nn import (
    APPNP,
    GCN,
    GatedGraphConv,
    GCNConv,
    GraphSAGE,
    HeteroConv,
    LGConv,
    MixHopConv,
    SAGEConv,
    SGConv,
    SSGConv,
    TAGConv,
)
from torch_geometric.typing import SparseTensor

from pyg_direct import inference
from pyg_direct.models.inference import blocks, executor
from pyg_direct.models.lazy import lists, row_rules


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few nodes, and the number of threads."""
    monkeypatch.setattr(executor, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(blocks, "HUB_BYTES", 4096)
    return 3


class Powers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(WIDTH, 8), SAGEConv(8, OUT)

    def forward(self, x, edge_index):
        h = self.first(x, edge_index).abs().add(1).pow_(-0.5)
        h **= 2
        return self.second(h.pow_(h), edge_index)


class Diffused(nn.Module):
    """Several hops inside of a model."""

    def __init__(self):
        super().__init__()
        self.first, self.lin, self.hops = SAGEConv(WIDTH, 16), nn.Linear(16, OUT), APPNP(3, 0.2)

    def forward(self, x, edge_index):
        return self.hops(self.lin(self.first(x, edge_index).relu()), edge_index)


class OwnNorm(GCNConv):
    def forward(self, x, edge_index):
        degree = torch.bincount(edge_index[0], minlength=len(x)).view(-1, 1)
        return super().forward(x / (1 + degree), edge_index)


# Of the options of BasicGNN a few combinations; `test_inference_real` has the others.
MODELS = {
    **HOMOGENEOUS,
    "powers": (Powers, ()),
    "jk-cat": (basic(GraphSAGE, jk="cat", norm="batch_norm", act_first=True, dropout=0.3), ()),
    "jk-max": (basic(GraphSAGE, jk="max", norm="layer_norm", norm_kwargs={"mode": "node"}), ()),
    "jk-lstm": (basic(GraphSAGE, jk="lstm", norm="batch_norm", dropout=0.3), ()),
    "sg": (lambda: SGConv(WIDTH, OUT, K=3), ("edge_weight",)),
    "sg-plain": (lambda: SGConv(WIDTH, OUT, K=1, add_self_loops=False), ("edge_weight",)),
    "appnp": (lambda: APPNP(4, 0.1), ("edge_weight",)),
    "tag": (lambda: TAGConv(WIDTH, OUT, K=3), ("edge_weight",)),
    "ssg": (lambda: SSGConv(WIDTH, OUT, 0.2, K=3), ("edge_weight",)),
    "mix-hop": (lambda: MixHopConv(WIDTH, OUT, powers=[0, 1, 3]), ("edge_weight",)),
    "gated": (lambda: GatedGraphConv(WIDTH, 3), ()),
    "lg": (LGConv, ()),
    "diffused": (Diffused, ()),
    "own-norm": (lambda: OwnNorm(WIDTH, OUT), ()),
    **{
        f"gcn-{name}{'-weight' * weighted}": (
            basic(GCN, 3, **options), ("edge_weight",) if weighted else (),
        )
        for name, options in (("improved", {"improved": True}), ("bare", {"add_self_loops": False}))
        for weighted in (False, True)
    },
}  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
def test_inference_of_homogeneous_models_equals_the_forward(name, small_blocks):
    make, extra = MODELS[name]
    model, inputs = make(), graph_inputs(*extra)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs["edge_index"][:, ::9] = inputs["edge_index"][1, ::9]  # self-loops, some twice
    found = inference(model, Data(**inputs), tuple(inputs), num_workers=small_blocks)
    assert_close(found, forward(model, inputs))
    assert not found.requires_grad


@pytest.mark.parametrize("name", ["sage-mean", "gcn", "gat-attr", "gin"])
def test_in_inference_mode(name, small_blocks):
    make, extra = HOMOGENEOUS[name]
    model, inputs = make(), graph_inputs(*extra)
    with unittest.TestCase().assertLogs("pyg_direct", "INFO") as logs:
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                found = inference(model, Data(**inputs), tuple(inputs), num_workers=small_blocks)
            assert_close(found, forward(model, inputs))
    whole = [text for text in logs.output if "Operations on whole tables" in text]
    assert len(whole) == 2
    assert whole[0] == whole[1]


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_inference_of_heterogeneous_models_equals_the_forward(name, small_blocks):
    model = HETEROGENEOUS[name]()
    found = inference(model, hetero_data(), num_workers=small_blocks)
    assert_close(found, forward(model, hetero_inputs()))


def test_inference_of_a_model_of_to_hetero_equals_the_forward(small_blocks):
    model, inputs = to_hetero_sage(), hetero_inputs()
    found = inference(model, hetero_data(), num_workers=small_blocks)
    expected = forward(model, {"x": inputs["x_dict"], "edge_index": inputs["edge_index_dict"]})
    assert_close(found, expected)


def test_means_over_more_rows_than_half_precision_counts():
    class Centred(nn.Module):
        def forward(self, x):
            return (x * 1).mean(0)

    found = inference(Centred(), Data(x=torch.full((70_000, 1), 3.0, dtype=torch.float16)), ["x"])
    assert found.tolist() == [3.0]


class TestDegrees:
    def test_of_one_edge_type_among_several(self, small_blocks):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = HeteroConv({
                    ("paper", "cites", "paper"): GCNConv(12, OUT),
                    ("author", "writes", "paper"): SAGEConv((8, 12), OUT),
                    ("paper", "rev_writes", "author"): SAGEConv((12, 8), OUT),
                })  # fmt: skip

            def forward(self, x_dict, edge_index_dict):
                return self.conv(x_dict, edge_index_dict)

        model = Net()
        found = inference(model, hetero_data(), num_workers=small_blocks)
        assert_close(found, forward(model, hetero_inputs()))

    def test_cached_layers_stay_as_they_are(self):
        model, inputs = basic(GCN, cached=True)(), graph_inputs()
        inference(model, Data(**inputs))
        assert all(conv._cached_edge_index is None for conv in model.convs)
        assert all(conv.cached for conv in model.convs)


class TestFaultsAreCaught:
    """The comparison of these tests fails where the engine is made to err."""

    def run(self, model, inputs):
        expected = forward(model, inputs)
        with pytest.raises((AssertionError, RuntimeError)):
            assert_close(inference(model, Data(**inputs), tuple(inputs)), expected)

    def test_a_skipped_block_is_caught(self, monkeypatch, small_blocks):
        blocks = executor.Executor._blocks
        monkeypatch.setattr(executor.Executor, "_blocks", lambda *a: list(blocks(*a))[:-1])
        self.run(basic(GraphSAGE)(), graph_inputs())

    def test_lost_order_of_messages(self, monkeypatch):
        made = lists.MessageOrder.__init__

        def in_order(self, *arguments):
            made(self, *arguments)
            self.position = self.position.sort().values

        monkeypatch.setattr(lists.MessageOrder, "__init__", in_order)
        self.run(Residual(), graph_inputs("edge_attr"))

    def test_a_rule_too_wide(self, monkeypatch, small_blocks):
        monkeypatch.setattr(executor, "BLOCK_BYTES", 1000)
        wide = lambda call: row_rules.RowwiseRule(call.only()[1])  # noqa: E731
        monkeypatch.setitem(row_rules.RULES, "_softmax", wide)

        class Net(nn.Module):
            def forward(self, x, edge_index):
                return x.softmax(dim=0)

        self.run(Net(), graph_inputs())

    def test_messages_sent_to_other_rows_are_caught(self, monkeypatch, small_blocks):
        monkeypatch.setattr(blocks, "HUB_BYTES", 1)
        inputs = graph_inputs("edge_attr")
        inputs["edge_index"][1, :300] = 5
        targets = lists.MessageOrder.targets
        monkeypatch.setattr(
            lists.MessageOrder, "targets", lambda self, f, x, a, b: targets(self, f, x, a, b) * 0
        )
        self.run(Residual(), inputs)


class TestRefusals:
    def test_options_must_be_decided(self):
        data = Data(**graph_inputs("edge_weight"))
        with pytest.raises(ValueError, match=r"inputs=\('x', 'edge_index', 'edge_weight'\)"):
            inference(basic(GCN)(), data)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"inputs": ("x", "edge_index", "weights")}, "not a parameter"),
            ({"inputs": ("x", "edge_index", "edge_weight")}, "does not have"),
            ({"inputs": {"x": torch.zeros(3, WIDTH), "edge_index": "edge_index"}}, "3 rows"),
            ({"out": "emb.txt"}, r"\.npy"),
            ({"out": "/nowhere/emb.npy"}, "does not exist"),
            ({"resume": True}, "needs out="),
            ({"memory_bytes": 44 << 20}, "too small for the blocks of the threads"),
            ({"memory_bytes": -1}, "memory_bytes"),
            ({"dtype": torch.int64}, "a floating-point dtype"),
            ({"num_workers": 0}, "num_workers"),
            ({"fallback": "edges"}, "fallback"),
        ],
    )
    def test_inference_refuses_wrong_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            inference(basic(GraphSAGE)(), Data(**graph_inputs()), **arguments)

    def test_inference_refuses_data_of_no_graph(self):
        with pytest.raises(TypeError, match="HeteroData"):
            inference(basic(GraphSAGE)(), graph_inputs())

    def test_inference_refuses_a_class_for_a_model(self):
        with pytest.raises(TypeError, match="got the class GraphSAGE; call it"):
            inference(GraphSAGE, Data(**graph_inputs()))


class TestData:
    @pytest.mark.filterwarnings("ignore:Sparse")
    def test_inference_takes_a_sparse_adj_t(self):
        pytest.importorskip("torch_sparse")
        inputs, model = graph_inputs(), basic(GraphSAGE)()
        row, col = inputs["edge_index"]
        adj_t = SparseTensor(row=col, col=row, sparse_sizes=(60, 60))
        found = inference(model, Data(x=inputs["x"], adj_t=adj_t))
        assert_close(found, forward(model, inputs))

    def test_inputs_may_be_attributes_of_other_names(self):
        make, _ = HOMOGENEOUS["gat-attr"]
        inputs, model = graph_inputs("edge_attr"), make()
        data = Data(edge_index=inputs["edge_index"], num_nodes=60, features=inputs["x"])
        given = {**inputs, "x": "features", "edge_index": "edge_index"}
        assert_close(inference(model, data, given), forward(model, inputs))

    @pytest.mark.parametrize("name", ["sage-mean", "gat"])
    def test_strided_features_give_the_output_of_the_forward(self, name):
        inputs, model = graph_inputs(), HOMOGENEOUS[name][0]()
        inputs["x"] = torch.cat([inputs["x"], inputs["x"]], dim=1)[:, ::2]
        assert_close(inference(model, Data(**inputs)), forward(model, inputs))

    def test_inference_of_a_graph_without_edges_equals_the_forward(self):
        inputs, model = graph_inputs(), basic(GraphSAGE)()
        inputs["edge_index"] = inputs["edge_index"][:, :0]
        assert_close(inference(model, Data(**inputs)), forward(model, inputs))

    def test_the_model_is_not_changed(self):
        model = basic(GraphSAGE, norm="batch_norm", dropout=0.5)()
        state, draws = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        threads = torch.get_num_threads()
        inference(model, Data(**graph_inputs()))
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
        assert all(m.training for m in model.modules())
        assert torch.equal(torch.get_rng_state(), draws)
        assert torch.get_num_threads() == threads

    def test_narrow_layers_give_float32_outputs_close_to_the_forward(self):
        for name in ("sage-sum", "gat-attr", "gcn", "residual"):
            make, extra = HOMOGENEOUS[name]
            model, inputs = make(), graph_inputs(*extra)
            expected = forward(model, inputs)
            found = inference(model, Data(**inputs), tuple(inputs), dtype=torch.bfloat16)
            assert found.dtype == torch.float32
            assert_close(found, expected, rtol=3e-2)
            assert not torch.equal(found, expected)


def test_a_model_for_a_data_without_types_says_so_of_a_heterodata() -> None:
    typed = HeteroData()
    typed["a"].x = torch.randn(10, 4)
    typed["a", "to", "a"].edge_index = torch.randint(10, (2, 30))
    model = torch_geometric.nn.GraphSAGE(4, 8, num_layers=2, out_channels=3)
    with pytest.raises(ValueError, match=r"GraphSAGE failed on a HeteroData.*to_hetero\(model"):
        inference(model, typed)
    plain = Data(x=typed["a"].x, edge_index=typed["a", "to", "a"].edge_index)
    for_types = torch_geometric.nn.to_hetero(model, typed.metadata())
    with pytest.raises(ValueError, match=r"failed on a Data.*Pass a HeteroData"):
        inference(for_types, plain)
    assert torch.equal(inference(for_types, typed)["a"], inference(model, plain))


class Passing(torch.nn.Module):
    """Return the rows as they came."""

    def forward(self, x, edge_index):
        return x


def test_a_result_that_is_an_input_is_written_to_its_file(tmp_path):
    data = Data(**graph_inputs())
    found = inference(Passing(), data, out=tmp_path / "out.npy")
    assert torch.equal(found, data.x)
    assert np.array_equal(np.load(tmp_path / "out.npy"), data.x.numpy())
