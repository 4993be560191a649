"""Layer-wise inference on real graphs, and on random models."""

import hypothesis.strategies as st
import pytest
import torch
from graphs import DATA_FOLDER, REAL_GRAPHS, load_real_graph
from hypothesis import given, settings
from models import graph_inputs
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import (
    GAT,
    GCN,
    GATv2Conv,
    GCNConv,
    GINEConv,
    GraphConv,
    GraphSAGE,
    HeteroConv,
    HGTConv,
    SAGEConv,
)

from pyg_direct import inference

needs_data = pytest.mark.skipif(not DATA_FOLDER.is_dir(), reason="needs the folder of real graphs")


def assert_close(found, expected):
    atol = 1e-5 * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=atol)


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", REAL_GRAPHS)
@pytest.mark.parametrize(("model", "options"), [(GraphSAGE, {}), (GCN, {}), (GAT, {"heads": 2})])
def test_real_graphs(name, model, options, tmp_path):
    graph = load_real_graph(name, tmp_path)
    x = torch.randn(graph.num_nodes, 16)
    data = Data(x=x, edge_index=graph.edge_index)
    net = model(16, 16, 2, 5, jk="cat", **options).eval()
    with torch.no_grad():
        expected = net(x, data.edge_index)
    assert_close(inference(net, data), expected)


@needs_data
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*in-edges at once")  # maintainers of many packages
@pytest.mark.parametrize("kind", ["sage", "hgt"])
def test_debian_hetero(kind, tmp_path):
    data = load_real_graph("debian_hetero", tmp_path)
    for node_type in data.node_types:
        data[node_type].x = torch.randn(data[node_type].num_nodes, 8)

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.convs = nn.ModuleList([self.layer(), self.layer()])

        def layer(self):
            if kind == "hgt":
                return HGTConv(8, 8, data.metadata(), heads=2)
            return HeteroConv({key: SAGEConv((8, 8), 8) for key in data.edge_types}, aggr="mean")

        def forward(self, x_dict, edge_index_dict):
            for conv in self.convs:
                x_dict = {key: x.relu() for key, x in conv(x_dict, edge_index_dict).items()}
            return x_dict

    net = Net().eval()
    with torch.no_grad():
        expected = net(data.x_dict, data.edge_index_dict)
    found = inference(net, data)
    assert found.keys() == expected.keys()
    for key, rows in expected.items():
        assert_close(found[key], rows)


CONVS = {
    "sage": lambda: SAGEConv(12, 12, aggr="max"),
    "gcn": lambda: GCNConv(12, 12),
    "gat": lambda: GATv2Conv(12, 6, heads=2),
    "gine": lambda: GINEConv(nn.Linear(12, 12), edge_dim=5),
    "graph": lambda: GraphConv(12, 12, aggr="mean"),
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


@settings(max_examples=12)
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
