"""On which batches steps on the needed rows pay."""

import warnings

import pytest
import torch
from between import Net, reference, run

from pyg_direct import accelerate
from pyg_direct.models.training import costs
from pyg_direct.models.training.accelerate import Acceleration


@pytest.fixture(autouse=True)
def units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(costs, "COST_OF_BATCH", 1000)
    monkeypatch.setattr(costs, "COST_OF_CALL", 10)


def test_the_first_step_shows_what_there_is_to_save() -> None:
    made = costs.StepCosts()
    assert made.pay(1)
    made.learn(num_edges=50, entries=3000, calls=20, products=0)  # 60 an edge, for 1200
    assert not made.pay(19)
    assert made.pay(20)


def test_products_with_dense_matrices_count() -> None:
    made = costs.StepCosts()
    made.learn(num_edges=50, entries=2000, calls=20, products=1000 * costs.PRODUCTS_PER_ENTRY)
    assert not made.pay(19)
    assert made.pay(20)


def test_a_step_without_edges_shows_nothing() -> None:
    made = costs.StepCosts()
    made.learn(num_edges=0, entries=0, calls=20, products=0)
    assert made.pay(1)


def test_models_without_messages_never_pay() -> None:
    made = costs.StepCosts()
    made.learn(num_edges=50, entries=0, calls=20, products=0)
    assert not made.pay(1 << 40)


class Clock:
    """Goes on when a step says so, in place of the time."""

    def __init__(self, monkeypatch) -> None:
        self.now, self.plain_calls = 0.0, []
        monkeypatch.setattr(costs.clock, "now", self.read)

    def read(self) -> float:
        self.now += 1e-6
        return self.now

    def step(self, seconds, backward=None, name=""):
        """Return a function that takes so long, and whose output has a backward."""

        def taken():
            self.now += seconds
            if name:
                self.plain_calls.append(name)
            if backward is None:
                return torch.zeros(2)
            x = torch.zeros(2, requires_grad=True)
            x.register_hook(lambda grad: self.pass_by(backward))
            return x * 1

        return taken

    def pass_by(self, seconds) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch) -> Clock:
    return Clock(monkeypatch)


def timed(times, needed, plain, kind="training", calls=40) -> None:
    for _ in range(calls):
        out = times.run(kind, 10, needed, plain)
        if out.requires_grad:
            out.sum().backward()


def test_slower_steps_are_told_after_some_of_the_plain_model(clock) -> None:
    times = costs.StepTimes()
    timed(times, clock.step(3.0), clock.step(2.0, name="plain"))
    assert "took 1.50 times as long" in times.slower["training"]
    assert len(clock.plain_calls) == len(costs.PLAIN_CALLS)
    timed(times, clock.step(1.0), clock.step(2.0), kind="evaluation")
    assert list(times.slower) == ["training"]


def test_the_time_of_the_backward_counts(clock) -> None:
    slow, fast = costs.StepTimes(), costs.StepTimes()
    timed(slow, clock.step(1.0, backward=4.0), clock.step(2.0, backward=1.0))
    assert "took 1.67 times as long" in slow.slower["training"]
    timed(fast, clock.step(2.0, backward=1.0), clock.step(1.0, backward=4.0))
    assert fast.slower == {}


def test_work_that_a_gpu_has_yet_to_do_counts(clock, monkeypatch) -> None:
    gpu, waiting = torch.device("cuda"), []

    def launch(seconds):
        def launched():
            waiting.append(seconds)  # and the call returns at once
            x = torch.zeros(2, requires_grad=True)
            x.register_hook(lambda grad: waiting.append(seconds))
            return x * 1

        return launched

    def wait_for(device) -> None:
        assert device == gpu
        clock.pass_by(sum(waiting))
        waiting.clear()

    monkeypatch.setattr(costs, "wait_for", wait_for)
    times = costs.StepTimes()
    for _ in range(costs.TIMED_CALLS):
        times.run("training", 10, launch(3.0), launch(2.0), gpu).sum().backward()
    assert "took 1.50 times as long" in times.slower["training"]


def test_steps_without_their_backward_show_nothing(clock) -> None:
    times = costs.StepTimes()
    for _ in range(40):
        times.run("training", 10, clock.step(3.0, 1.0), clock.step(1.0, 1.0, name="plain"))
    assert times.slower == {}
    assert len(clock.plain_calls) == len(costs.PLAIN_CALLS)


def test_nothing_is_timed_where_torch_is_to_be_deterministic(clock) -> None:
    times = costs.StepTimes()
    torch.use_deterministic_algorithms(True)
    try:
        timed(times, clock.step(3.0), clock.step(1.0, name="plain"))
    finally:
        torch.use_deterministic_algorithms(False)
    assert times.slower == {}
    assert clock.plain_calls == []


def test_a_model_that_is_slower_runs_as_it_is_and_says_so_once(
    clock, loader, batch, monkeypatch
) -> None:
    monkeypatch.setattr(costs.StepCosts, "pay", lambda *args: True)
    original = Acceleration._step

    def slow(*args):
        clock.pass_by(10.0)
        return original(*args)

    monkeypatch.setattr(Acceleration, "_step", slow)
    net = Net()
    fast, said = accelerate(net, loader), []
    for _ in range(costs.TIMED_CALLS + 3):
        with warnings.catch_warnings(record=True) as found:
            warnings.simplefilter("always")
            out = run(fast, batch)
        said += [str(w.message) for w in found]
        torch.testing.assert_close(out, reference(net, batch))
        out.sum().backward()
    assert len(said) == 1
    assert "as long as plain ones" in said[0]
    assert fast.acceleration.reason in said[0]
    with torch.no_grad():
        run(fast.eval(), batch)
    assert fast.acceleration.reason == ""
