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
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_geometric.nn import GraphSAGE

from pyg_direct import accelerate
from pyg_direct.models.lazy.modes import Generators
from pyg_direct.models.training import certificate, model_state
from pyg_direct.models.training.accelerate import Acceleration
from pyg_direct.models.training.certificate import Certificate


def test_calls_1_64_4096_and_8192_are_compared(monkeypatch) -> None:
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
    model, seen = Net(lambda net, h: functional.dropout(net.norm(h), 0.5, net.training)), []
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
    with pytest.warns(UserWarning, match=r"differ by|differ in shape"):
        found = run(fast, batch)
    torch.testing.assert_close(found, reference(model, batch))
    unchecked = accelerate(model, loader, certify=False)
    assert not found.equal(run(unchecked, batch)) or fault(found).grad_fn is not None
    assert unchecked.acceleration.reason == ""


def test_a_later_difference_is_noticed_at_the_next_comparison(loader, batch, monkeypatch) -> None:
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
    with pytest.warns(
        UserWarning, match=r"its forward failed on a subset of the rows \(KeyError: 'planted'\)"
    ):
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


def backward_fails(net, h):
    """As that of a GRU before the first layer: of other rows than the forward."""
    return WrongBackward.apply(h) if h.requires_grad else h


class WrongBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, h):
        return h.view_as(h)

    @staticmethod
    def backward(ctx, grad):
        return grad[: len(grad) - (type(grad) is not torch.Tensor)]


def evaluated(net, fast, batch):
    with torch.no_grad():
        run(fast.eval(), batch)
    net.train()


def evaluated_with_gradients(net, fast, batch):
    net.between = lambda net, h: h.detach()
    run(fast.eval(), batch).sum().backward()
    net.between = backward_fails
    net.train()


def frozen(net, fast, batch):
    net.first.requires_grad_(False)
    run(fast, batch).sum().backward()
    net.first.requires_grad_(True)


def inferred(net, fast, batch):
    with torch.inference_mode():
        run(fast, batch)


@pytest.mark.parametrize("before", [evaluated, evaluated_with_gradients, frozen, inferred])
def test_the_first_step_that_learns_is_compared_whatever_came_before(before, loader, batch) -> None:
    net = Net(backward_fails)
    fast = accelerate(net, loader)
    before(net, fast, batch)
    assert fast.acceleration.reason == ""
    with pytest.warns(UserWarning, match="failed on a subset of the rows"):
        run(fast, batch).sum().backward()


def test_the_first_step_whose_arguments_learn_is_compared(loader, batch) -> None:
    net = Net()
    net.forward = lambda x, edge_index: net.second(
        net.first(backward_fails(net, x), edge_index), edge_index
    )
    fast = accelerate(net, loader)
    run(fast, batch).sum().backward()
    assert fast.acceleration.reason == ""
    batch.x.requires_grad_()
    with pytest.warns(UserWarning, match="failed on a subset of the rows"):
        run(fast, batch).sum().backward()
    assert batch.x.grad.shape == batch.x.shape


GENERATOR = torch.Generator()
DRAWS = {
    "dropout": lambda net, h: functional.dropout(h, 0.5, net.training),
    "dropout in place": lambda net, h: functional.dropout(h * 1, 0.5, net.training, True),
    "alpha dropout": lambda net, h: functional.alpha_dropout(h, 0.5, net.training),
    "rrelu": lambda net, h: functional.rrelu(h, training=net.training),
    "gumbel": lambda net, h: functional.gumbel_softmax(h, hard=True),
    "noise": lambda net, h: h + torch.randn_like(h),
    "noise in place": lambda net, h: h + torch.empty_like(h).normal_(),
    "bernoulli": lambda net, h: h * torch.bernoulli(h.sigmoid()),
    "multinomial": lambda net, h: h * torch.multinomial(h.softmax(-1), 1),
    "order of the rows": lambda net, h: h[torch.randperm(h.size(0))],
    "branch": lambda net, h: h if torch.rand(()) < 0.5 else -h,
    "own generator": lambda net, h: h * torch.rand((), generator=net.draws),
    "other generator": lambda net, h: h * torch.rand((), generator=GENERATOR),
    "Python": lambda net, h: h * random.random(),
    "NumPy": lambda net, h: h * float(np.random.rand()),
    "several": lambda net, h: functional.dropout(h + torch.randn_like(h), 0.2) * random.random(),
}


