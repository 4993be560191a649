"""State of every kind after steps that are compared or fail: that of the plain model."""

import array
import collections
import functools
import itertools
import logging
import os
import random
import threading
import time
import types
import weakref
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from between import Net, reference, run
from torch import nn
from torch.nn.utils import prune

from pyg_direct import accelerate
from pyg_direct.models.lazy.saved_tensors import SavedTensors
from pyg_direct.models.training import certificate, model_state, undo
from pyg_direct.models.training.model_state import ModelState

GLOBAL = {"n": 0}
COUNT = 0


@dataclass
class Record:
    steps: int
    kept: list


class Slots:
    __slots__ = ("later", "n")

    def __init__(self) -> None:
        self.n = 0


class Memory(dict):
    """A dict with attributes, which copies share."""

    total = 0

    def __deepcopy__(self, memo):
        return self


def added(box, key=0, by=1):
    box[key] += by
    return box[key]


def grown(values, value=1.0):
    values.append(value)
    return len(values)


def counted(value):
    value.n += 1
    return value.n


def slots(value):
    value.later = value.n = value.n + 1
    return value.n


def in_memory(value):
    value.total += 1
    value["n"] = value.get("n", 0) + 1
    return value.total + value["n"]


def in_globals():
    global COUNT
    COUNT += 1
    GLOBAL["n"] += 1
    return COUNT + GLOBAL["n"]


def closure():
    n, seen = 0, []

    def count():
        nonlocal n
        n += 1
        seen.append(n)
        return n + len(seen)

    return count


def with_default(seen=[0]):  # noqa: B006 (it is what is looked at)
    seen[0] += 1
    return seen[0]


def by_attribute():
    by_attribute.n = getattr(by_attribute, "n", 0) + 1
    return by_attribute.n


def of_class(net):
    type(net).n = getattr(type(net), "n", 0) + 1
    return type(net).n


def replaced_data(tensor):
    tensor.data = tensor + 1
    return float(tensor.sum())


def embedded(net):
    """Scale the rows of an embedding in place, as `max_norm` does."""
    return net.held(torch.tensor([0, 1])).sum()


# What a model holds, and how it is changed and read by each forward.
STATE = {
    "number": (lambda: 0, lambda net: setattr(net, "held", net.held + 1) or net.held),
    "list": (list, lambda net: grown(net.held)),
    "dict of lists": (lambda: {"a": [1]}, lambda net: grown(net.held["a"])),
    "list of lists": (lambda: [[0]], lambda net: added(net.held[0])),
    "tuple of a list": (lambda: ([0],), lambda net: added(net.held[0])),
    "set": (set, lambda net: net.held.add(len(net.held)) or len(net.held)),
    "deque": (lambda: collections.deque([1], 3), lambda net: grown(net.held)),
    "defaultdict": (lambda: collections.defaultdict(int), lambda net: added(net.held)),
    "Counter": (lambda: collections.Counter(a=2), lambda net: added(net.held, "a")),
    "OrderedDict": (
        lambda: collections.OrderedDict(a=1, b=1, c=1),
        lambda net: net.held.move_to_end(next(iter(net.held))) or ord(next(iter(net.held))),
    ),
    "namespace": (lambda: types.SimpleNamespace(n=0), lambda net: counted(net.held)),
    "record": (lambda: Record(0, []), lambda net: grown(net.held.kept)),
    "slots": (Slots, lambda net: slots(net.held)),
    "shared by copies": (Memory, lambda net: in_memory(net.held)),
    "array": (lambda: np.zeros(3), lambda net: added(net.held)),
    "array of objects": (lambda: np.array([Slots(), None]), lambda net: slots(net.held[0])),
    "structured array": (
        lambda: np.zeros(2, [("n", "i8")]), lambda net: added(net.held["n"]),
    ),
    "Python's array": (lambda: array.array("d", [0.0]), lambda net: added(net.held)),
    "bytes": (lambda: bytearray(2), lambda net: added(net.held)),
    "RandomState": (lambda: np.random.RandomState(0), lambda net: net.held.rand()),
    "Generator of NumPy": (lambda: np.random.default_rng(0), lambda net: net.held.random()),
    "generators in a list": (
        lambda: [np.random.default_rng(0), random.Random(0), torch.Generator().manual_seed(0)],
        lambda net: (
            net.held[0].random() + net.held[1].random()
            + float(torch.rand((), generator=net.held[2]))
        ),
    ),
    "tensor": (lambda: torch.zeros(()), lambda net: net.held.add_(1)),
    "tensor in a list": (lambda: [torch.zeros(2)], lambda net: added(net.held[0]).clone()),
    "tensor in a record": (lambda: Record(0, torch.zeros(2)), lambda net: added(net.held.kept)),
    "data of a tensor": (lambda: torch.zeros(2), lambda net: replaced_data(net.held)),
    "written by .data": (lambda: torch.zeros(()), lambda net: float(net.held.data.add_(1))),
    "average": (
        lambda: torch.ones(8), lambda net: net.held.lerp_(torch.zeros(8), 0.5).sum().clone(),
    ),
    "tensor with a history": (
        lambda: torch.ones(2, requires_grad=True) * 2, lambda net: replaced(net).detach(),
    ),
    "buffer": (lambda: nn.BatchNorm1d(3), lambda net: net.held(torch.rand(4, 3)).amax()),
    "parameter": (
        lambda: nn.Embedding.from_pretrained(torch.full((3, 4), 9.0), False, max_norm=1.0),
        embedded,
    ),
    "iterator": (itertools.count, lambda net: next(net.held)),
    "iterator in a list": (
        lambda: [iter([1.0, 4.0, 9.0, 16.0])], lambda net: next(net.held[0]),
    ),
    "closure": (closure, lambda net: net.held()),
    "partial": (lambda: functools.partial(grown, []), lambda net: net.held()),
    "method of a list": (lambda: [0].append, lambda net: appended(net.held)),
    "method of an object": (lambda: Methods().count, lambda net: net.held()),
    "weak": (lambda: None, lambda net: counted(weak(net)())),
    "default": (lambda: with_default, lambda net: net.held()),
    "attribute of a function": (lambda: None, lambda net: by_attribute()),
    "attribute of the class": (lambda: None, of_class),
    "globals": (lambda: None, lambda net: in_globals()),
    "draws of torch": (lambda: None, lambda net: float(torch.rand(()))),
    "draws of Python": (lambda: None, lambda net: random.random()),
    "draws of NumPy": (lambda: None, lambda net: float(np.random.rand())),
    "in another part": (lambda: nn.ModuleList([nn.Tanh()]), lambda net: in_part(net.held[0])),
}  # fmt: skip


