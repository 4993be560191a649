"""Steps of layers with attention sum by heads without messages."""

import pytest
import torch
from batches import arguments, assert_same_training, homogeneous_graph, loader_of
from torch import nn
from torch_geometric.nn import GAT, GATConv, TransformerConv

from pyg_direct import accelerate
from pyg_direct.models.lazy import sums as needed_sums

WIDTH = homogeneous_graph().num_features


@pytest.fixture
def calls(monkeypatch) -> list[str]:
    """Names of the functions that sum and multiply by heads, as they are called."""
    made: list[str] = []

    def noting(name):
        original = getattr(needed_sums, name)
        return lambda *given: (made.append(name), original(*given))[1]

    for name in ("sum_by_heads", "dot_by_heads"):
        monkeypatch.setattr(needed_sums, name, noting(name))
    return made


def check(model: nn.Module, batches: int = 3) -> dict[str, str]:
    loader = loader_of(homogeneous_graph())
    fast = accelerate(model.double(), loader)
    for _, batch in zip(range(batches), loader, strict=False):
        assert_same_training(fast, model, arguments(batch), batch.batch_size)
    assert fast.acceleration.reason == ""
    return fast.acceleration.forms()


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("options", [{}, {"add_self_loops": False}, {"dropout": 0.5}])
def test_steps_are_the_same(v2, options, calls) -> None:
    forms = check(GAT(WIDTH, 8, 2, 3, heads=2, v2=v2, **options).eval())
    assert set(calls) == {"sum_by_heads", "dot_by_heads"}
    assert "products" in forms["sums"]


class One(nn.Module):
    def __init__(self, conv) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index)


class Doubled(GATConv):
    def message(self, x_j, alpha):
        return 2 * alpha.unsqueeze(-1) * x_j


def hooked() -> GATConv:
    conv = GATConv(WIDTH, 3, heads=2)
    conv.register_message_forward_hook(lambda module, args, out: out * 3)
    return conv


@pytest.mark.parametrize(
    ("make", "form"),
    [
        (hooked, "messages"),
        (lambda: Doubled(WIDTH, 3), "products"),
        (lambda: GATConv(WIDTH, 3, heads=2, aggr="max"), "messages"),
        (lambda: GATConv(WIDTH, 3, heads=2, flow="target_to_source"), "products"),
        (lambda: TransformerConv(WIDTH, 3, heads=2), "products"),
    ],
    ids=["hook", "subclass", "maximum", "flow", "scaled products"],
)
def test_sums_of_other_layers_take_their_form(make, form, calls) -> None:
    assert form in check(One(make()))["sums"]


def test_second_gradients_of_attention_are_those_of_the_plain_model() -> None:
    loader, model = loader_of(homogeneous_graph()), One(GATConv(WIDTH, 3, heads=2)).double()
    fast, batch = accelerate(model, loader), next(iter(loader))
    found = []
    for net, edges in ((fast, batch.edge_index), (model, batch.edge_index.as_tensor())):
        x = batch.x.clone().requires_grad_()
        out = net(x, edges)[: batch.batch_size]
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(grad.square().sum(), [x, *model.parameters()]))
    torch.testing.assert_close(*found)
