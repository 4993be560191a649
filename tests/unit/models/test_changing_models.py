"""An accelerated model does what its forward says at each step: nothing of it is recorded."""

import copy
import random

import numpy as np
import pytest
import torch
from between import Net, reference, run
from torch import nn

from pyg_direct import accelerate
from pyg_direct.models.lazy import saved_tensors

SCALE = [1.0]


def double_once(module, args, out):
    return out * 2


CHANGES = {
    "number": (lambda net, h: h * net.scale, lambda net: setattr(net, "scale", 3.0)),
    "text": (
        lambda net, h: h.relu() if net.kind == "relu" else h.tanh(),
        lambda net: setattr(net, "kind", "tanh"),
    ),
    "list": (lambda net, h: h * net.parts[0], lambda net: net.parts.__setitem__(0, 7.0)),
    "function": (
        lambda net, h: net.scale_rows(h) if hasattr(net, "scale_rows") else h,
        lambda net: setattr(net, "scale_rows", lambda h: h * 4),
    ),
    "parameter": (
        lambda net, h: h * net.bias,
        lambda net: setattr(net, "bias", nn.Parameter(torch.full((8,), 5.0))),
    ),
    "loaded": (
        lambda net, h: h * net.bias,
        lambda net: net.load_state_dict(
            {k: v * 2 for k, v in net.state_dict().items()}, assign=True
        ),
    ),
    "buffer": (
        lambda net, h: h + net.mean,
        lambda net: setattr(net, "mean", torch.full((8,), 5.0)),
    ),
    "hook of a layer": (
        lambda net, h: h.tanh(), lambda net: net.first.register_forward_hook(double_once),
    ),
    "hook of messages": (
        lambda net, h: h,
        lambda net: net.second.register_message_forward_hook(lambda m, args, out: out * 2),
    ),
    "hook of the sums": (
        lambda net, h: h,
        lambda net: net.second.register_aggregate_forward_hook(lambda m, args, out: out * 2),
    ),
    "hook of the module that sums": (
        lambda net, h: h,
        lambda net: net.second.aggr_module.register_forward_hook(double_once),
    ),
    "hook before": (
        lambda net, h: net.act(h),
        lambda net: net.act.register_forward_pre_hook(lambda m, args: (args[0] * 2,)),
    ),
    "module": (lambda net, h: net.act(h), lambda net: setattr(net, "act", nn.ReLU())),
    "number of a part": (
        lambda net, h: h * (1 + net.drop.p), lambda net: setattr(net.drop, "p", 1),
    ),
    "number of a buffer": (
        lambda net, h: h * sum(net.mean.tolist()), lambda net: net.mean.fill_(5.0),
    ),
    "mode of a part": (lambda net, h: net.norm(h), lambda net: net.norm.eval()),
    "branch on a parameter": (
        lambda net, h: h * 2 if net.bias[0].item() > 3 else h, lambda net: net.bias.data.fill_(5.0),
    ),
    "branch on a buffer": (
        lambda net, h: h * 2 if net.mean.sum().item() > 3 else h, lambda net: net.mean.fill_(5.0),
    ),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")
@pytest.mark.parametrize("name", CHANGES)
def test_a_model_changed_after_acceleration_gives_its_new_outputs(name, loader, batch) -> None:
    between, change = CHANGES[name]
    torch.manual_seed(0)
    model = Net(between)
    fast = accelerate(model, loader)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    change(model)
    expected = reference(copy.deepcopy(model), batch)
    torch.testing.assert_close(run(fast, batch), expected)
    assert fast.acceleration.reason == ""


MODES = {
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "no gradients": torch.no_grad,
}
ASKS = {
    "autocast": lambda net, h: h * 2 if torch.is_autocast_enabled("cpu") else h,
    "no gradients": lambda net, h: h * 2 if torch.is_grad_enabled() else h,
}


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")
@pytest.mark.parametrize("name", MODES)
def test_a_forward_that_branches_on_a_torch_mode_follows_it(name, loader, batch) -> None:
    model = Net(ASKS[name])
    fast = accelerate(model, loader)
    run(fast, batch)
    with MODES[name]():
        found, expected = run(fast, batch), reference(model, batch)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))


def test_a_forward_that_reads_the_default_dtype_follows_it(loader, batch) -> None:
    model = Net(lambda net, h: h * torch.get_default_dtype().itemsize)
    fast = accelerate(model, loader)
    run(fast, batch)
    torch.set_default_dtype(torch.float64)
    try:
        found, expected = run(fast, batch), reference(model, batch)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(found, expected)


