"""What a program does around an accelerated step: state, optimizers, writes and transforms."""

import copy

import pytest
import torch
from between import Net, reference, run
from torch import nn
from torch.autograd import forward_ad

from pyg_direct import accelerate
from pyg_direct.models.lazy import saved_tensors
from pyg_direct.models.training.costs import StepCosts


@pytest.fixture(autouse=True)
def steps_pay(monkeypatch) -> None:
    monkeypatch.setattr(StepCosts, "pay", lambda *args: True)


def made(between=lambda net, h: h):
    torch.manual_seed(0)
    model = Net(between)
    model.matrix = nn.Parameter(torch.randn(8, 8))
    return model.double()


def assert_same(program, between, loader, batch, reason="", **options) -> None:
    """Compare what a program leaves with the plain model: program(model, call, batch)."""
    batch.x = batch.x.double()
    plain, model = made(between), made(between)
    fast = accelerate(model, loader, **options)
    found = program(model, lambda: run(fast, batch), batch)
    expected = program(plain, lambda: reference(plain, batch), batch)
    torch.testing.assert_close(found, expected)
    assert fast.acceleration.reason == reason


def trained(model, call, batch, after=lambda model: None):
    optimizer, found = torch.optim.SGD(model.parameters(), 0.1), []
    for _ in range(3):
        optimizer.zero_grad()
        out = call()
        out.square().mean().backward()
        optimizer.step()
        found += [out.detach(), after(model)]
    return found, [p.detach() for p in model.parameters()]


def stored(net, h):
    net.last = h.detach()
    return h @ net.matrix


@pytest.mark.parametrize("copied", [0, 1 << 12])
def test_rows_that_are_read_after_the_step_are_of_its_weights(
    copied, loader, batch, monkeypatch
) -> None:
    monkeypatch.setattr(saved_tensors, "COPIED_NUMBERS", copied)

    def program(model, call, batch):
        return trained(model, call, batch, lambda model: model.last.sum(0))

    assert_same(program, stored, loader, batch)


def recurrent(net, h):
    before = getattr(net, "last", None)
    net.last = h.detach()
    return h if before is None else h + before.mean(0)


@pytest.mark.parametrize("certify", [True, False])
def test_state_of_the_step_before_is_of_its_weights(certify, loader, batch) -> None:
    assert_same(trained, recurrent, loader, batch, certify=certify)


def test_an_optimizer_stepping_in_the_backward_trains_as_plain(loader, batch) -> None:
    def program(model, call, batch):
        def step(parameter):
            with torch.no_grad():
                parameter.sub_(parameter.grad, alpha=0.1)
            parameter.grad = None

        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(step)
        for _ in range(2):
            call().square().mean().backward()
        return [p.detach() for p in model.parameters()]

    assert_same(program, lambda net, h: (h @ net.matrix).tanh() * net.bias, loader, batch)


def halved(net, h):
    out = h + net.matrix.detach().clone().sum(0)
    with torch.no_grad():
        net.matrix.mul_(0.5)
    net.mean.data.add_(1.0)
    return out + net.mean


def test_changes_of_weights_in_a_forward_are_made_once(loader, batch) -> None:
    assert_same(trained, halved, loader, batch)


def written_by_data(net, h):
    h = h + net.mean
    net.mean.data.add_(1.0)
    return h + net.mean


def read_between_writes(net, h):
    h = h * 1
    h[0] = 3.0
    row, first = h[2] * 2, h.tanh()
    h[2] = 7.0
    h[h > 5] = 1.0
    return h + first * row


@pytest.mark.parametrize("between", [written_by_data, read_between_writes])
def test_values_read_between_steps_are_those_of_their_time(between, loader, batch) -> None:
    assert_same(trained, between, loader, batch, certify=False)


def test_the_backward_of_determinants_goes_by_the_strides_of_the_forward(loader, batch) -> None:
    def between(net, h):
        return h * torch.linalg.det(h[:, :4].reshape(-1, 2, 2)).view(-1, 1)

    assert_same(trained, between, loader, batch, certify=False)


def test_outputs_may_be_written_to(loader, batch) -> None:
    def program(model, call, batch):
        out = call()
        out.mul_(2).add_(1)
        out.square().mean().backward()
        return out.detach(), model.matrix.grad

    assert_same(program, lambda net, h: h @ net.matrix, loader, batch)


def test_features_written_before_the_backward_are_an_error(loader, batch) -> None:
    model, x = made().float(), batch.x.clone()
    out = accelerate(model, loader)(x, batch.edge_index)
    x.zero_()
    with pytest.raises(RuntimeError, match="was modified in place before the backward"):
        out.sum().backward()


