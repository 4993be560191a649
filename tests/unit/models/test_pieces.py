"""Nodes whose messages exceed the memory of a block: their lists are split into pieces."""

import pytest
import torch
from models import EDGE_WIDTH, OUT, WIDTH, assert_close, forward, graph_inputs
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import EdgeConv, GATv2Conv, SAGEConv, TransformerConv

from pyg_direct import inference
from pyg_direct.models import choice, messages, schedule
from pyg_direct.models import inference as module

pytestmark = pytest.mark.filterwarnings("ignore:.*in-edges at once")


class TestHubs:
    """Nodes whose messages exceed the memory of a block."""

    def run(self, model, inputs, monkeypatch, block_bytes):
        limits = []
        call = messages.Pieces.run

        def noted(self, function, arguments, per_edge, targets, edges, limit):
            limits.append((function, edges, limit))
            return call(self, function, arguments, per_edge, targets, edges, limit)

        monkeypatch.setattr(messages.Pieces, "run", noted)
        monkeypatch.setattr(module, "BLOCK_BYTES", block_bytes)
        inputs["edge_index"][1, :300] = 5
        expected = forward(model, inputs)
        limits.clear()
        assert_close(inference(model, Data(**inputs), tuple(inputs)), expected)
        return [x for x in limits if x[2] != choice.PIECE]  # without the trial

    @pytest.mark.parametrize(
        ("make", "functions"),
        [
            (lambda: GATv2Conv(WIDTH, 8, 2, edge_dim=EDGE_WIDTH), {"edge_updater", "propagate"}),
            (lambda: TransformerConv(WIDTH, 8, 2, edge_dim=EDGE_WIDTH), {"propagate"}),
            (lambda: EdgeConv(nn.Linear(2 * WIDTH, OUT), aggr="max"), {"propagate"}),
            (lambda: EdgeConv(nn.Linear(2 * WIDTH, OUT), aggr="mean"), {"propagate"}),
        ],
        ids=["gatv2", "transformer", "max", "mean"],
    )
    @pytest.mark.filterwarnings("error:.*in-edges at once")
    def test_their_lists_are_split(self, make, functions, monkeypatch):
        model, block_bytes = make(), 300 * schedule.TEMPORARIES * 120
        extra = () if isinstance(model, EdgeConv) else ("edge_attr",)
        split = self.run(model, graph_inputs(*extra), monkeypatch, block_bytes // 2)
        assert {function for function, edges, _ in split if edges >= 280} == functions
        assert all(limit < 300 for _, _, limit in split[-2:])

    def test_those_that_cannot_be_split_are_warned_of(self, monkeypatch):
        model = SAGEConv(WIDTH, OUT, aggr=["mean", "std"])
        with pytest.warns(RuntimeWarning, match="of up to 3.. in-edges at once"):
            assert self.run(model, graph_inputs(), monkeypatch, 5000) == []

    def test_a_softmax_of_the_piece_alone_would_be_noticed(self, monkeypatch):
        """A planted fault: pieces are added up without a common scale. Then none are made."""
        monkeypatch.setattr("pyg_direct.models.pieces._factor", lambda own, _: torch.ones_like(own))
        with pytest.warns(RuntimeWarning, match="in-edges at once"):
            assert self.run(TransformerConv(WIDTH, 8, 2), graph_inputs(), monkeypatch, 5000) == []
