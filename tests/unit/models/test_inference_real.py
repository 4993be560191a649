"""Layer-wise inference on real graphs, and on random models."""

import copy

import hypothesis.strategies as st
import pytest
import torch
from graphs import REAL_GRAPHS, load_real_graph
from hypothesis import given, settings
from models import graph_inputs
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    APPNP,
    GAT,
    GCN,
    GIN,
    PNA,
    EdgeCNN,
    GATConv,
    GATv2Conv,
    GCNConv,
    GINEConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    HGTConv,
    RGCNConv,
    SAGEConv,
)
from torch_geometric.nn.norm import DiffGroupNorm, MeanSubtractionNorm

from pyg_direct import inference

WIDTH = 6


def assert_close(found, expected):
    atol = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


def compare(model, data, inputs):
    """Compare with the whole-graph forward, in evaluation mode.

    In float64 for PNA: PyG's "std" is 0 for variances below 1e-5, so that the rounding of another
    order of summation decides between 0 and 0.003 now and then (for 3 of 55,000 values).
    """
    if isinstance(model, PNA):
        model, data = model.double(), copy.copy(data).apply(widened)
    model.eval()
    with torch.no_grad():
        expected = model(**{name: getattr(data, name) for name in inputs})
    assert_close(inference(model, data, inputs), expected)


def widened(value):
    return value.double() if value.is_floating_point() else value


def with_features(name, work):
    """Return a real graph with features, weights and edge attributes of a small width."""
    graph = load_real_graph(name, work)
    edges = graph.edge_index.size(1)
    return Data(
        x=torch.randn(graph.num_nodes, WIDTH),
        edge_index=graph.edge_index,
        edge_weight=torch.rand(edges),
        edge_attr=torch.randn(edges, 3),
    )


def pna(data, **kwargs):
    degree = torch.bincount(torch.bincount(data.edge_index[1], minlength=data.num_nodes))
    options = {"aggregators": ["mean", "max", "std"], "scalers": ["identity", "attenuation"]}
    return PNA(WIDTH, 8, 2, 3, deg=degree, **options, **kwargs)


MODELS = {
    "sage-mean": lambda _, **k: GraphSAGE(WIDTH, 8, 2, 3, **k),
    "sage-max": lambda _, **k: GraphSAGE(WIDTH, 8, 2, 3, aggr="max", **k),
    "sage-sum": lambda _, **k: GraphSAGE(WIDTH, 8, 2, 3, aggr="sum", **k),
    "gcn": lambda _, **k: GCN(WIDTH, 8, 2, 3, **k),
    "gat": lambda _, **k: GAT(WIDTH, 8, 2, 3, heads=2, **k),
    "gatv2": lambda _, **k: GAT(WIDTH, 8, 2, 3, heads=2, v2=True, **k),
    "gin": lambda _, **k: GIN(WIDTH, 8, 2, 3, **k),
    "pna": pna,
    "edge-cnn": lambda _, **k: EdgeCNN(WIDTH, 8, 2, 3, **k),
}
ON_EDGES = {
    "gcn": ({}, "edge_weight"),
    "gat": ({"edge_dim": 3}, "edge_attr"),
    "gatv2": ({"edge_dim": 3}, "edge_attr"),
    "pna": ({"edge_dim": 3}, "edge_attr"),
}
# Each jk, each norm that PyG applies row by row in evaluation mode, and both orders of norm and
# activation occur with each model.
VARIANTS = (
    {"jk": None, "norm": "batch_norm", "act_first": True},
    {"jk": "last", "norm": "layer_norm", "norm_kwargs": {"mode": "node"}},
    {"jk": "cat", "norm": "batch_norm"},
    {"jk": "max", "norm": "torch", "act_first": True},
    {"jk": "lstm", "norm": None},
)


def test_a_small_real_graph():
    """The graph in the repository, on the models that differ most; all of them are slow."""
    data = with_features("debian", None)
    for name in ("gcn", "gat"):
        compare(MODELS[name](data, jk="cat", norm="batch_norm"), data, ("x", "edge_index"))


