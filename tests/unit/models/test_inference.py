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
    assert_close,
    basic,
    forward,
    graph_inputs,
    hetero_data,
    hetero_inputs,
    to_hetero_sage,
)
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    GCN,
    GIN,
    ChebConv,
    GatedGraphConv,
    GCNConv,
    GraphSAGE,
    HeteroConv,
    LGConv,
    MixHopConv,
    PDNConv,
    SAGEConv,
    SGConv,
    SSGConv,
    TAGConv,
)
from torch_geometric.typing import SparseTensor

from pyg_direct import inference
from pyg_direct.models import choice, layers, messages, schedule
from pyg_direct.models import inference as module
from pyg_direct.models.cutter import CutError

# Blocks are made so small here that single nodes exceed them.
pytestmark = pytest.mark.filterwarnings("ignore:.*in-edges at once")


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few nodes, and the number of threads."""
    monkeypatch.setattr(module, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(schedule, "MIN_ROWS", 13)
    monkeypatch.setattr(schedule, "REDUCED_EDGES", 57)
    return 3


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


@pytest.mark.parametrize(
    ("jk", "norm", "act_first"),
    [("cat", "batch_norm", True), ("max", "layer_norm", False), ("lstm", "batch_norm", False)],
)
def test_options_of_basic_gnn(jk, norm, act_first):
    """A few of the combinations; `test_inference_real` has the others."""
    kwargs = {"norm_kwargs": {"mode": "node"}} if norm == "layer_norm" else {}
    model = basic(GraphSAGE, 2, jk=jk, norm=norm, act_first=act_first, dropout=0.3, **kwargs)()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    inputs = graph_inputs()
    assert_close(inference(model, Data(**inputs)), forward(model, inputs))


class TestSeveralHops:
    """Convolutions that pass messages several times run hop by hop."""

    MODELS = (
        lambda: SGConv(WIDTH, OUT, K=3),
        lambda: SGConv(WIDTH, OUT, K=1, add_self_loops=False),
        lambda: APPNP(4, 0.1),
        lambda: TAGConv(WIDTH, OUT, K=3),
        lambda: SSGConv(WIDTH, OUT, 0.2, K=3),
        lambda: MixHopConv(WIDTH, OUT, powers=[0, 1, 3]),
    )

    @pytest.mark.parametrize("number", range(len(MODELS)))
    def test_with_edge_weights(self, number, small_blocks):
        model, inputs = self.MODELS[number](), graph_inputs("edge_weight")
        found = inference(model, Data(**inputs), tuple(inputs), num_workers=small_blocks)
        assert_close(found, forward(model, inputs))

    @pytest.mark.parametrize("make", [lambda: GatedGraphConv(WIDTH, 3), LGConv])
    def test_others(self, make, small_blocks):
        model, inputs = make(), graph_inputs()
        assert_close(inference(model, Data(**inputs)), forward(model, inputs))

    def test_inside_a_model(self, small_blocks):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.first, self.lin = SAGEConv(WIDTH, 16), nn.Linear(16, OUT)
                self.hops = APPNP(3, 0.2)

            def forward(self, x, edge_index):
                return self.hops(self.lin(self.first(x, edge_index).relu()), edge_index)

        model, inputs = Net(), graph_inputs()
        found = inference(model, Data(**inputs), num_workers=small_blocks)
        assert_close(found, forward(model, inputs))

    def test_tables_of_two_hops_are_held(self):
        """APPNP needs its input and the rows of the last hop, however many hops there are."""
        inputs = graph_inputs()
        graph = module.graph_of(Data(**inputs))
        options = module.Options(None, None, 1, False, False)
        arguments = {"x": inputs["x"], "edge_index": None}
        with torch.no_grad():
            plan = module.Plan(APPNP(9, 0.1).eval(), graph, arguments, options, None)
        assert plan.schedule.peak(in_file=False) == 2 * inputs["x"].nbytes

    def test_a_hop_too_few_would_be_noticed(self, monkeypatch):
        """A planted fault: the rows of the first hop are taken for those of all."""
        known = messages.Messages._answer

        def first_hop(self, block, i, *more):
            return known(self, block, min(i, 1), *more)

        monkeypatch.setattr(messages.Messages, "_answer", first_hop)
        with pytest.raises(CutError, match="several hops"):
            inference(SGConv(WIDTH, OUT, K=3), Data(**graph_inputs()))


class TestFastWays:
    @pytest.mark.parametrize(
        ("name", "way"),
        [
            ("sage-mean", messages.Reduced),
            ("sage-max", messages.Reduced),
            ("gcn-weight", messages.Reduced),
            ("gin", messages.Reduced),
            ("gat-attr", messages.Messages),
            ("edge-cnn", messages.Messages),
            ("relations", messages.Messages),
        ],
    )
    def test_which_is_taken(self, name, way, monkeypatch):
        seen = []
        choose = choice.choose
        monkeypatch.setattr(module, "choose", lambda *a: seen.append(choose(*a)) or seen[-1])
        make, extra = HOMOGENEOUS[name]
        inputs = graph_inputs(*extra)
        inference(make(), Data(**inputs), tuple(inputs))
        assert seen
        assert {type(layer) for layer in seen} == {way}

    @pytest.mark.parametrize("way", [messages.Messages, layers.Local])
    @pytest.mark.parametrize("name", ["sage-mean", "gat-attr", "gin", "residual"])
    def test_each_gives_the_same(self, name, way, monkeypatch):
        ways = choice._ways
        monkeypatch.setattr(choice, "_ways", lambda *a: (m for m in ways(*a) if type(m()) is way))
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

    def test_degrees_of_the_block_alone_would_be_noticed(self, monkeypatch):
        """A planted fault: the layer is left to normalise by itself."""
        choose = choice.choose
        monkeypatch.setattr(choice, "normalisation_of", lambda *_: None)
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
            (lambda: ChebConv(WIDTH, OUT, K=3), "several hops"),
            (lambda: PDNConv(WIDTH, OUT, EDGE_WIDTH, 8), "degrees"),
            (basic(GIN, norm="graph_norm"), "GraphNorm"),
            (lambda: SAGEConv(WIDTH, OUT, aggr="lstm"), "SAGEConv"),
        ],
    )
    def test_models(self, model, reason):
        inputs = graph_inputs()
        inputs["edge_index"] = inputs["edge_index"][:, inputs["edge_index"][1].argsort()]
        made = model()
        if isinstance(made, PDNConv):
            inputs |= graph_inputs("edge_attr")
        with pytest.raises(CutError, match=reason):
            inference(made, Data(**inputs), tuple(inputs))

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
        pytest.importorskip("torch_sparse")
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

    @pytest.mark.parametrize("name", ["sage-mean", "gat"])
    def test_features_that_are_not_contiguous(self, name):
        inputs, model = graph_inputs(), HOMOGENEOUS[name][0]()
        inputs["x"] = torch.cat([inputs["x"], inputs["x"]], dim=1)[:, ::2]
        assert_close(inference(model, Data(**inputs)), forward(model, inputs))

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
