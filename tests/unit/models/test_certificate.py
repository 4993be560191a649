"""What the comparison with the plain model notices, and what it leaves as it was."""

import copy
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from batches import arguments, homogeneous_graph, loader_of, plain
from models import OUT, WIDTH
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GraphSAGE, SAGEConv

from pyg_direct import accelerate
from pyg_direct.loading.hops import hand_out_hops
from pyg_direct.models import certificate, model_state
from pyg_direct.models.certificate import Certificate
from pyg_direct.models.trimmed import TrimmedModel

SCALE = [1.0]


@pytest.fixture
def loader():
    return loader_of(homogeneous_graph(torch.float32))


@pytest.fixture
def batch(loader):
    hand_out_hops(loader)
    return next(iter(loader))


class Net(nn.Module):
    """Two layers, and between them what a test gives."""

    def __init__(self, between=lambda net, h: h) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(WIDTH, 8), SAGEConv(8, OUT)
        self.norm, self.bias = nn.BatchNorm1d(8), nn.Parameter(torch.ones(8))
        self.act, self.drop = nn.Sequential(nn.Tanh()), nn.Dropout(0.0)
        self.register_buffer("mean", torch.zeros(8))
        self.between, self.scale, self.kind, self.parts = between, 2.0, "relu", [1.0, 2.0]
        self.losses, self.draws = [], torch.Generator().manual_seed(1)

    def forward(self, x, edge_index):
        return self.second(self.between(self, self.first(x, edge_index)), edge_index)


def reference(model, batch):
    return model(**plain(arguments(batch)))[: batch.batch_size]


def run(fast, batch):
    return fast(batch.x, batch.edge_index)[: batch.batch_size]


def test_which_calls_are_compared(monkeypatch) -> None:
    found = Certificate()
    due = [call for call in range(1, 9000) if found.is_due(changed=False)]
    assert due == [1, 64, 4096, 8192]
    found = Certificate()
    assert [found.is_due(changed=True) for _ in range(100)] == [True] * 64 + [False] * 36


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
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")
@pytest.mark.parametrize("name", CHANGES)
def test_a_model_that_is_changed_later(name, loader, batch) -> None:
    between, change = CHANGES[name]
    torch.manual_seed(0)
    model = Net(between)
    fast = accelerate(model, loader)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.reason == ""
    change(model)
    expected = reference(copy.deepcopy(model), batch)
    torch.testing.assert_close(run(fast, batch), expected)


DECIDES = {
    "parameter": (
        lambda net, h: h * 2 if net.bias[0].item() > 3 else h, lambda net: net.bias.data.fill_(5.0),
    ),
    "buffer": (
        lambda net, h: h * 2 if net.mean.sum().item() > 3 else h, lambda net: net.mean.fill_(5.0),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DECIDES)
def test_a_forward_that_decides_by_what_it_holds_runs_as_it_is(name, loader, batch) -> None:
    between, change = DECIDES[name]
    model = Net(between)
    fast = accelerate(model, loader)
    with pytest.warns(UserWarning, match="decides by data"):
        torch.testing.assert_close(run(fast, batch), reference(model, batch))
    change(model)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))


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
def test_a_forward_that_decides_by_a_mode_of_torch(name, loader, batch) -> None:
    model = Net(ASKS[name])
    fast = accelerate(model, loader)
    run(fast, batch)
    with MODES[name]():
        found, expected = run(fast, batch), reference(model, batch)
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.05)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))


