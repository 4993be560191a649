"""Modes of torch that hold for a part of a forward: what is computed later is computed in them."""

from contextlib import contextmanager, nullcontext

import pytest
import torch
from batches import homogeneous_graph, loader_of, outputs_and_gradients, plain
from between import Net
from torch import nn

from pyg_direct import accelerate, inference
from pyg_direct.models.lazy.modes import AsCalled, Modes, modes_now


@contextmanager
def default_dtype(dtype=torch.float64):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def flushing():
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def deterministic(warn_only=False):
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@contextmanager
def precision(name="medium"):
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(name)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def half(dtype=torch.bfloat16, **options):
    return torch.autocast("cpu", dtype, **options)


def full():
    return torch.autocast("cpu", enabled=False)


def linear(net, h):
    return net.linear(h).to(h.dtype)


def ratio(net, h):
    """Numbers of the default dtype, of integers and of truth."""
    counts = torch.arange(h.size(0)).view(-1, 1)
    return h + ((counts * 1.1 + (h > 0) * 0.1 + torch.full((), 0.1)).double() - 0.1).to(h.dtype)


def of_integers(net, h):
    return h * ((h > 0).long() / 3).double().sub(0.1).to(h.dtype)


def tiny(net, h):
    return (h * 1e-39) * 1e37


def summed(net, h):
    index = torch.arange(h.size(0)) % 5
    return h + torch.zeros(h.size(0), 8).index_add(0, index, h)


def largest(net, h):
    """Read a number, and rows that are computed when the mode is over."""
    doubled = h.detach() * 2
    return float(doubled.max()), doubled


def inferred(net, h):
    with torch.inference_mode():
        number, rows = largest(net, h)
    return h * number + rows


# What holds around the model, and then within it for what the function does.
CASES = {
    "no autocast in autocast": (half, full, lambda net, h: linear(net, h.float())),
    "no autocast in that of float16": (
        lambda: half(torch.float16), full, lambda net, h: linear(net, h.float()),
    ),
    "autocast in none": (nullcontext, half, linear),
    "autocast of another dtype": (half, lambda: half(torch.float16), linear),
    "autocast without a cache": (half, lambda: half(cache_enabled=False), linear),
    "autocast": (half, nullcontext, linear),
    "default dtype": (nullcontext, default_dtype, ratio),
    "default dtype of integers": (nullcontext, default_dtype, of_integers),
    "default dtype around": (default_dtype, lambda: default_dtype(torch.float32), ratio),
    "flush": (nullcontext, flushing, tiny),
    "flush around": (flushing, nullcontext, tiny),
    "deterministic": (nullcontext, deterministic, summed),
    "deterministic with warnings": (nullcontext, lambda: deterministic(True), summed),
    "precision": (nullcontext, precision, linear),
    "no gradients": (nullcontext, torch.no_grad, lambda net, h: h.detach() * 2),
    "inference mode": (nullcontext, nullcontext, inferred),
}  # fmt: skip


class InModes(Net):
    def __init__(self, name) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.around, within, does = CASES[name]

        def between(net, h):
            with within():
                h = does(net, h)
            return h * 1.1

        self.between = between

    def call(self, model, *given):
        with self.around():
            return model(*given)


@pytest.fixture(scope="module")
def graph():
    return homogeneous_graph(torch.float32)


@pytest.mark.parametrize("certify", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_accelerated_steps_run_in_the_modes_of_the_caller(name, certify, graph) -> None:
    torch.manual_seed(0)
    net, loader = InModes(name), loader_of(graph)
    fast = accelerate(net, loader, certify=certify)
    batch = next(iter(loader))

    def both(model, edges):
        given = {"x": batch.x, "edge_index": edges}
        run = nn.Module()
        run.net, run.forward = net, lambda x, edge_index: net.call(model, x, edge_index).float()
        return outputs_and_gradients(run, given, batch.batch_size)

    expected = both(net, plain(batch.edge_index))
    found = both(fast, batch.edge_index)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert fast.acceleration.reason == ""
    assert modes_now() == Modes(torch.float32, 0, "highest", False)


@pytest.mark.parametrize("options", [{"num_workers": 1}, {"num_workers": 2}], ids=["1", "2"])
@pytest.mark.parametrize("name", CASES)
def test_inference_runs_in_the_modes_of_the_caller_and_restores_them(
    name, options, graph, monkeypatch
) -> None:
    monkeypatch.setattr("pyg_direct.models.inference.executor.BLOCK_BYTES", 1 << 9)
    torch.manual_seed(0)
    net = InModes(name).eval()
    with torch.no_grad():
        expected = net.call(net, graph.x, graph.edge_index)
    found = net.call(lambda *given: inference(net, graph, ("x", "edge_index"), **options))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    assert modes_now() == Modes(torch.float32, 0, "highest", False)


def test_a_plan_of_a_call_is_one_of_the_default_dtype(graph) -> None:
    loader = loader_of(graph)
    fast = accelerate(Net(lambda net, h: ((h > 0) * 0.1).double().to(h.dtype)), loader)
    batch = next(iter(loader))
    for around in (nullcontext, default_dtype, nullcontext):
        with around():
            found = fast(batch.x, batch.edge_index)
            expected = fast.acceleration.plain(batch.x, plain(batch.edge_index))
        torch.testing.assert_close(found, expected[: len(found)])


def test_precisions_that_are_set_by_backend_are_left_alone(monkeypatch) -> None:
    def mixed():
        raise RuntimeError("mix of the legacy and new APIs")

    before = modes_now()
    monkeypatch.setattr(torch, "get_float32_matmul_precision", mixed)
    other = modes_now()
    assert other == before._replace(precision=None)
    with AsCalled() as called:
        called.take(before)
        called.take(other._replace(dtype=torch.float64))
        assert torch.get_default_dtype() == torch.float64
    assert torch.get_default_dtype() == torch.float32
