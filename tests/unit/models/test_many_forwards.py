"""Accelerated models do what their forwards say: they leave what the plain model leaves."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from forwards import FORWARDS, Between
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GATConv, GCNConv, SAGEConv

from pyg_direct import NeighborLoader, accelerate
from pyg_direct.loading.base import hand_out_hops
from pyg_direct.models.training.costs import StepCosts

LAYERS: dict[str, Callable[[int, int], nn.Module]] = {
    "SAGE": SAGEConv,
    "GCN": GCNConv,
    "GAT": lambda width, out: GATConv(width, out // 2, heads=2),
}
RUNS_PLAIN = "autograd: vmap"  # its rows have no tensors that could be asked for
SEEDS = 16


def graph_loader() -> NeighborLoader:
    generator = torch.Generator().manual_seed(2)  # none is at the kink of an activation
    data = Data(
        x=torch.randn(200, 12, generator=generator),
        edge_index=torch.randint(200, (2, 2000), generator=generator),
    )
    seeds = torch.arange(2 * SEEDS)
    return NeighborLoader(data, [4, 3], seeds, batch_size=SEEDS, seed=0, device="cpu")


def steps(model: Any, call: Any, given: list[tuple[Any, Any]], training: bool) -> list[Any]:
    """Return what two steps leave: outputs, gradients, buffers and what the model holds."""
    model.train(training)
    torch.manual_seed(3)
    found: list[Any] = []
    for features, edge_index in given:
        model.zero_grad()
        x = features.clone().requires_grad_()
        with torch.set_grad_enabled(training):
            out = call(x, edge_index)[:SEEDS]
            if training:
                (out * torch.linspace(-1, 1, out.size(1))).square().mean().backward()
        found.append(out.detach())
        for tensor in (x, *model.parameters()):
            found.append(torch.zeros_like(tensor) if tensor.grad is None else tensor.grad.clone())
        found += [buffer.clone() for buffer in model.buffers()]
        found += [torch.tensor(model.kept), torch.tensor(model.calls), model.loss.detach().clone()]
    return found


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("behind", [False, True], ids=["between", "behind"])
@pytest.mark.parametrize("layer", LAYERS)
def test_many_forwards_run_accelerated_with_equal_outputs(
    layer: str, behind: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None differs, none raises, and none but one runs as the plain model."""
    monkeypatch.setattr(StepCosts, "pay", lambda *args: True)
    loader, wrong = graph_loader(), {}
    assert hand_out_hops(loader) == ""
    sampled = [(batch.x, batch.edge_index) for batch in loader]
    plain = [(x, edge_index.as_tensor()) for x, edge_index in sampled]
    for name, forward in FORWARDS.items():
        torch.manual_seed(0)
        reference = Between(LAYERS[layer], forward, behind)
        model = copy.deepcopy(reference)
        fast = accelerate(model, loader, certify=False)
        for training in (True, False):
            expected = steps(reference, reference, plain, training)
            found = steps(model, fast, sampled, training)
            try:
                torch.testing.assert_close(found, expected, rtol=2e-3, atol=1e-3)
            except AssertionError as error:
                wrong[f"{name}, training={training}"] = str(error)
        if fast.acceleration.reason and name != RUNS_PLAIN:
            wrong[name] = fast.acceleration.reason
    assert wrong == {}
