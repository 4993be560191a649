"""Cutting models into one-hop message passing and row-wise work."""

import copy

import pytest
import torch
from models import (
    EDGE_TYPES,
    EDGE_WIDTH,
    HETEROGENEOUS,
    HOMOGENEOUS,
    OUT,
    WIDTH,
    LinkPredictor,
    Residual,
    basic,
    graph_inputs,
    hetero_inputs,
    to_hetero_sage,
)
from torch import nn
from torch_geometric.nn import (
    APPNP,
    GCN,
    GIN,
    GATConv,
    GCNConv,
    GINConv,
    GraphSAGE,
    SAGEConv,
    SGConv,
    global_mean_pool,
)

from pyg_direct.models.cutter import Convolution, Cut, CutError, Segment, cut
from pyg_direct.models.spaces import Connectivity, Constant, Edges, Nodes, spaces_of


def assert_close(first, second):
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_close(first[key], second[key])
    else:
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)


def assert_cut_right(model, inputs):
    model.eval()
    pieces = cut(model, inputs)
    with torch.no_grad():
        assert_close(pieces.run(copy.deepcopy(inputs)), model(**copy.deepcopy(inputs)))
    return pieces


@pytest.mark.parametrize("name", HOMOGENEOUS)
def test_the_parts_compute_what_the_model_computes(name):
    make, extra = HOMOGENEOUS[name]
    pieces = assert_cut_right(make(), graph_inputs(*extra))
    assert pieces.tail is None


@pytest.mark.parametrize("name", HETEROGENEOUS)
def test_heterogeneous_models(name):
    assert_cut_right(HETEROGENEOUS[name](), hetero_inputs())


def test_to_hetero():
    inputs = hetero_inputs()
    inputs = {"x": inputs["x_dict"], "edge_index": inputs["edge_index_dict"]}
    pieces = assert_cut_right(to_hetero_sage(), inputs)
    assert pieces.stages == 3
    assert [len(pieces.convolutions(stage)) for stage in range(3)] == [0, 5, 5]


def row_subset(pieces: Cut, inputs, rows):
    """Run the segments on some of the nodes only, the convolutions on all."""
    full, part = pieces.input_values(inputs), {}
    edge = {n: v for n, v in full.items() if not isinstance(pieces.values[n].space, Nodes)}
    part.update({n: v[rows] for n, v in full.items() if n not in edge}, **edge)
    for step in pieces.steps:
        if isinstance(step, Convolution):
            results = step.run(full)
            full.update(results)
            part.update({n: v[rows] for n, v in results.items()})
        else:
            part.update(step.run({n: part[n].clone() for n in step.inputs}))
            full.update(step.run(full))
    return pieces.result(part)


@pytest.mark.parametrize("name", [n for n in HOMOGENEOUS if n != "sequential"])
def test_segments_run_on_any_rows(name):
    make, extra = HOMOGENEOUS[name]
    model, inputs = make().eval(), graph_inputs(*extra)
    rows = torch.tensor([3, 0, 59, 17, 17])
    with torch.no_grad():
        found = row_subset(cut(model, inputs), inputs, rows)
        assert_close(found, model(**inputs)[rows])