@pytest.mark.parametrize("name", DRAWS)
def test_models_that_draw_are_compared_with_the_same_numbers(
    name, loader, batch, monkeypatch
) -> None:
    net = Net(DRAWS[name])
    fast = accelerate(net, loader)
    run(fast, batch).sum().backward()
    assert fast.acceleration.reason == ""
    assert "not compared" not in fast.acceleration.forms()
    planted(monkeypatch, lambda t: t * 1.01)
    with pytest.warns(UserWarning, match="its outputs differ"):
        run(accelerate(net, loader), batch)


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


def test_a_value_stored_only_by_the_plain_model_is_noticed(loader, batch) -> None:
    fast = accelerate(Net(stores_plain), loader)
    with pytest.warns(UserWarning, match="what it holds as 'scale' differs by"):
        run(fast, batch)


def test_nan_is_a_difference_unless_both_have_it() -> None:
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


def test_a_model_that_cannot_be_copied_is_not_compared(loader, batch, monkeypatch) -> None:
    model, said = Net(), []
    monkeypatch.setattr(certificate.logger, "warning", lambda *args: said.append(args))
    model.lock = threading.Lock()
    fast = accelerate(model, loader)
    for _ in range(64):
        torch.testing.assert_close(run(fast, batch), reference(model, batch))
    assert fast.acceleration.reason == ""
    assert fast.acceleration.forms()["not compared"].startswith("it cannot be copied (TypeError")
    assert [args[1] for args in said] == ["Net"]


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


def test_a_forward_that_writes_to_its_arguments_has_the_plain_output(loader, batch) -> None:
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
def test_a_check_without_gradients_keeps_the_model_accelerated(context, loader, batch) -> None:
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
        "outputs": [one], "gradients": {"parameter 'w'": one}, "held": {"mean": one, "step": 1},
        "generators": Generators([]),
    }  # fmt: skip
    return certificate.Outcome(**{**given, **changes})


OTHER = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, ""),
        ({"outputs": [OTHER]}, "its outputs differ by 1 "),
        ({"outputs": [torch.ones(3)]}, "its outputs differ in shape"),
        ({"gradients": {"parameter 'w'": OTHER}}, "gradients of its parameters differ by 1 "),
        ({"gradients": {"parameter 'w'": None}}, "gradients of its parameters differ by 1 "),
        ({"gradients": {}}, "gradients of its parameters differ by 1 "),
        ({"held": {"mean": OTHER, "step": 1}}, "what it holds as 'mean' differs by 1 "),
        ({"held": {"mean": torch.ones(3), "step": 1}}, "its forward changes 'mean'"),
        ({"held": {"mean": torch.ones(2), "step": 2}}, "its forward changes 'step'"),
        ({"held": {"mean": torch.ones(2)}}, "its forward changes 'step'"),
        ({"held": {"mean": torch.ones(2), "step": 1, "x": 1}}, "its forward changes 'x'"),
    ],
    ids=str,
)
def test_differences_of_outcomes_name_what_differs(changes, message) -> None:
    found = certificate.differences(outcome(**changes), outcome())
    assert len(found) == bool(message)
    assert message in next(iter(found.values()), "")


@pytest.mark.parametrize(
    ("kind", "draw"),
    [("torch", torch.rand), ("NumPy", np.random.rand), ("Python", lambda n: random.random())],
)
def test_other_draws_are_differences(kind, draw) -> None:
    before = outcome()
    draw(1)
    found = certificate.differences(outcome(), before)
    assert found == {
        kind: f"its forward draws random numbers of {kind}, which a second call does not repeat"
    }


@pytest.mark.parametrize(("training", "statistics"), [(True, True), (True, False), (False, False)])
def test_models_are_compared_unless_their_norms_see_fewer_rows(
    training: bool, statistics: bool
) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).train(training)
    same = Acceleration(model, statistics, True)._same_as_plain()
    assert same == (statistics or not training)
