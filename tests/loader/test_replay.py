"""`loader.replay(step)`: the loop over a loader, its state and its statistics; what is captured."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from device_graphs import attributed_graph, heterogeneous_graph
from emulator import emulated, give_to_loaders
from torch import Tensor
from torch_geometric.nn import GraphSAGE

from benchmarks.gpu.launches import CountingCompiler
from pyg_direct import NeighborLoader
from pyg_direct.ops.cuda import backend as cuda_backend
from pyg_direct.ops.cuda.launch import Grid, Launch, Library, Prepare
from pyg_direct.ops.cuda.memory import in_capture, upload

from .test_static_shapes import SMALL, graph

Step = Callable[[Any], Tensor]


def loader(data: Any = None, **options: Any) -> NeighborLoader:
    given = {"batch_size": 20, "shuffle": True, "seed": 3, "static_shapes": True} | options
    return NeighborLoader(graph() if data is None else data, [4, 3], **given)


def taken(batch: Any) -> Tensor:
    """Return all tensors of a batch as one on the host."""
    stores = [sorted(store.to_dict().items()) for store in batch.stores]
    values = [value for store in stores for _, value in store if isinstance(value, Tensor)]
    return torch.cat([value.cpu().double().flatten() for value in values])


def assert_equal(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected) > 0
    assert all(map(torch.equal, found, expected))


def training() -> tuple[list[Tensor], Step]:
    """Return the parameters of a model, and a step that trains it."""
    torch.manual_seed(0)
    model = GraphSAGE(5, 8, 2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(batch: Any) -> Tensor:
        optimizer.zero_grad()
        out = model(batch.x.cpu(), batch.edge_index.cpu())[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y.cpu()[: batch.batch_size])
        loss.backward()
        optimizer.step()
        return loss

    return list(model.parameters()), step


def trained(batches: Any, epochs: int = 1) -> tuple[list[Tensor], list[Tensor]]:
    """Return the losses of an ordinary training over a loader, and the parameters after it."""
    parameters, step = training()
    return [step(batch).detach() for _ in range(epochs) for batch in batches], parameters


def test_an_epoch_is_the_loop_over_the_loader() -> None:
    expected = trained(loader(), 2)
    (parameters, step), batches = training(), loader()
    batches.replay(step)  # begins no epoch
    losses = [loss for _ in range(2) for loss in batches.replay(step)]
    assert not any(loss.requires_grad for loss in losses)
    assert_equal(losses, expected[0])
    assert_equal(parameters, expected[1])
    assert batches.stats().batches == len(losses)


@pytest.mark.parametrize(
    ("options", "step", "error", "message"),
    [
        ({"static_shapes": False}, taken, ValueError, "Pass static_shapes=True"),
        ({}, 3, TypeError, "step must be a function of a batch, got 3"),
        ({}, lambda batch: batch.batch_size, TypeError, "must return a tensor, .* got 20"),
        (
            {},
            lambda batch: torch.tensor(batch.num_sampled_nodes),
            AttributeError,
            "num_sampled_nodes",
        ),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    options: Any, step: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        next(loader(**options).replay(step))


class Capturing(CountingCompiler):
    """A compiler of the emulated device whose launches can be noted in place of run."""

    def __init__(self, compiler: Any) -> None:
        super().__init__(compiler)
        self.noted, self.is_on = list[tuple[Launch, Grid]](), False

    def _counted(self, prepare: Prepare) -> Prepare:
        def prepared(block: int, arguments: Sequence[Any]) -> Launch:
            launch = prepare(block, arguments)

            def run(grid: Grid) -> None:
                if self.is_on:
                    self.noted.append((launch, grid))
                else:
                    launch(grid)

            return run

        return prepared


class FakeGraphs:
    """Captures launches of the emulated device; a step, which has none, runs at each launch.

    Args:
        compiler: of the device.
        parameters: that a step writes to, but not in a capture.
    """

    def __init__(self, compiler: Capturing, parameters: Sequence[Tensor]) -> None:
        self._compiler, self._parameters = compiler, parameters
        self.batches = self.steps = self.launched = self.apart_calls = 0

    def apart(self, work: Callable[[], Any]) -> Any:
        self.apart_calls += 1
        return work()

    def capture(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        before = [parameter.detach().clone() for parameter in self._parameters]
        compiler = self._compiler
        compiler.noted, compiler.is_on = [], True
        made, noted = in_capture(work), compiler.noted
        compiler.is_on = False
        with torch.no_grad():
            for parameter, value in zip(self._parameters, before, strict=True):
                parameter.copy_(value)
        self.batches, self.steps = self.batches + bool(noted), self.steps + (not noted)

        def replay() -> None:
            self.launched += 1
            for launch, grid in noted:
                launch(grid)
            if not noted:
                made.copy_(work())

        return replay, made


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., FakeGraphs]]:
    """Return what lets loaders sample on an emulated device, given parameters of `FakeGraphs`."""
    with emulated() as backend:

        def begin(parameters: Sequence[Tensor] = ()) -> FakeGraphs:
            compiler = Capturing(backend.library.compiler)
            graphs = FakeGraphs(compiler, parameters)
            monkeypatch.setattr(cuda_backend, "CudaGraphs", lambda device: graphs)
            there = cuda_backend.CudaBackend(backend.device, Library(compiler))
            give_to_loaders(there, monkeypatch)
            return graphs

        yield begin


KINDS: dict[str, Callable[..., NeighborLoader]] = {
    "plain": loader,
    "disjoint": partial(loader, disjoint=True),
    "with replacement": partial(loader, replace=True),
    "LABOR": partial(loader, graph().coalesce(), sampling="labor", batch_dependency=3),
    "persistent threads": partial(loader, num_workers=2, persistent_workers=True),
    "a half of each epoch": partial(loader, rank=1, world_size=2, split_by_rank=False),
    "given batches": partial(
        loader, batch_sampler=[[i, i + 7, 3 * i] for i in range(9)], batch_size=1, shuffle=False,
        static_shapes={"nodes": 90, "edges": 80},
    ),
    "times and weights": partial(
        loader, attributed_graph(), time_attr="time", weight_attr="weight", batch_size=9
    ),
    "types": partial(loader, heterogeneous_graph(), input_nodes="paper", batch_size=9),
}  # fmt: skip
EMULATED = pytest.mark.parametrize("device", ["emulated"])


@EMULATED
@pytest.mark.parametrize("kind", KINDS)
def test_replayed_batches_are_those_of_the_loader(
    device: str, kind: str, on_device: Callable[..., FakeGraphs]
) -> None:
    plain = KINDS[kind]()
    expected = [taken(batch) for _ in range(3) for batch in plain]
    graphs = on_device()
    batches = KINDS[kind](ids="device")
    batches.replay(taken)  # begins no epoch
    assert_equal([found for _ in range(3) for found in batches.replay(taken)], expected)
    assert graphs.batches == graphs.steps <= 1 + plain.stats().larger_batches
    replayed = len(expected) - graphs.apart_calls
    assert replayed > len(expected) // 3
    assert graphs.launched == 2 * replayed + plain.stats().larger_batches
    found, wanted = batches.stats(), plain.stats()
    for counted in ("batches", "made", "seeds", "nodes", "edges", "padded_nodes", "padded_edges"):
        assert getattr(found, counted) == getattr(wanted, counted)
    assert repr(batches.state_dict()) == repr(plain.state_dict())
    assert_equal([taken(batch) for batch in batches], [taken(batch) for batch in plain])


@EMULATED
def test_batches_that_did_not_fit_are_trained_on_as_a_whole(
    device: str, on_device: Callable[..., FakeGraphs]
) -> None:
    plain, (parameters, step) = loader(static_shapes=SMALL), training()
    losses, expected = trained(plain, 4)
    graphs = on_device(parameters)
    batches = loader(static_shapes=SMALL, ids="device")
    assert_equal([loss for _ in range(4) for loss in batches.replay(step)], losses)
    assert_equal(parameters, expected)
    larger = batches.stats().larger_batches
    assert larger == plain.stats().larger_batches > 0
    assert graphs.batches == 2  # the envelope grew once
    assert graphs.launched > graphs.batches + larger
    assert batches.static_shapes == plain.static_shapes


@EMULATED
def test_an_epoch_goes_on_from_a_state(device: str, on_device: Callable[..., FakeGraphs]) -> None:
    expected = [taken(batch) for batch in loader()]
    on_device()
    batches = loader(ids="device")
    begun = batches.replay(taken)
    found = [next(begun) for _ in range(8)]
    resumed = loader(ids="device")
    resumed.load_state_dict(copy.deepcopy(batches.state_dict()))
    assert_equal([*found, *resumed.replay(taken)], expected)
    assert "_kept_replay" in vars(batches)
    assert batches.__getstate__()["_kept_replay"] is None  # graphs stay in their process


@EMULATED
def test_what_changes_between_epochs_is_captured_anew(
    device: str, on_device: Callable[..., FakeGraphs]
) -> None:
    plain = loader(data := graph())
    graphs, batches = on_device(), loader(copy.copy(data), ids="device")
    changes: list[Callable[[Any], object]] = [
        lambda of: setattr(of.data, "x", of.data.x + 1),
        lambda of: setattr(of.data, "scale", torch.ones(2)),  # of the graph as a whole
        lambda of: setattr(of.data, "scale", torch.zeros(2)),
        lambda of: setattr(of.node_sampler, "num_neighbors", [2, 2]),
    ]
    for number, change in enumerate(changes, 1):
        assert_equal(list(batches.replay(taken)), [taken(batch) for batch in plain])
        assert graphs.batches == number
        for of in (batches, plain):
            change(of)
    assert_equal(list(batches.replay(taken)), [taken(batch) for batch in plain])
    assert graphs.batches == len(changes) + 1
    list(batches.replay(lambda batch: taken(batch)))
    assert graphs.batches == len(changes) + 2


REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "the host": ("ids on the host", {"ids": "host"}),
    "a cache": ("cache=", {"cache": 0.5}),
    "a transform": ("transform=", {"transform": lambda batch: batch}),
    "gathered by the consumer": ("filter_per_worker=False", {"filter_per_worker": False}),
    "all neighbours": ("fan-outs of all neighbours", {"num_neighbors": [-1, 2]}),
    "adaptive": ("sampling='adaptive'", {"sampling": "adaptive"}),
    "induced": ("subgraph_type='induced'", {"subgraph_type": "induced"}),
}


@EMULATED
@pytest.mark.parametrize("name", REFUSED)
def test_what_waits_for_the_host_is_refused_by_name(
    device: str, name: str, on_device: Callable[..., FakeGraphs]
) -> None:
    on_device()
    message, options = REFUSED[name]
    given = {"num_neighbors": [4, 3], "ids": "device", "static_shapes": True} | options
    batches = NeighborLoader(graph(), batch_size=20, **given)
    with pytest.raises(ValueError, match=f"On a GPU, replay cannot be used with .*{message}"):
        batches.replay(taken)


def test_what_is_uploaded_in_a_capture_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"needs torch.int64 \(3,\) from the host"):
        in_capture(lambda: upload(torch.arange(3), torch.device("cpu")))
