"""How many collectives a step takes, and steps that go another way than the ones before them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from batches import arguments
from cooperative_steps import SEEDS, data_of, loaders_of, loss_of, model_of, same
from models import HETEROGENEOUS, HOMOGENEOUS, OUT, WIDTH, basic, to_hetero_sage
from rank_processes import run_ranks
from torch import Tensor, nn
from torch_geometric.nn import GAT, GCN, GraphSAGE, TransformerConv

from pyg_direct import accelerate
from pyg_direct.models.remote import messages

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")


class Transformer(nn.Module):
    """Two layers, of which each reads keys and values."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = TransformerConv(WIDTH, 16), TransformerConv(16, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


# Collectives of the forward, of which the first is to agree, and of the backward.
COUNTS: dict[str, tuple[Any, tuple[int, int]]] = {
    "sage of one layer": (basic(GraphSAGE, 1), (2, 1)),
    "sage": (basic(GraphSAGE, 3), (4, 3)),
    "gcn": (basic(GCN, 3), (5, 4)),  # and once in each for degrees
    "gat": (basic(GAT, 2, heads=2), (4, 3)),  # the first layer reads projected rows
    "transformer": (Transformer, (4, 3)),
    "norm": (HOMOGENEOUS["sage-norm"][0], (4, 3)),
    "to-hetero": (to_hetero_sage, (3, 2)),
    "hetero-conv": (HETEROGENEOUS["hetero-conv"], (4, 3)),
}


def outputs(run: nn.Module, batch: Any) -> Tensor:
    given = arguments(batch)
    out = run(*given.values())
    found: Tensor = out["paper"] if isinstance(out, dict) else out
    return found


def test_values_of_a_layer_share_a_collective(tmp_path) -> None:
    made = {name: loaders_of(data_of(name), 2)[1] for name in COUNTS}

    def ranks(rank: int) -> Any:
        found = {}
        for name, (make, _) in COUNTS.items():
            loader = made[name]()
            model = accelerate(model_of(make, torch.float64, True), loader)
            counts = []
            for batch, _ in zip(loader, range(4), strict=False):
                channel = batch.cooperation.channel
                before = channel.traffic().collectives
                out = outputs(model, batch)
                between = channel.traffic().collectives
                loss_of(out, SEEDS).backward()
                counts.append((between - before, channel.traffic().collectives - between))
            found[name] = counts[-1]
        return found

    expected = {name: counts for name, (_, counts) in COUNTS.items()}
    assert run_ranks(2, ranks, tmp_path) == [expected, expected]


def trained(run: nn.Module, batch: Any, other: Any, count: int) -> None:
    loss_of(outputs(run, batch), count).backward()


def evaluated(run: nn.Module, batch: Any, other: Any, count: int) -> None:
    with torch.no_grad():
        outputs(run, batch)


def left(run: nn.Module, batch: Any, other: Any, count: int) -> None:
    """Leave a forward without its backward."""
    outputs(run, batch)


def two_at_once(run: nn.Module, batch: Any, other: Any, count: int) -> None:
    """Run one backward for two forwards."""
    first, second = outputs(run, batch), outputs(run, other)
    (loss_of(first, count) + 2 * loss_of(second, count)).backward()


def first_of_two(run: nn.Module, batch: Any, other: Any, count: int) -> None:
    """Run the backward of the forward before the last one."""
    out = outputs(run, batch)
    outputs(run, other)
    loss_of(out, count).backward()


def twice(run: nn.Module, batch: Any, other: Any, count: int) -> None:
    """Run the same backward two times."""
    loss = loss_of(outputs(run, batch), count)
    loss.backward(retain_graph=True)
    loss.backward()


def of_one_layer(run: Any, batch: Any, other: Any, count: int) -> None:
    """Run the backward of the last layer alone."""
    last = [p for name, p in run.named_parameters() if name.startswith(("convs.1", "second"))]
    grads = torch.autograd.grad(loss_of(outputs(run, batch), count), last)
    for parameter, grad in zip(last, grads, strict=True):
        parameter.grad = grad if parameter.grad is None else parameter.grad + grad


