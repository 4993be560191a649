"""What the comparison with the plain model notices, and what it leaves as it was."""

import copy
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from between import Net, reference, run
from models import OUT, WIDTH
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GraphSAGE

from pyg_direct import accelerate
from pyg_direct.models import certificate, model_state
from pyg_direct.models.accelerate import Acceleration
from pyg_direct.models.certificate import Certificate


def test_which_calls_are_compared(monkeypatch) -> None:
    found = Certificate()
    due = [call for call in range(1, 9000) if found.is_due()]
    assert due == [1, 64, 4096, 8192]


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


def planted(monkeypatch, fault) -> None:
    """Let a fault change what an accelerated step returns."""
    original = Acceleration._step
    monkeypatch.setattr(Acceleration, "_step", lambda self, *args: fault(original(self, *args)))


@pytest.mark.parametrize(
    "fault", [lambda t: t * 1.01, lambda t: t.detach() + 0 * t.sum(), lambda t: t[:-1]]
)
def test_planted_faults_are_noticed(fault, loader, batch, monkeypatch) -> None:
    model = Net()
    planted(monkeypatch, fault)
    fast = accelerate(model, loader)
    with pytest.warns(UserWarning, match=r"differ by|other shapes"):
        found = run(fast, batch)
    torch.testing.assert_close(found, reference(model, batch))
    unchecked = accelerate(model, loader, certify=False)
    assert not found.equal(run(unchecked, batch)) or fault(found).grad_fn is not None
    assert unchecked.acceleration.reason == ""


def test_what_differs_later_is_noticed_at_the_next_comparison(loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(certificate, "CALLS", (1, 3))
    model = Net()
    fast = accelerate(model, loader)
    run(fast, batch)
    planted(monkeypatch, lambda t: t * 3)
    run(fast, batch)
    with pytest.warns(UserWarning, match=r"runs Net as it is: its outputs differ by .*\(call 3\)"):
        found = run(fast, batch)
    torch.testing.assert_close(found, reference(model, batch))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # said once
        torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert "differ" in fast.acceleration.reason


def test_a_step_that_fails_runs_plain(loader, batch, monkeypatch) -> None:
    model = Net()
    fast = accelerate(model, loader)
    run(fast, batch)

    def fails(*args):
        raise KeyError("planted")

    monkeypatch.setattr(Acceleration, "_step", fails)
    with pytest.warns(UserWarning, match=r"it fails on some of the rows \(KeyError: 'planted'\)"):
        found = run(fast, batch)
    torch.testing.assert_close(found, reference(model, batch))
    monkeypatch.setattr(Acceleration, "_step", lambda *args: pytest.fail("tried again"))
    torch.testing.assert_close(run(fast, batch), reference(model, batch))


def test_a_step_that_runs_out_of_memory_says_nothing_of_the_model(
    loader, batch, monkeypatch
) -> None:
    model = Net()
    fast = accelerate(model, loader, certify=False)
    with monkeypatch.context() as patched:
        patched.setattr(Acceleration, "_step", planted_out_of_memory)
        with pytest.raises(torch.cuda.OutOfMemoryError, match="planted"):
            run(fast, batch)
    torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.forms() != {}


def planted_out_of_memory(*args):
    raise torch.cuda.OutOfMemoryError("planted")


def test_numbers_of_random_models_are_not_drawn_for_a_comparison(loader, batch) -> None:
    drawn = []
    for certify in (True, False):
        fast = accelerate(Net(lambda net, h: h + torch.rand(())), loader, certify=certify)
        torch.manual_seed(3)
        run(fast, batch)
        drawn.append(torch.rand(4))
    assert torch.equal(*drawn)


def stores_plain(net, h):
    if type(h) is torch.Tensor:
        net.scale = h.detach().mean()
    return h


def test_what_only_the_plain_model_stores_is_noticed(loader, batch) -> None:
    fast = accelerate(Net(stores_plain), loader)
    with pytest.warns(UserWarning, match="its forward changes 'scale', which is not repeated"):
        run(fast, batch)


def test_numbers_that_are_none_are_differences() -> None:
    one, none = torch.ones(2), torch.tensor([1.0, float("nan")])
    assert "differ by inf" in certificate._difference("they differ", none, one, 1.0)
    assert "differ by inf" in certificate._difference("they differ", one, none, 1.0)
    assert certificate._difference("they differ", none, none.clone(), 1.0) == ""


def test_products_under_autocast_may_round_more() -> None:
    one = torch.ones(2)
    assert "differ by" in certificate._difference("they differ", one * 1.01, one, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert certificate._difference("they differ", one * 1.01, one, 1.0) == ""


def test_lists_that_a_model_keeps_have_what_they_had(loader, batch) -> None:
    model = Net(lambda net, h: (net.losses.append(2), h)[1])
    model.losses.append(1)
    run(accelerate(model, loader), batch)
    assert model.losses == [1, 2]


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
    out = fast(x, batch.edge_index)
    torch.testing.assert_close(
        out, model.forward(batch.x.clone(), batch.edge_index.as_tensor())[: len(out)]
    )
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
    again = copy.deepcopy(accelerate(Net(), loader, batch_norm="needed", certify=False))
    assert again.acceleration._certificate is None
    assert not again.acceleration.all_statistics


def outcome(**changes):
    one = torch.ones(2)
    given = {
        "outputs": [one], "gradients": [one], "changed": set(), "buffers": {"mean": one},
        "drew": set(),
    }  # fmt: skip
    return certificate._Outcome(**{**given, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"outputs": [torch.tensor([1.0, 2.0])]}, "its outputs differ by 1 "),
        ({"outputs": [torch.ones(3)]}, "its outputs have other shapes"),
        ({"gradients": [torch.tensor([1.0, 2.0])]}, "gradients of its parameters differ by 1 "),
        ({"gradients": [None]}, "gradients of its parameters differ by 1 "),
        ({"buffers": {"mean": torch.tensor([1.0, 2.0])}}, "the buffer 'mean' differs by 1 "),
        ({"changed": {"step"}}, ""),
        ({"drew": {"torch"}}, ""),
    ],
    ids=str,
)
def test_in_what_outcomes_differ(changes, message) -> None:
    found = certificate._compared(outcome(**changes), outcome())
    assert message in found
    assert (found == "") == (message == "")


def test_what_the_plain_model_alone_does() -> None:
    lost = certificate._compared(outcome(), outcome(changed={"step"}))
    assert lost == "its forward changes 'step', which is not repeated"
    drawn = certificate._compared(outcome(), outcome(drew={"NumPy"}))
    assert drawn == "its forward draws random numbers of NumPy, which is not repeated"
    both = outcome(drew={"torch"}, outputs=[torch.zeros(2)])
    assert certificate._compared(both, outcome(drew={"torch"})) == "", "numbers are random ones"


@pytest.mark.parametrize(("training", "statistics"), [(True, True), (True, False), (False, False)])
def test_models_are_compared_unless_their_norms_see_fewer_rows(
    training: bool, statistics: bool
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train(training)
    same = Acceleration(model, statistics, True)._same_as_plain()
    assert same == (statistics or not training)