def test_shapes_of_parameters_and_buffers_are_numbers(loader, batch) -> None:
    """A model that reads them is accelerated."""
    model = Net(lambda net, h: h * net.bias.size(0) / net.mean.size(0) + net.mean * net.bias)
    fast = accelerate(model, loader)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.reason == ""


def scaled_by_global(net, h):
    return h * SCALE[0]


@pytest.mark.parametrize("cell", ["global", "closure"])
def test_changed_globals_and_closures_take_effect(cell, loader, batch, monkeypatch) -> None:
    factor = [1.0]
    monkeypatch.setitem(globals(), "SCALE", factor)
    model = Net(scaled_by_global if cell == "global" else lambda net, h: h * factor[0])
    fast = accelerate(model, loader)
    run(fast, batch)
    factor[0] = 3.0
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.reason == ""


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad


def stored(net, h):
    net.losses.append(h.square().mean())
    net.last = h
    return h


def counted(net, h):
    net.calls = getattr(net, "calls", 0) + 1
    return h


def averaged(net, h):
    with torch.no_grad():
        net.mean.mul_(0.5).add_(h.mean(0), alpha=0.5)
    return h - net.mean


FORWARDS = {
    "own backward": lambda net, h: Reversed.apply(h),
    "no_grad": lambda net, h: h + torch.no_grad()(torch.sin)(h),
    "autocast": lambda net, h: _in_half(net, h),
    "losses": stored,
    "counter": counted,
    "buffer": averaged,
    "random": lambda net, h: h * random.random(),
    "numpy": lambda net, h: h * float(np.random.rand()),
    "torch": lambda net, h: h if float(torch.rand(())) < 0.5 else -h,
    "own generator": lambda net, h: h * float(torch.rand((), generator=net.draws)),
    "rows": lambda net, h: h / h.max(),
    "rows in training": lambda net, h: h - h.mean(0) if net.training else h,
    "size": lambda net, h: h if h.size(0) > 30 else h * 2,
    "any": lambda net, h: h * (2 if bool((h > 1e9).any()) else 1),
    "batch norm whose output nobody needs": lambda net, h: (net.norm(h), h)[1],
    "view": lambda net, h: (h[:, :5].add_(1), h)[1],
    "start": lambda net, h: _added(h),
    "grad mode": lambda net, h: h if torch.is_grad_enabled() else -h,
    "data": lambda net, h: _doubled(h),
}


def _in_half(net, h):
    with torch.autocast("cpu", torch.bfloat16):
        return (h @ torch.eye(8)).float() * 1.001


def _added(h):
    start = h
    h += 1
    return start + h


def _doubled(h):
    h.data = h.data * 2
    return h


def step(model, call, batch):
    """Return the outputs and gradients of a step, and what else the model holds."""
    random.seed(3), np.random.seed(3), torch.manual_seed(3)
    model.zero_grad()
    out = call()
    out.square().sum().backward()
    numbers = random.random(), float(np.random.rand()), float(torch.rand(()))
    grads = [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]
    kept = [
        len(model.losses),
        getattr(model, "calls", 0),
        float(torch.rand((), generator=model.draws)),
    ]
    return [out.detach(), *grads, *model.state_dict().values()], kept, numbers


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("name", FORWARDS)
def test_ordinary_and_odd_forwards(name, training, loader, batch) -> None:
    torch.manual_seed(0)
    model = Net(FORWARDS[name]).train(training)
    twin = copy.deepcopy(model)
    fast = accelerate(model, loader)
    for _ in range(3):
        expected = step(twin, lambda: reference(twin, batch), batch)
        found = step(model, lambda: run(fast, batch), batch)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
        assert found[1:] == expected[1:]


class Bank(Net):
    """Adds rows of a large table, and writes to the table afterwards."""

    def __init__(self) -> None:
        super().__init__(lambda net, h: net.remember(h))
        self.register_buffer("rows", torch.ones(20_000, 8))

    def remember(self, h):
        found = h + self.rows[: h.size(0)]
        self.rows.mul_(0.5)
        return found


def test_a_large_table_written_after_use_is_an_error_as_by_torch(
    loader, batch, monkeypatch
) -> None:
    monkeypatch.setattr(saved_tensors, "COPIED_NUMBERS", 100)
    torch.manual_seed(0)
    model = Bank()
    fast = accelerate(model, loader, certify=False)
    with pytest.warns(
        UserWarning, match=r"of shape \(\d+, 8\) was modified in place after it was used"
    ):
        run(fast, batch)
    model.rows.fill_(1.0)
    expected = reference(copy.deepcopy(model), batch)
    torch.testing.assert_close(run(fast, batch), expected)