class Methods:
    def __init__(self) -> None:
        self.n = 0

    def count(self) -> int:
        return counted(self)


def replaced(net):
    net.held = net.held * 2
    return net.held.sum()


def appended(append):
    append(1)
    return len(append.__self__)


def weak(net):
    if not hasattr(net, "owner"):
        net.owner = types.SimpleNamespace(n=0)
    return lambda: net.owner


def in_part(part):
    part.seen = [*getattr(part, "seen", []), 1]
    return len(part.seen)


class Holds(Net):
    def __init__(self, name) -> None:
        make, touch = {**STATE, **MORE}[name]
        super().__init__(lambda net, h: h.relu() * (1 + 0.1 * touch(net)))
        self.held = make()


def begun():
    """Put back what lies outside of models."""
    global COUNT
    COUNT, GLOBAL["n"], with_default.__defaults__[0][0] = 0, 0, 0
    by_attribute.n = 0
    Holds.n = 0
    random.seed(1), np.random.seed(1), torch.manual_seed(1)


def steps(model, call, count=3):
    """Return outputs and gradients of some steps."""
    found = []
    for _ in range(count):
        model.zero_grad()
        out = call()
        out.square().sum().backward()
        found += [out.detach(), model.first.lin_l.weight.grad.clone()]
    return found, float(torch.rand(())), random.random(), float(np.random.rand())


def both(name, batch, loader, count=3, **options):
    torch.manual_seed(0)
    begun()
    model = Holds(name)
    begun()
    expected = steps(model, lambda: reference(model, batch), count)
    torch.manual_seed(0)
    begun()
    model = Holds(name)
    begun()
    fast = accelerate(model, loader, **options)
    return steps(model, lambda: run(fast, batch), count), expected, fast.acceleration


# Of these not all can be put back; then nothing is compared.
MORE = {
    "cycle": (lambda: itertools.cycle([1.0, 2.0, 5.0]), lambda net: next(net.held)),
    "chain": (lambda: itertools.chain([1.0], [2.0, 5.0]), lambda net: next(net.held)),
    "map": (lambda: map(float, [1, 2, 5]), lambda net: next(net.held)),
    "zip": (lambda: zip([1, 2, 5], [3, 1, 4], strict=True), lambda net: sum(next(net.held))),
    "weak dictionary": (lambda: weakref.WeakValueDictionary(), lambda net: held_weakly(net)),
    "norm by a hook": (
        lambda: nn.utils.spectral_norm(nn.Linear(2, 2)), lambda net: net.held(torch.ones(2)).sum(),
    ),
    "parametrization": (
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(2, 2)),
        lambda net: net.held(torch.ones(2)).sum(),
    ),
    "pruned": (
        lambda: prune.l1_unstructured(nn.Linear(2, 2), "weight", 1),
        lambda net: net.held(torch.ones(2)).sum(),
    ),
    "script": (lambda: torch.jit.script(Counting()), lambda net: net.held(torch.ones(()))),
    "state of a recurrent net": (lambda: nn.GRUCell(2, 2), lambda net: recurrent(net)),
}  # fmt: skip


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x):
        self.n += 1
        return x * self.n


