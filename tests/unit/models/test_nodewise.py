"""Models that cannot be cut, on batches of nodes with all their neighbours: `fallback="nodes"`."""

import pytest
import torch
from models import (
    EDGE_WIDTH,
    HETEROGENEOUS,
    HOMOGENEOUS,
    WIDTH,
    assert_close,
    basic,
    forward,
    graph_inputs,
    hetero_data,
    hetero_inputs,
)
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import APPNP, GIN, GCNConv, SAGEConv, SGConv, TAGConv

from pyg_direct import inference
from pyg_direct.models import nodewise
from pyg_direct.models.cutter import CutError


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


def path_inputs():
    """Return a path of nodes, where a hop more reaches one node more."""
    row = torch.arange(59)
    inputs = graph_inputs()
    inputs["edge_index"] = torch.stack([row, row + 1])
    return inputs


class TestFallback:
    def test_batches_of_nodes(self):
        model, inputs = Deciding(), graph_inputs()
        with pytest.raises(CutError, match="decides by data"):
            inference(model, Data(**inputs))
        assert_close(inference(model, Data(**inputs), fallback="nodes"), forward(model, inputs))

    def test_a_hop_more_for_degrees(self):
        model, inputs = Deciding(GCNConv(WIDTH, WIDTH)), graph_inputs()
        assert_close(inference(model, Data(**inputs), fallback="nodes"), forward(model, inputs))

    SEVERAL_HOPS = (
        (lambda: SGConv(WIDTH, WIDTH, K=2), 2),
        (lambda: APPNP(3, 0.1), 3),
        (lambda: TAGConv(WIDTH, WIDTH, K=2), 2),
    )

    @pytest.mark.parametrize(("make", "hops"), SEVERAL_HOPS, ids=["sg", "appnp", "tag"])
    def test_layers_of_several_hops(self, make, hops, monkeypatch):
        """Their hops are counted one by one, and one is added for the degrees."""
        seen, run = [], nodewise._run

        def noted(*arguments):
            seen.append(arguments[3])
            return run(*arguments)

        monkeypatch.setattr(nodewise, "_run", noted)
        model, inputs = Deciding(make()), path_inputs()
        assert_close(inference(model, Data(**inputs), fallback="nodes"), forward(model, inputs))
        assert seen[-1] in (2 * hops, 2 * hops + 1)

    def test_a_hop_too_few_would_be_noticed(self, monkeypatch):
        """A planted fault: each layer is taken for one of a single hop."""
        count = nodewise._counted.__enter__

        def first_two(self):
            count(self)
            return [None] * 2

        monkeypatch.setattr(nodewise._counted, "__enter__", first_two)
        with pytest.raises(CutError, match="statistics of the whole graph"):
            inference(Deciding(APPNP(3, 0.1)), Data(**path_inputs()), fallback="nodes")

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