class TestStructure:
    def pieces(self):
        return cut(Residual(), graph_inputs("edge_attr"))

    def test_stages(self):
        steps = [
            (s.stage, s.space if isinstance(s, Segment) else s.target) for s in self.pieces().steps
        ]
        assert steps == [
            (0, Edges(None)),
            (0, Nodes(None)),
            (1, "first"),
            (1, Nodes(None)),
            (2, "second"),
            (2, Nodes(None)),
        ]

    def test_values_know_their_hops_and_last_reader(self):
        pieces = self.pieces()
        conv = pieces.convolutions(1)[0]
        source, dropout = conv.inputs[0], pieces.convolutions(2)[0].inputs[0]
        assert (pieces.values["x"].hops, pieces.values["x"].last_stage) == (2, 0)
        assert (pieces.values[source].hops, pieces.values[source].last_stage) == (2, 2)
        assert (pieces.values[dropout].stage, pieces.values[dropout].hops) == (1, 1)
        (output,) = pieces.output_names()
        assert (pieces.values[output].hops, pieces.values[output].last_stage) == (0, 3)

    def test_arguments_of_a_convolution(self):
        conv = self.pieces().convolutions(1)[0]
        bound = conv.bound(lambda name: name)
        assert bound["edge_index"] == "edge_index"
        assert bound["edge_attr"] == conv.inputs[2]
        assert conv.edge_types == (None,)

    def test_segments_share_parameters(self):
        model, inputs = Residual().eval(), graph_inputs("edge_attr")
        pieces = cut(model, inputs)
        with torch.no_grad():
            model.out.weight.mul_(2)
            model.gate.add_(1)
            assert_close(pieces.run(inputs), model(**inputs))

    def test_gradients_reach_the_parameters(self):
        model, inputs = Residual().eval(), graph_inputs("edge_attr")
        model(**inputs).sum().backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        cut(model, inputs).run(inputs).sum().backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], rtol=1e-4, atol=1e-5)

    def test_the_model_is_not_changed(self):
        model = nn.ModuleList([GCN(WIDTH, 16, 2, OUT, cached=True, norm="batch_norm")])[0]
        model.train()
        state, draws = copy.deepcopy(model.state_dict()), torch.get_rng_state()
        cut(model, graph_inputs())
        assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
        assert all(m.training for m in model.modules())
        assert torch.equal(torch.get_rng_state(), draws)
        assert all(c.cached and c._cached_edge_index is None for c in model.convs)

    def test_in_place_operations_are_named(self):
        make, _ = HOMOGENEOUS["sequential"]
        segment = cut(make(), graph_inputs()).segments(1)[0]
        assert segment.mutates == segment.inputs

    def test_batch_norm_is_named(self):
        segment = cut(basic(GraphSAGE, norm="batch_norm")(), graph_inputs()).segments(1)[0]
        assert segment.batch_statistics == ("norms.0",)

    def test_training_mode_keeps_dropout(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv = SAGEConv(WIDTH, 64)

            def forward(self, x, edge_index):
                return nn.functional.dropout(self.conv(x, edge_index), 0.5, self.training)

        inputs = graph_inputs()
        dropped = cut(Net(), inputs, training=True).run(inputs)
        assert 0.3 < (dropped == 0).float().mean() < 0.7
        assert (cut(Net(), inputs).run(inputs) != 0).all()

    def test_link_prediction_head_is_the_tail(self):
        pieces = assert_cut_right(LinkPredictor(), graph_inputs("edge_label_index"))
        assert "getitem" in pieces.tail_reason
        assert "models.py" in pieces.tail_reason

    def test_types_of_hetero_convolutions(self):
        pieces = cut(HETEROGENEOUS["hgt"](), hetero_inputs())
        conv = pieces.convolutions(1)[0]
        assert conv.edge_types == tuple(EDGE_TYPES)
        assert set(conv.outputs) == {"paper", "author", "venue"}


class TestReach:
    @pytest.mark.parametrize(
        ("conv", "one_hop"),
        [
            (SAGEConv(WIDTH, OUT), True),
            (GATConv(WIDTH, OUT), True),
            (GINConv(nn.Linear(WIDTH, OUT)), True),
            (GCNConv(WIDTH, OUT), False),
            (GCNConv(WIDTH, OUT, normalize=False), True),
            (SGConv(WIDTH, OUT, K=2), False),
            (APPNP(2, 0.1), False),
            (SAGEConv(WIDTH, OUT, aggr="lstm"), False),  # pads all lists to the longest one
        ],
    )
    def test_what_the_rows_depend_on(self, conv, one_hop):
        inputs = graph_inputs()
        inputs["edge_index"] = inputs["edge_index"][:, inputs["edge_index"][1].argsort()]
        (found,) = cut(conv, inputs).steps
        assert (found.one_hop == "") == one_hop

    def test_rows_of_strangers(self):
        class Centred(SAGEConv):
            def forward(self, x, edge_index, size=None):
                return super().forward(x, edge_index) - x.mean()

        (found,) = cut(Centred(WIDTH, OUT), graph_inputs()).steps
        assert "no neighbours" in found.one_hop


class WithBranch(nn.Module):
    def __init__(self, decide):
        super().__init__()
        self.conv, self.again, self.decide = SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, OUT), decide

    def forward(self, x, edge_index):
        return self.again(self.decide(self.conv(x, edge_index), edge_index), edge_index)