@pytest.mark.slow
@pytest.mark.parametrize("graph", REAL_GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_inference_on_real_graphs_equals_the_forward(graph, name, tmp_path):
    data = with_features(graph, tmp_path)
    compare(MODELS[name](data), data, ("x", "edge_index"))
    if name in ON_EDGES:
        options, attribute = ON_EDGES[name]
        compare(MODELS[name](data, **options), data, ("x", "edge_index", attribute))


@pytest.mark.slow
@pytest.mark.parametrize("variant", range(len(VARIANTS)))
@pytest.mark.parametrize("name", MODELS)
def test_inference_of_model_variants_equals_the_forward(name, variant, tmp_path):
    options = VARIANTS[variant]
    if options["norm"] == "torch":  # an instance in place of a name
        options = {**options, "norm": torch.nn.LayerNorm(8)}
    data = with_features("bitcoin_otc", tmp_path)
    model = MODELS[name](data, dropout=0.4, **options)
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm1d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
    compare(model, data, ("x", "edge_index"))


@pytest.mark.parametrize(
    "norm", ["graph_norm", "pair_norm", "layer_norm", MeanSubtractionNorm(), DiffGroupNorm(8, 2)]
)
def test_norms_over_all_nodes(norm):
    """They get the statistics of all nodes."""
    inputs = graph_inputs()
    data = Data(x=inputs["x"][:, :WIDTH], edge_index=inputs["edge_index"])
    compare(MODELS["sage-mean"](data, norm=norm), data, ("x", "edge_index"))


def hetero_layer(kind, data):
    if kind == "hgt":
        return HGTConv(8, 8, data.metadata(), heads=2)
    if kind == "gat":
        convs = {key: GATConv((8, 8), 8, add_self_loops=False) for key in data.edge_types}
    else:
        convs = {key: SAGEConv((8, 8), 8) for key in data.edge_types}
    return HeteroConv(convs, aggr="mean")


class Hetero(nn.Module):
    def __init__(self, kind, data):
        super().__init__()
        self.convs = nn.ModuleList([hetero_layer(kind, data) for _ in range(2)])

    def forward(self, x_dict, edge_index_dict):
        for conv in self.convs:
            x_dict = {key: x.relu() for key, x in conv(x_dict, edge_index_dict).items()}
        return x_dict


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sage", "gat", "hgt"])
def test_inference_on_a_real_heterogeneous_graph_equals_the_forward(kind):
    data = load_real_graph("debian_hetero", None)
    for node_type in data.node_types:
        data[node_type].x = torch.randn(data[node_type].num_nodes, 8)
    model = Hetero(kind, data).eval()
    with torch.no_grad():
        expected = model(data.x_dict, data.edge_index_dict)
    found = inference(model, data)
    assert found.keys() == expected.keys()
    for key, rows in expected.items():
        assert_close(found[key], rows)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"num_bases": 2}, {"num_blocks": 4}])
def test_relations_of_debian_hetero(options):
    """RGCN reads the types of edges and nodes of one graph that holds them all."""
    data = load_real_graph("debian_hetero", None)
    for node_type in data.node_types:
        data[node_type].x = torch.randn(data[node_type].num_nodes, 8)
    joined = data.to_homogeneous(node_attrs=["x"])

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            relations = len(data.edge_types)
            self.first = RGCNConv(8, 8, relations, **options)
            self.second = RGCNConv(8, 4, relations, **options)

        def forward(self, x, edge_index, edge_type):
            return self.second(self.first(x, edge_index, edge_type).relu(), edge_index, edge_type)

    compare(Net(), joined, ("x", "edge_index", "edge_type"))


CONVS = {
    "sage": lambda: SAGEConv(12, 12, aggr="max"),
    "gcn": lambda: GCNConv(12, 12),
    "gat": lambda: GATv2Conv(12, 6, heads=2),
    "gine": lambda: GINEConv(nn.Linear(12, 12), edge_dim=5),
    "graph": lambda: GraphConv(12, 12, aggr="mean"),
    "hops": lambda: APPNP(2, 0.1),
}
BETWEEN = {
    "relu": torch.relu,
    "norm": lambda x: nn.functional.normalize(x, dim=-1),
    "softmax": lambda x: x.softmax(dim=1),
    "scale": lambda x: x * 0.5 + 1,
    "shape": lambda x: x.view(x.size(0), 2, -1).flatten(1),
    "halves": lambda x: torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1),
}


class Random(nn.Module):
    """Convolutions with functions between, and skips from any earlier layer."""

    def __init__(self, layers):
        super().__init__()
        self.layers = layers
        self.convs = nn.ModuleList([CONVS[name]() for name, _, _ in layers])

    def forward(self, x, edge_index, edge_attr):
        known = [x]
        for conv, (name, between, skip) in zip(self.convs, self.layers, strict=True):
            arguments = (x, edge_index, edge_attr) if name == "gine" else (x, edge_index)
            x = BETWEEN[between](conv(*arguments))
            if skip is not None:
                x = x + known[skip % len(known)]
            known.append(x)
        return x, torch.stack(known, dim=1).amax(dim=1)


@settings(max_examples=10)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(sorted(CONVS)),
            st.sampled_from(sorted(BETWEEN)),
            st.none() | st.integers(0, 9),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_random_models(layers):
    model, inputs = Random(layers).eval(), graph_inputs("edge_attr")
    with torch.no_grad():
        expected = model(**inputs)
    for found, rows in zip(inference(model, Data(**inputs)), expected, strict=True):
        assert_close(found, rows)
