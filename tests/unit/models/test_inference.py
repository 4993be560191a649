"""Layer-wise inference: the numbers of the whole-graph forward, whatever the blocks."""

import copy
from dataclasses import replace

import pytest
import torch
from models import (
    EDGE_WIDTH,
    HETEROGENEOUS,
    HOMOGENEOUS,
    OUT,
    WIDTH,
    Residual,
    basic,
    graph_inputs,
    hetero_data,
    hetero_inputs,
    to_hetero_sage,
)
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GCN, GIN, GCNConv, GraphSAGE, SAGEConv, SGConv
from torch_geometric.typing import SparseTensor

from pyg_direct import inference
from pyg_direct.models import inference as module
from pyg_direct.models import layers, schedule
from pyg_direct.models.cutter import CutError

# Blocks are made so small here that single nodes exceed them.
pytestmark = pytest.mark.filterwarnings("ignore:.*in-edges at once")


@pytest.fixture(params=[1, 3], ids=["one-thread", "three-threads"])
def small_blocks(monkeypatch, request):
    """Blocks of a few nodes, and the number of threads."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 2048)
    monkeypatch.setattr(schedule, "MIN_ROWS", 7)
    monkeypatch.setattr(schedule, "REDUCED_EDGES", 29)
    return request.param


def assert_close(found, expected, rtol=1e-5):
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for key in expected:
            assert_close(found[key], expected[key], rtol)
    else:
        atol = rtol * float(expected.abs().max())
        torch.testing.assert_close(found, expected, rtol=rtol, atol=atol)


def forward(model, inputs):
    model = copy.deepcopy(model).eval()
    with torch.no_grad():
        return model(**copy.deepcopy(inputs))


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_homogeneous_models(name, small_blocks):
    make, extra = HOMOGENEOUS[name]
    model, inputs = make(), graph_inputs(*extra)
    found = inference(model, Data(**inputs), tuple(inputs), num_workers=small_blocks)
    assert_close(found, forward(model, inputs))
    assert not found.requires_grad


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_heterogeneous_models(name, small_blocks):
    model = HETEROGENEOUS[name]()
    found = inference(model, hetero_data(), num_workers=small_blocks)
    assert_close(found, forward(model, hetero_inputs()))


def test_to_hetero(small_blocks):
    model, inputs = to_hetero_sage(), hetero_inputs()
    found = inference(model, hetero_data(), num_workers=small_blocks)
    expected = forward(model, {"x": inputs["x_dict"], "edge_index": inputs["edge_index_dict"]})
    assert_close(found, expected)


@pytest.mark.parametrize("jk", [None, "last", "cat", "max", "lstm"])
@pytest.mark.parametrize("norm", [None, "batch_norm", "layer_norm"])
@pytest.mark.parametrize("act_first", [False, True])
def test_options_of_basic_gnn(jk, norm, act_first):
    kwargs = {"norm_kwargs": {"mode": "node"}} if norm == "layer_norm" else {}
    model = basic(GraphSAGE, 2, jk=jk, norm=norm, act_first=act_first, dropout=0.3, **kwargs)()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs = graph_inputs()
    assert_close(inference(model, Data(**inputs)), forward(model, inputs))


class TestFastWays:
    @pytest.mark.parametrize(
        ("name", "way"),
        [
            ("sage-mean", layers.Reduced),
            ("sage-max", layers.Reduced),
            ("gcn-weight", layers.Reduced),
            ("gin", layers.Reduced),
            ("gat-attr", layers.Messages),
            ("edge-cnn", layers.Messages),
            ("relations", layers.Messages),
        ],
    )
    def test_which_is_taken(self, name, way, monkeypatch):
        seen = []
        choose = layers.choose
        monkeypatch.setattr(module, "choose", lambda *a: seen.append(choose(*a)) or seen[-1])
        make, extra = HOMOGENEOUS[name]
        inputs = graph_inputs(*extra)
        inference(make(), Data(**inputs), tuple(inputs))
        assert seen
        assert {type(layer) for layer in seen} == {way}

    @pytest.mark.parametrize("way", [layers.Messages, layers.Local])
    @pytest.mark.parametrize("name", ["sage-mean", "gat-attr", "gin", "residual"])
    def test_each_gives_the_same(self, name, way, monkeypatch):
        ways = layers._ways
        monkeypatch.setattr(layers, "_ways", lambda *a: (m for m in ways(*a) if type(m()) is way))
        make, extra = HOMOGENEOUS[name]
        model, inputs = make(), graph_inputs(*extra)
        assert_close(inference(model, Data(**inputs), tuple(inputs)), forward(model, inputs))

    def test_an_activation_in_the_messages_is_noticed(self):
        class Clipped(SAGEConv):
            def message(self, x_j):
                return x_j.clamp(max=500)

        model, inputs = Clipped(WIDTH, OUT), graph_inputs()
        inputs["x"] *= 1e4
        assert_close(inference(model, Data(**inputs)), forward(model, inputs))


class TestDegrees:
    @pytest.mark.parametrize("options", [{}, {"improved": True}, {"add_self_loops": False}])
    @pytest.mark.parametrize("weighted", [False, True])
    def test_gcn(self, options, weighted, small_blocks):
        inputs = graph_inputs(*(["edge_weight"] if weighted else []))
        inputs["edge_index"][:, ::9] = inputs["edge_index"][1, ::9]  # self loops, some twice
        model = basic(GCN, 3, **options)()
        found = inference(model, Data(**inputs), tuple(inputs), num_workers=small_blocks)
        assert_close(found, forward(model, inputs))

    def test_cached_layers_stay_as_they_are(self):
        model, inputs = basic(GCN, cached=True)(), graph_inputs()
        inference(model, Data(**inputs))
        assert all(conv._cached_edge_index is None for conv in model.convs)

    def test_degrees_of_the_block_alone_would_be_noticed(self, monkeypatch):
        """A planted fault: the layer is left to normalise by itself."""
        choose = layers.choose
        monkeypatch.setattr(layers, "normalisation_of", lambda conv: None)
        monkeypatch.setattr(module, "choose", lambda c, *a: choose(replace(c, one_hop=""), *a))
        with pytest.raises(CutError, match="GCNConv"):
            inference(basic(GCN)(), Data(**graph_inputs()))

    def test_another_normalisation_is_refused(self):
        class Other(GCNConv):
            def forward(self, x, edge_index, edge_weight=None):
                degree = torch.bincount(edge_index[0], minlength=len(x)).view(-1, 1)
                return super().forward(x / (1 + degree), edge_index, edge_weight)

        with pytest.raises(CutError, match="degrees"):
            inference(Other(WIDTH, OUT), Data(**graph_inputs()))


class TestFaultsAreCaught:
    """The comparison of these tests fails where the engine is made to err."""

    def run(self, model, inputs):
        expected = forward(model, inputs)
        with pytest.raises(AssertionError):
            assert_close(inference(model, Data(**inputs), tuple(inputs)), expected)

    def test_missing_skip(self, monkeypatch):
        own = module.engine.Block.own
        monkeypatch.setattr(
            module.engine.Block, "own", lambda self, n: own(self, n) * (0 if "relu" in n else 1)
        )
        self.run(Residual(), graph_inputs("edge_attr"))

    def test_block_off_by_one(self, monkeypatch):
        blocks = schedule.blocks_of
        monkeypatch.setattr(schedule, "MIN_ROWS", 10)
        monkeypatch.setattr(module, "BLOCK_BYTES", 1000)
        monkeypatch.setattr(
            schedule, "blocks_of", lambda *a: ((f, max(f, x - 1), e) for f, x, e in blocks(*a))
        )
        self.run(basic(GraphSAGE)(), graph_inputs())

    def test_lost_permutation_of_edges(self, monkeypatch):
        in_edges = module.engine.Block.in_edges

        def in_order(self, edge_type):
            edges = in_edges(self, edge_type)
            return edges._replace(ids=edges.ids.sort().values)

        monkeypatch.setattr(module.engine.Block, "in_edges", in_order)
        self.run(Residual(), graph_inputs("edge_attr"))


class TestRefusals:
    @pytest.mark.parametrize(
        ("model", "reason"),
        [
            (lambda: SGConv(WIDTH, OUT, K=2), "several hops"),
            (lambda: APPNP(3, 0.1), "several hops"),
            (basic(GIN, norm="graph_norm"), "GraphNorm"),
            (lambda: SAGEConv(WIDTH, OUT, aggr="lstm"), "SAGEConv"),
        ],
    )
    def test_models(self, model, reason):
        inputs = graph_inputs()
        inputs["edge_index"] = inputs["edge_index"][:, inputs["edge_index"][1].argsort()]
        with pytest.raises(CutError, match=reason):
            inference(model(), Data(**inputs))

    def test_edge_outputs(self):
        make, extra = HOMOGENEOUS["residual"]

        class Both(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = make()

            def forward(self, x, edge_index, edge_attr):
                return self.model(x, edge_index, edge_attr), edge_attr * 2

        with pytest.raises(CutError, match="no row for each node"):
            inference(Both(), Data(**graph_inputs(*extra)))

    def test_options_must_be_decided(self):
        data = Data(**graph_inputs("edge_weight"))
        with pytest.raises(ValueError, match=r"inputs=\('x', 'edge_index', 'edge_weight'\)"):
            inference(basic(GCN)(), data)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"inputs": ("x", "edge_index", "weights")}, "no parameter"),
            ({"inputs": ("x", "edge_index", "edge_weight")}, "does not have"),
            ({"inputs": {"x": torch.zeros(3, WIDTH), "edge_index": "edge_index"}}, "3 rows"),
            ({"out": "emb.txt"}, r"\.npy"),
            ({"out": "/nowhere/emb.npy"}, "does not exist"),
            ({"resume": True}, "needs out="),
            ({"memory_bytes": 1000}, "too little"),
            ({"memory_bytes": -1}, "memory_bytes"),
            ({"dtype": torch.int64}, "floats"),
            ({"num_workers": 0}, "num_workers"),
            ({"fallback": "edges"}, "fallback"),
        ],
    )
    def test_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            inference(basic(GraphSAGE)(), Data(**graph_inputs()), **arguments)

    def test_data(self):
        with pytest.raises(TypeError, match="HeteroData"):
            inference(basic(GraphSAGE)(), graph_inputs())


class TestData:
    def test_adjacency(self):
        inputs, model = graph_inputs(), basic(GraphSAGE)()
        row, col = inputs["edge_index"]
        adj_t = SparseTensor(row=col, col=row, sparse_sizes=(60, 60))
        found = inference(model, Data(x=inputs["x"], adj_t=adj_t))
        assert_close(found, forward(model, inputs))

    def test_values_that_are_no_attributes(self):
        make, _ = HOMOGENEOUS["gat-attr"]
        inputs, model = graph_inputs("edge_attr"), make()
        data = Data(edge_index=inputs["edge_index"], num_nodes=60, features=inputs["x"])
        given = {**inputs, "x": "features", "edge_index": "edge_index"}
        assert_close(inference(model, data, given), forward(model, inputs))

    def test_no_edges(self):
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

    def test_narrow_layers(self):
        for name in ("sage-sum", "gat-attr", "gcn", "residual"):
            make, extra = HOMOGENEOUS[name]
            model, inputs = make(), graph_inputs(*extra)
            expected = forward(model, inputs)
            found = inference(model, Data(**inputs), tuple(inputs), dtype=torch.bfloat16)
            assert found.dtype == torch.float32
            assert_close(found, expected, rtol=3e-2)
            assert not torch.equal(found, expected)

    def test_a_hub_beyond_the_budget_is_warned_of(self, monkeypatch):
        make, extra = HOMOGENEOUS["gat-attr"]
        model, inputs = make(), graph_inputs(*extra)
        inputs["edge_index"][1, :200] = 5
        monkeypatch.setattr(module, "BLOCK_BYTES", 5000)
        with pytest.warns(RuntimeWarning, match="in-edges at once"):
            found = inference(model, Data(**inputs), tuple(inputs))
        assert_close(found, forward(model, inputs))


class Deciding(nn.Module):
    """A model that cannot be recorded."""

    def __init__(self, conv=None):
        super().__init__()
        self.convs = nn.ModuleList([conv or SAGEConv(WIDTH, WIDTH) for _ in range(2)])

    def forward(self, x, edge_index):
        for conv in self.convs:
            x = conv(x, edge_index)
            if x.abs().max() >= 0:
                x = x.relu()
        return x


class TestFallback:
    def test_batches_of_nodes(self):
        model, inputs = Deciding(), graph_inputs()
        with pytest.raises(CutError, match="decides by data"):
            inference(model, Data(**inputs))
        assert_close(inference(model, Data(**inputs), fallback="nodes"), forward(model, inputs))

    def test_a_hop_more_for_degrees(self):
        model, inputs = Deciding(GCNConv(WIDTH, WIDTH)), graph_inputs()
        assert_close(inference(model, Data(**inputs), fallback="nodes"), forward(model, inputs))

    def test_edge_attributes_and_files(self, tmp_path):
        class Net(Deciding):
            def forward(self, x, edge_index, edge_attr):
                return super().forward(x, edge_index) + self.convs[0](
                    x * edge_attr.max(), edge_index
                )

        with pytest.raises(CutError):
            inference(Net(), Data(**graph_inputs("edge_attr")), fallback="nodes")

        class Right(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = HOMOGENEOUS["gat-attr"][0]()

            def forward(self, x, edge_index, edge_attr):
                out = self.model(x, edge_index, edge_attr=edge_attr)
                return out if out.abs().sum() > 0 else -out

        model, inputs = Right(), graph_inputs("edge_attr")
        assert inputs["edge_attr"].size(1) == EDGE_WIDTH
        found = inference(model, Data(**inputs), out=tmp_path / "e.npy", fallback="nodes")
        assert_close(found, forward(model, inputs))
        assert (tmp_path / "e.npy").exists()

    def test_heterogeneous(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.model = HETEROGENEOUS["hetero-conv"]()

            def forward(self, x_dict, edge_index_dict):
                out = self.model(x_dict, edge_index_dict)
                return out if out["paper"].abs().sum() > 0 else {}

        model = Net()
        found = inference(model, hetero_data(), fallback="nodes")
        assert_close(found, forward(model, hetero_inputs()))

    def test_whole_graph_statistics_are_refused_all_the_same(self):
        with pytest.raises(CutError, match="statistics of the whole graph"):
            inference(basic(GIN, norm="graph_norm")(), Data(**graph_inputs()), fallback="nodes")