@pytest.mark.parametrize("certify", [True, False])
def test_a_tensor_that_is_given_twice_is_one(certify, loader, batch) -> None:
    model, found = made().float(), []
    model.forward = lambda x, edge_index, other: (x.add_(1), model.first(other, edge_index))[1]
    for call, edges in (
        (accelerate(model, loader, certify=certify), batch.edge_index),
        (model.forward, batch.edge_index.as_tensor()),
    ):
        x = batch.x.clone()
        found.append((call(x, edges, other=x)[: batch.batch_size], x))
    torch.testing.assert_close(*found)


def test_kept_rows_of_written_features_are_those_of_the_plain_model(loader, batch) -> None:
    model = made().float()

    def forward(x, edge_index):
        x.mul_(2)
        model.last = model.first(x, edge_index)
        return model.second(model.last, edge_index)

    model.forward, fast = forward, accelerate(model, loader, certify=False)
    with torch.no_grad():
        fast(batch.x.clone(), batch.edge_index)
        kept = model.last + 0
        forward(batch.x.clone(), batch.edge_index.as_tensor())
    torch.testing.assert_close(kept.tolist(), model.last.tolist())


@pytest.mark.parametrize("of_class", [True, False])
def test_a_replaced_forward_takes_effect(of_class, loader, batch, monkeypatch) -> None:
    model = made().float()
    fast = accelerate(model, loader)
    before, forward = run(fast, batch), model.forward
    if of_class:
        whole = Net.forward
        monkeypatch.setattr(Net, "forward", lambda self, x, edges: whole(self, x, edges) * 3)
    else:
        model.forward = lambda x, edges: forward(x, edges) * 3
    torch.testing.assert_close(run(fast, batch), before * 3)
    copied = copy.deepcopy(fast)
    torch.testing.assert_close(run(copied, batch), before * 3)


def tangents(model, call, batch):
    with forward_ad.dual_level():
        x = batch.x
        batch.x = forward_ad.make_dual(x, torch.ones_like(x))
        pair = forward_ad.unpack_dual(call())
        batch.x = x
    return tuple(pair)


def gradients(model, call, batch):
    def loss(matrix):
        plain, model._parameters["matrix"] = model.matrix, matrix
        out = call().square().mean()
        model._parameters["matrix"] = plain
        return out

    return torch.func.grad(loss)(model.matrix.detach())


@pytest.mark.parametrize("program", [tangents, gradients])
def test_transforms_of_torch_run_plain(program, loader, batch) -> None:
    reason = "a transform of torch.func or forward-mode AD is active"
    assert_same(program, lambda net, h: (h @ net.matrix).tanh(), loader, batch, reason)


class Added(torch.autograd.Function):
    """Adds rows of a table, with a backward of its own."""

    @staticmethod
    def forward(ctx, h, table, index):
        ctx.save_for_backward(table, index)
        return h + table[index]

    @staticmethod
    def backward(ctx, grad):
        table, index = ctx.saved_tensors
        return grad, torch.zeros_like(table).index_add(0, index, grad), None


def places(h):
    return torch.arange(len(h)) % 8


READS = {
    "index": lambda net, h: h + net.matrix[places(h)],
    "select": lambda net, h: h + net.matrix.index_select(0, places(h)),
    "gather": lambda net, h: h + net.matrix.gather(0, places(h).view(-1, 1).expand(-1, 8)),
    "chosen by rows": lambda net, h: h + net.matrix[h.argmax(1)],
    "function": lambda net, h: Added.apply(h, net.matrix, places(h)),
    "embedding": lambda net, h: h + nn.functional.embedding(h.argmax(1), net.matrix),
    "einsum": lambda net, h: torch.einsum("nd,de->ne", h, net.matrix),
    "distances": lambda net, h: torch.cdist(h, net.matrix),
}


@pytest.mark.parametrize("name", READS)
def test_gradients_of_parameters_are_plain_tensors(name, loader, batch) -> None:
    def program(model, call, batch):
        found = []
        for _ in range(2):
            out = call()
            grads = torch.autograd.grad(out.sin().sum(), model.matrix, create_graph=True)
            grads[0].square().sum().backward()
            assert {type(g) for g in (*grads, model.matrix.grad)} == {torch.Tensor}
            assert not model.matrix.grad.grad_fn
            found += [grads[0].detach(), model.matrix.grad.clone()]
            del out, grads
        assert not model.matrix._backward_hooks
        return found

    assert_same(program, READS[name], loader, batch, certify=False)