class TestRefusals:
    @pytest.mark.parametrize(
        ("decide", "message"),
        [
            (lambda x, e: x if x.sum() > 0 else -x, "decides by data"),
            (lambda x, e: x - x.mean(dim=0), "mixes the rows of different nodes"),
            (lambda x, e: x.softmax(dim=0), "mixes the rows"),
            (lambda x, e: x / x.size(0), "mixes the rows"),
            (lambda x, e: x.flip(0), "mixes the rows"),
            (lambda x, e: x[e[0]].view(-1, WIDTH)[: x.size(0)], "computes on the edges"),
            (lambda x, e: x + torch.rand_like(x), "mixes the rows"),
            (lambda x, e: x if isinstance(x, torch.Tensor) else x + 1, "isinstance"),
        ],
    )
    def test_a_reason_is_given(self, decide, message):
        with pytest.raises(CutError, match=message):
            cut(WithBranch(decide), graph_inputs())

    def test_norms_over_the_whole_graph(self):
        for norm in ("graph_norm", "pair_norm"):
            with pytest.raises(CutError, match="Norm"):
                cut(basic(GIN, norm=norm)(), graph_inputs())

    def test_pooling_in_between(self):
        pool = WithBranch(lambda x, e: x + global_mean_pool(x, None))
        with pytest.raises(CutError, match=r"\(SAGEConv.*mixes the rows"):
            cut(pool, graph_inputs())

    def test_lines_are_named(self):
        with pytest.raises(CutError, match=r"test_cutter\.py:\d+"):
            cut(WithBranch(lambda x, e: x - x.mean(dim=0)), graph_inputs())

    def test_change_in_place_of_what_is_read_later(self):
        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.again = SAGEConv(WIDTH, WIDTH), SAGEConv(WIDTH, WIDTH)

            def forward(self, x, edge_index):
                h = self.conv(x, edge_index)
                later = self.again(h, edge_index).add_(h)
                x.relu_()
                return later + x

        with pytest.raises(CutError, match="in place"):
            cut(Net(), graph_inputs())

    def test_uninitialised_model(self):
        with pytest.raises(CutError, match="not initialised"):
            cut(SAGEConv(-1, OUT), graph_inputs())

    def test_no_message_passing(self):
        with pytest.raises(CutError, match="no message-passing"):
            cut(nn.Linear(WIDTH, OUT), graph_inputs())

    def test_no_edges(self):
        inputs = graph_inputs()
        with pytest.raises(CutError, match="edge_index"):
            cut(SAGEConv(WIDTH, OUT), {"x": inputs["x"], "edges": inputs["edge_index"]})


class TestSpaces:
    def test_by_name_and_shape(self):
        inputs = graph_inputs("edge_attr", "edge_label_index") | {"p": 0.5}
        assert spaces_of(inputs) == {
            "x": Nodes(None),
            "edge_index": Connectivity(None),
            "edge_attr": Edges(None),
            "edge_label_index": Constant(),
            "p": Constant(),
        }

    def test_dicts(self):
        found = spaces_of(hetero_inputs() | {"edge_attr_dict": {EDGE_TYPES[0]: torch.rand(90, 2)}})
        assert found["x_dict"]["venue"] == Nodes("venue")
        assert found["edge_index_dict"][EDGE_TYPES[0]] == Connectivity(EDGE_TYPES[0])
        assert found["edge_attr_dict"] == {EDGE_TYPES[0]: Edges(EDGE_TYPES[0])}

    def test_said_by_the_caller(self):
        weight = torch.rand(WIDTH, EDGE_WIDTH)
        found = spaces_of({"x": weight, "edge_index": torch.zeros(2, 3).long()}, {"x": Constant()})
        assert found["x"] == Constant()