def held_weakly(net):
    net.owners = [*getattr(net, "owners", []), Methods()]
    net.held[len(net.owners)] = net.owners[-1]
    return len(net.held)


def recurrent(net):
    net.hidden = net.held(torch.ones(1, 2), getattr(net, "hidden", None)).detach()
    return net.hidden.sum()


def written_rows(net, index):
    net.held[index] = net.held[index] * 0.5 + 1
    return net.held[index].sum()


def written_twice(net):
    rows = torch.tensor([3, 1])
    net.held[rows] += 1
    net.held[rows[:1]] *= 3
    return net.held[rows].sum()


LARGE = {
    "rows": lambda net: written_rows(net, torch.tensor([4, 0, 7])),
    "rows of a mask": lambda net: written_rows(net, torch.arange(600) % 7 == 0),
    "rows twice": written_twice,
    "a run of rows": lambda net: written_rows(net, slice(2, 5)),
    "one row": lambda net: net.held[3].add_(1).sum().clone(),
    "copied rows": lambda net: net.held.index_copy_(0, torch.tensor([2]), torch.ones(1, 3))[
        2
    ].sum(),
    "added rows": lambda net: net.held.index_add_(0, torch.tensor([2]), torch.ones(1, 3))[2].sum(),
    "filled rows": lambda net: net.held.index_fill_(0, torch.tensor([2]), 5.0)[2].sum(),
    "a column": lambda net: net.held[:, 1].add_(1)[0].clone(),
}


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")
@pytest.mark.parametrize("name", LARGE)
def test_parts_of_large_tensors_that_a_failed_step_wrote_are_put_back(
    name, loader, batch, monkeypatch
) -> None:
    monkeypatch.setattr(model_state, "LARGE_BYTES", 4096)
    monkeypatch.setitem(STATE, name, (lambda: torch.zeros(600, 3), LARGE[name]))
    fails_from(2, monkeypatch)
    found, expected, acceleration = both(name, batch, loader, certify=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert "planted" in acceleration.reason


def test_a_large_tensor_that_a_failed_step_wrote_to_as_a_whole_is_named(
    loader, batch, monkeypatch
) -> None:
    said = []
    monkeypatch.setattr(undo.logger, "warning", lambda *args: said.append(args))
    monkeypatch.setattr(model_state, "LARGE_BYTES", 4096)
    fails_from(1, monkeypatch)
    net = Net(lambda net, h: h + net.held.add_(1)[0, 0].clone())
    net.held = torch.zeros(600, 3)
    with pytest.warns(UserWarning, match="planted"):
        run(accelerate(net, loader, certify=False), batch)
    assert net.held[0, 0] == 2
    assert said == [("What was written to tensors of shapes %s stays", {(600, 3)})]


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("name", [*STATE, *MORE])
def test_a_comparison_moves_no_state_on(name, loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(certificate, "EVERY", 1)
    found, expected, acceleration = both(name, batch, loader)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert acceleration.reason == ""
    assert name in MORE or "not compared" not in acceleration.forms()


def test_objects_that_are_arguments_are_as_one_call_leaves_them(loader, batch) -> None:
    net = Net()

    def forward(x, edge_index, log, options):
        log.steps.append(len(log.steps))
        options["n"] = options.get("n", 0) + 1
        return net.second(net.first(x, edge_index), edge_index) * len(log.steps) * options["n"]

    net.forward = forward
    log, options = types.SimpleNamespace(steps=[]), Memory()
    fast = accelerate(net, loader)
    out = fast(batch.x, batch.edge_index, log, options)
    assert log.steps == [0]
    net.forward = lambda x, edge_index: net.second(net.first(x, edge_index), edge_index)
    torch.testing.assert_close(out[: batch.batch_size], reference(net, batch))
    assert fast.acceleration.reason == ""


def fails_from(number, monkeypatch):
    """Let steps fail at the end, from some number on."""
    taken = itertools.count(1)

    def check(numbers):
        if next(taken) >= number:
            raise KeyError("planted")

    monkeypatch.setattr(SavedTensors, "check", check)


@pytest.mark.filterwarnings("ignore:pyg_direct.accelerate runs")
@pytest.mark.parametrize("copied_bytes", [0, 1 << 20])
@pytest.mark.parametrize("name", STATE)
def test_a_step_that_fails_is_taken_once(name, copied_bytes, loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(undo, "COPIED_BYTES", copied_bytes)
    fails_from(2, monkeypatch)
    found, expected, acceleration = both(name, batch, loader, certify=False)
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert "planted" in acceleration.reason


def lock(net):
    return threading.Lock()


def lines(net):
    return (line for line in range(9))


@pytest.mark.parametrize("held", [lock, lines])
def test_a_model_holding_uncopyable_objects_is_not_compared(held, loader, batch) -> None:
    net = Net(lambda net, h: h * float(next(net.held, 5) if held is lines else 5))
    net.held = held(net)
    fast = accelerate(net, loader)
    out = run(fast, batch)
    net.between = lambda net, h: h * (0.0 if held is lines else 5.0)
    torch.testing.assert_close(out, reference(net, batch))
    assert "cannot be copied" in fast.acceleration.forms()["not compared"]
    assert fast.acceleration.reason == ""


def test_a_model_that_does_not_repeat_itself_is_not_compared(loader, batch) -> None:
    net = Net(lambda net, h: h * (1 + int.from_bytes(os.urandom(4), "big")))
    fast = accelerate(net, loader)
    run(fast, batch)
    assert fast.acceleration.reason == ""
    assert "run twice, its outputs differ" in fast.acceleration.forms()["not compared"]


def test_times_that_a_model_notes_are_no_differences(loader, batch) -> None:
    def timed(net, h):
        net.seconds, net.mean_of_h = time.perf_counter(), h.mean().item()
        return h

    fast = accelerate(Net(timed), loader)
    run(fast, batch)
    assert fast.acceleration.reason == ""


HOOKS = {
    "forward": lambda part, seen: part.register_forward_hook(lambda *args: seen.append(1)),
    "before": lambda part, seen: part.register_forward_pre_hook(lambda *args: seen.append(1)),
    "backward": lambda part, seen: part.register_full_backward_hook(lambda *args: seen.append(1)),
    "before the backward": lambda part, seen: part.register_full_backward_pre_hook(
        lambda *args: seen.append(1)
    ),
    "parameter": lambda part, seen: part.lin_l.weight.register_hook(lambda grad: seen.append(1)),
    "gradient": lambda part, seen: part.lin_l.weight.register_post_accumulate_grad_hook(
        lambda parameter: seen.append(1)
    ),
    "method": lambda part, seen: part.register_full_backward_hook(Seen(seen).see),
}


class Seen:
    def __init__(self, seen) -> None:
        self.seen = seen

    def see(self, *args) -> None:
        self.seen.append(1)


@pytest.mark.parametrize("name", HOOKS)
def test_hooks_run_once_a_step(name, loader, batch, monkeypatch) -> None:
    monkeypatch.setattr(certificate, "EVERY", 2)
    net, seen = Net(), []
    HOOKS[name](net.second, seen)
    fast = accelerate(net, loader)
    for _ in range(10):
        run(fast, batch).sum().backward()
    assert seen == [1] * 10
    assert fast.acceleration.reason == ""


def test_arguments_of_a_step_that_fails_are_as_before(loader, batch, monkeypatch) -> None:
    fails_from(1, monkeypatch)
    net = Net()

    def forward(x, edge_index, bank, log):
        bank[:2] += 1
        log.total = getattr(log, "total", 0) + 1
        x += 1
        return net.second(net.first(x, edge_index), edge_index) * bank.sum() * log.total

    net.forward = forward
    bank, log, x = torch.zeros(5000), types.SimpleNamespace(), batch.x.clone()
    with pytest.warns(UserWarning, match="planted"):
        accelerate(net, loader, certify=False)(x, batch.edge_index, bank, log)
    assert bank.sum() == 2
    assert log.total == 1
    torch.testing.assert_close(x, batch.x + 1)


def test_objects_shared_by_functions_are_restored_in_place() -> None:
    shared = [1, {"a": [2]}]
    net = Net(lambda net, h: shared)
    state = ModelState(net)
    shared[1]["a"].append(3)
    shared.append(4)
    state.restore()
    assert shared == [1, {"a": [2]}]


def test_more_objects_than_a_model_has_are_not_followed(monkeypatch) -> None:
    monkeypatch.setattr(model_state, "MOST_OBJECTS", 50)
    net = Net()
    net.held = [[i] for i in range(1000)]
    assert len(ModelState(net)._seen) == 50


def test_objects_of_libraries_are_not_followed() -> None:
    net = Net()
    net.lock, net.log, net.data = threading.Lock(), logging.getLogger("x"), weakref.ref(net)
    kinds = {type(value) for value in ModelState(net)._seen.values()}
    assert logging.Manager not in kinds