STEPS: list[Callable[..., None]] = [
    trained, trained, evaluated, trained, left, trained, two_at_once, trained, two_at_once,
    first_of_two, twice, trained, of_one_layer, trained, trained,
]  # fmt: skip


NODES = torch.arange(24).repeat(5)  # of 15 batches


def gradients(model: nn.Module, run: nn.Module, loader: Any, count: int) -> list[list[Tensor]]:
    """Return the gradients of steps of all kinds."""
    found = []
    batches = iter(loader)
    whole = next(batches)
    for step, batch in zip(STEPS, batches, strict=False):
        model.zero_grad()
        step(run, batch, whole, count)
        found.append([p.grad for p in model.parameters() if p.grad is not None])
        whole = batch
    return found


@pytest.mark.parametrize("name", ["gat", "norm", "transformer"])
def test_steps_may_go_another_way_than_the_last_ones(name: str, tmp_path) -> None:
    single, made = loaders_of(
        data_of(name), 2, input_nodes=torch.arange(24).repeat(5), replace=True
    )
    make = COUNTS[name][0]

    def ranks(rank: int) -> Any:
        model, loader = model_of(make, torch.float64, True), made()
        return gradients(model, accelerate(model, loader), loader, SEEDS)

    every = run_ranks(2, ranks, tmp_path)
    model = model_of(make, torch.float64, True)
    expected = gradients(model, model, single, 2 * SEEDS)
    assert len(expected) == 14
    for place, grads in enumerate(expected):
        found = [of_rank[place] for of_rank in every]
        assert [len(of_rank) for of_rank in found] == [len(grads)] * 2
        for number, grad in enumerate(grads):
            mean = torch.stack([of_rank[number] for of_rank in found]).mean(0)
            same(mean, grad, 1e-12, f"{STEPS[place].__name__} {place}")


class Failing(GraphSAGE):
    """Layers of which one raises an error where it is told so."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:  # type: ignore[override]
        found: Tensor = super().forward(x, edge_index)
        fail_at("forward")
        return found


_fails_at: list[str] = []


def fail_at(place: str) -> None:
    if place in _fails_at:
        _fails_at.remove(place)
        raise KeyError(f"planted in the {place}")


def failing_back(self: Any, grad: Tensor, parts: Any) -> Tensor:
    fail_at("backward")
    return COME(self, grad, parts)


COME = messages.GradientExchange.receive
PLACES = {
    "forward": "planted in the forward",
    "backward": "planted in the backward",
    "nowhere": "do not run the same model",  # as the backward is left out
}


@pytest.mark.parametrize("before", [trained, evaluated, left, two_at_once, first_of_two])
def test_an_error_reaches_the_others_whatever_came_before(
    before: Any, tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(messages.GradientExchange, "receive", failing_back)
    _, made = loaders_of(data_of("sage"), 2, input_nodes=NODES)

    def ranks(rank: int) -> Any:
        model, told = model_of(lambda: Failing(WIDTH, 16, 2, OUT), torch.float64, True), []
        for place in PLACES:
            loader = made()
            fast: Any = accelerate(model, loader)
            batches = iter(loader)
            for step in (trained, before):
                step(fast, next(batches), next(batches), SEEDS)
            text, batch = "", next(batches)
            _fails_at[:] = [place] if rank == 1 else []
            try:
                if rank == 0 or place != "nowhere":
                    trained(fast, batch, None, SEEDS)
                else:
                    left(fast, batch, None, SEEDS)
                    left(fast, batch, None, SEEDS)
            except Exception as error:
                text = f"{type(error).__name__}: {error}"
            told.append(text)
        return told

    for rank, told in enumerate(run_ranks(2, ranks, tmp_path)):
        for (place, expected), text in zip(PLACES.items(), told, strict=True):
            assert expected in text, f"rank {rank}, {place}: {text!r}"