def test_a_forward_that_decides_by_the_default_dtype(loader, batch) -> None:
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
def test_what_no_attribute_shows_is_noticed_at_the_next_comparison(
    cell, loader, batch, monkeypatch
) -> None:
    monkeypatch.setattr(certificate, "CALLS", (1, 3))
    factor = SCALE if cell == "global" else [1.0]
    monkeypatch.setitem(globals(), "SCALE", factor)
    model = Net(scaled_by_global if cell == "global" else lambda net, h: h * factor[0])
    fast = accelerate(model, loader)
    run(fast, batch)
    factor[0] = 3.0
    run(fast, batch)
    with pytest.warns(UserWarning, match=r"runs Net as it is: its outputs differ by .*\(call 3\)"):
        found = run(fast, batch)
    torch.testing.assert_close(found, reference(model, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert "differ" in fast.acceleration.reason


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


UNSEEN = {
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
@pytest.mark.parametrize("name", UNSEEN)
def test_what_a_recording_does_not_see(name, training, loader, batch) -> None:
    torch.manual_seed(0)
    model = Net(UNSEEN[name]).train(training)
    twin = copy.deepcopy(model)
    fast = accelerate(model, loader)
    for _ in range(3):
        expected = step(twin, lambda: reference(twin, batch), batch)
        found = step(model, lambda: run(fast, batch), batch)
        torch.testing.assert_close(found[0], expected[0], rtol=1e-4, atol=1e-4)
        assert found[1:] == expected[1:]


class DrawsWhenCopied(nn.Tanh):
    """As PyG's linear layers of 2.6, whose copies are initialised at first."""

    def __deepcopy__(self, memo):
        torch.rand(()), np.random.rand(), random.random()
        return self


def test_a_comparison_leaves_everything_as_it_was(loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(certificate, "EVERY", 1)
    model, seen = Net(lambda net, h: nn.functional.dropout(net.norm(h), 0.5, net.training)), []
    model.act = DrawsWhenCopied()
    twin = copy.deepcopy(model)
    model.bias.register_hook(seen.append)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    fast = accelerate(model, loader)
    calls, checked = [], Certificate.check

    def state():
        numbers = np.random.get_state()[1].tobytes()
        return torch.get_rng_state().numpy().tobytes(), random.getstate(), numbers

    def noted(*args):
        before = state()
        calls.append(checked(*args))
        assert state() == before
        return calls[-1]

    monkeypatch.setattr(Certificate, "check", noted)
    fast(batch.x, batch.edge_index)
    reference(twin, batch)
    assert calls == [""]
    assert seen == []
    assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
    torch.testing.assert_close(model.norm.running_mean, twin.norm.running_mean)
    assert int(model.norm.num_batches_tracked) == 1


def test_planted_faults_are_noticed(loader, batch, monkeypatch) -> None:
    original = TrimmedModel.run
    for fault in (lambda t: t * 1.01, lambda t: t.detach() + 0 * t.sum(), lambda t: t[:-1]):
        monkeypatch.setattr(
            TrimmedModel, "run", lambda self, *args, fault=fault: fault(original(self, *args))
        )
        model = Net()
        fast = accelerate(model, loader)
        with pytest.warns(UserWarning, match=r"differ by|other shapes"):
            found = run(fast, batch)
        torch.testing.assert_close(found, reference(model, batch))
        unchecked = accelerate(model, loader, certify=False)
        assert not found.equal(run(unchecked, batch)) or fault(found).grad_fn is not None
        assert unchecked.acceleration.reason == ""


def test_a_step_that_fails_runs_plain(loader, batch, monkeypatch) -> None:
    model = Net()
    fast = accelerate(model, loader)
    run(fast, batch)

    def fails(*args):
        raise KeyError("planted")

    monkeypatch.setattr(TrimmedModel, "run", fails)
    with pytest.warns(UserWarning, match=r"it fails on some of the rows \(KeyError: 'planted'\)"):
        found = run(fast, batch)
    torch.testing.assert_close(found, reference(model, batch))


def test_mistakes_in_the_arguments_are_the_users(loader, batch) -> None:
    model = Net()
    fast = accelerate(model, loader)
    run(fast, batch)
    with pytest.raises(RuntimeError, match=r"mat1 and mat2|must match"):
        fast(batch.x[:, :3], batch.edge_index)
    assert fast.acceleration.reason == ""
    torch.testing.assert_close(run(fast, batch), reference(model, batch))


def test_a_model_that_cannot_be_copied_is_not_compared(loader, batch) -> None:
    model = Net()
    model.lock = threading.Lock()
    fast = accelerate(model, loader)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.reason == ""


def read_table(net, h):
    return h + net.table[: h.size(1)].sum()


def written_table(net, h):
    net.table.add_(1)
    return h + net.table[: h.size(1)].sum()


@pytest.mark.parametrize("as_buffer", [True, False], ids=["buffer", "attribute"])
@pytest.mark.parametrize("between", [read_table, written_table])
def test_large_tensors_are_not_copied(between, as_buffer, loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(model_state, "LARGE_BYTES", 1 << 12)
    model, copies = Net(between), []
    table = torch.zeros(1 << 10)
    model.register_buffer("table", table) if as_buffer else setattr(model, "table", table)
    deepcopy = torch.Tensor.__deepcopy__

    def noted(tensor, memo):
        made = deepcopy(tensor, memo)
        copies.append(0 if made is tensor else tensor.nbytes)
        return made

    fast = accelerate(model, loader)
    monkeypatch.setattr(torch.Tensor, "__deepcopy__", noted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run(fast, batch)
    assert max(copies, default=0) < 1 << 12
    if between is read_table:
        assert fast.acceleration.reason == ""
        assert not table.any()


def test_arguments_that_a_forward_writes_to(loader, batch) -> None:
    model = Net()
    model.forward = lambda x, edge_index: model.second(
        model.first(x.add_(1), edge_index), edge_index
    )
    fast, x = accelerate(model, loader), batch.x.clone()
    with pytest.warns(UserWarning, match="differ by 1"):  # it would write to fewer rows
        fast(x, batch.edge_index)
    torch.testing.assert_close(x, batch.x + 1)


@pytest.mark.parametrize("every", [1, 2])
def test_within_a_checkpoint(every, loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(certificate, "EVERY", every)
    model = Net(lambda net, h: h.tanh())
    fast, x = accelerate(model, loader), batch.x.clone().requires_grad_()
    for _ in range(3):
        out = checkpoint(fast, x, batch.edge_index, use_reentrant=False)
        (found,) = torch.autograd.grad(out.sum(), x)
        (expected,) = torch.autograd.grad(reference_of(model, x, batch).sum(), x)
        torch.testing.assert_close(found, expected)
    assert fast.acceleration.reason == ""


def reference_of(model, x, batch):
    return model(x, batch.edge_index.as_tensor())[: batch.batch_size]


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_without_gradients(context, loader, batch) -> None:
    model = GraphSAGE(WIDTH, 8, 2, OUT).eval()
    fast = accelerate(model, loader)
    with context():
        torch.testing.assert_close(run(fast, batch), reference(model, batch))
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.reason == ""


def test_certify_is_a_flag(loader) -> None:
    with pytest.raises((TypeError, ValueError), match="certify"):
        accelerate(Net(), loader, certify="always")
    again = copy.deepcopy(accelerate(Net(), loader, certify=False))
    assert again.acceleration._certificate is None
