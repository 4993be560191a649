"""Layers with attention sum by heads without messages, where nothing else looks at these."""

import pytest
import torch
from batches import arguments, assert_same_training, homogeneous_graph, loader_of
from torch_geometric.nn import GAT, GATConv, GATv2Conv, TransformerConv

from pyg_direct import accelerate
from pyg_direct.models import products

WIDTH = homogeneous_graph().num_features


@pytest.fixture
def calls(monkeypatch) -> list[tuple[int, ...]]:
    """Shapes of the scores of each sum by heads."""
    made = []

    def attend(edge_index, x, weight, rows):
        made.append(tuple(weight.shape))
        return original(edge_index, x, weight, rows)

    original = products.attend
    monkeypatch.setattr(products, "attend", attend)
    return made


def gat(**options) -> GAT:
    return GAT(WIDTH, 8, 2, 3, heads=2, **options).double()


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"dropout": 0.5}])
def test_steps_are_the_same(v2, options, calls) -> None:
    model = gat(v2=v2, **options).eval()
    loader = loader_of(homogeneous_graph())
    fast = accelerate(model, loader)
    for _, batch in zip(range(3), loader, strict=False):
        calls.clear()
        assert_same_training(fast, model, arguments(batch), batch.batch_size)
        assert {shape[1] for shape in calls} == {2}
    assert set(fast.acceleration.forms().values()) == {"pair"}


def test_dropout_of_scores_is_that_of_the_layer(calls) -> None:
    conv = GATConv(4, 3, heads=2, dropout=0.5)
    x, edge_index = torch.randn(5, 4), torch.randint(5, (2, 20))
    outs = []
    for layer in (conv, products.without_messages(conv)):
        torch.manual_seed(1)
        outs.append(layer((x, x), edge_index))
    assert len(calls) == 1
    torch.testing.assert_close(*outs)


def test_attention_weights_are_returned(calls) -> None:
    conv = GATv2Conv(4, 3, heads=2)
    x, edge_index = torch.randn(5, 4), torch.randint(5, (2, 20))
    given = (x, x), edge_index
    expected = conv(*given, return_attention_weights=True)
    found = products.without_messages(conv)(*given, return_attention_weights=True)
    assert len(calls) == 1
    torch.testing.assert_close(found, expected)


class Doubled(GATConv):
    def message(self, x_j, alpha):
        return 2 * alpha.unsqueeze(-1) * x_j


def hooked() -> GATConv:
    conv = GATConv(4, 3, heads=2)
    conv.register_message_forward_hook(lambda *a: None)
    return conv


@pytest.mark.parametrize(
    "make",
    [
        hooked,
        lambda: Doubled(4, 3),
        lambda: GATConv(4, 3, aggr="max"),
        lambda: GATConv(4, 3, flow="target_to_source"),
        lambda: TransformerConv(4, 3),
        lambda: torch.nn.Linear(4, 3),
    ],
    ids=["hook", "subclass", "maximum", "flow", "other messages", "no layer"],
)
def test_others_keep_their_messages(make) -> None:
    conv = make()
    assert products.without_messages(conv) is conv
