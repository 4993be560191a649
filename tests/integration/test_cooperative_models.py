"""Models on batches that ranks make together: the numbers of one process with all their seeds."""

from __future__ import annotations

import copy
import os
import re
import sys
from typing import Any, cast

import numpy as np
import pytest
import torch
import torch.distributed as dist
from batches import arguments, homogeneous_graph
from cooperative_steps import (
    SEEDS,
    Models,
    check,
    data_of,
    is_typed,
    loaders_of,
    loss_of,
    model_of,
    same,
)
from models import EDGE_WIDTH, HETEROGENEOUS, HOMOGENEOUS, NODES, OUT, WIDTH, to_hetero_sage
from rank_processes import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import (
    ChebConv,
    GENConv,
    GraphNorm,
    GraphSAGE,
    LayerNorm,
    MeanSubtractionNorm,
    PairNorm,
    SAGEConv,
    TransformerConv,
)
from torch_geometric.transforms import ToUndirected

import pyg_direct
from pyg_direct import Reuse, accelerate, inference, keep_memory, save

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks ranks")


class TwoLayers(nn.Module):
    """Two layers that read attributes of edges."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


def transformer() -> nn.Module:
    return TwoLayers(
        TransformerConv(WIDTH, 8, heads=2, edge_dim=EDGE_WIDTH),
        TransformerConv(16, OUT, edge_dim=EDGE_WIDTH, beta=True),
    )


def gen() -> nn.Module:
    """Return layers with batch normalisation inside."""
    return TwoLayers(
        GENConv(WIDTH, 16, learn_t=True, edge_dim=EDGE_WIDTH), GENConv(16, OUT, edge_dim=EDGE_WIDTH)
    )


class Measured(nn.Module):
    """A norm whose rows nobody reads, but its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.norm = GraphSAGE(WIDTH, 16, 2, OUT), nn.BatchNorm1d(OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.body(x, edge_index)
        self.norm(x)
        return x


class TwoHeads(nn.Module):
    """Two outputs, of other depths, of which a loss may use one."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = GraphSAGE(WIDTH, 16, 1), GraphSAGE(16, 16, 1, OUT)
        self.near = nn.Linear(16, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> tuple[Tensor, Tensor]:
        x = self.body(x, edge_index).relu()
        return self.near(x), self.head(x, edge_index)


LEFT_OUT = (
    "relations",  # is refused
    "residual",  # drops out whatever it is told
    "sage-jk-lstm",  # runs on all rows with float32
    "sequential",  # writes its forward to a file, the same one for several ranks
)
MODELS: Models = {
    **{n: v for n, v in HOMOGENEOUS.items() if n not in LEFT_OUT},
    **{n: (make, ()) for n, make in HETEROGENEOUS.items() if n != "hgt"},
    "transformer": (transformer, ("edge_attr",)),
    "gen": (gen, ("edge_attr",)),
    "to-hetero": (to_hetero_sage, ()),
    "measured": (Measured, ()),
}
FEW = ["sage-mean", "gcn", "gat-attr", "gin", "pna", "gen", "hetero-conv", "measured"]


def some(names: list[str]) -> Models:
    return {name: MODELS[name] for name in names}


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
def test_numbers_are_those_of_one_process(training, tmp_path) -> None:
    check(some(FEW), 3, training, tmp_path)


def test_a_model_is_evaluated_without_gradients(tmp_path) -> None:
    make, extra = MODELS["gat-attr"]
    single, made = loaders_of(data_of("gat-attr", torch.float64), 2)

    def outputs(loader: Any, model: nn.Module) -> Tensor:
        with torch.inference_mode():
            batch = next(iter(loader))
            return model(**arguments(batch, extra))[: batch.batch_size]

    def ranks(rank: int) -> Tensor:
        loader = made()
        return outputs(loader, accelerate(model_of(make, torch.float64, False), loader)).numpy()

    expected = outputs(single, model_of(make, torch.float64, False))
    for found, part in zip(run_ranks(2, ranks, tmp_path), expected.split(SEEDS), strict=True):
        assert np.allclose(found, part, rtol=0, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluating"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_numbers_of_all_models(size, dtype, training, tmp_path) -> None:
    check(MODELS, size, training, tmp_path, dtype)
    (tmp_path / "deeper").mkdir()
    check(some(["sage-jk-cat", "gcn"]), size, training, tmp_path / "deeper", dtype, hops=3)


def test_one_rank_may_own_all_nodes(tmp_path) -> None:
    for name in ("gcn", "gat-attr", "to-hetero"):
        data = data_of(name)
        owners: Any = torch.zeros(NODES).long()
        if is_typed(name):
            owners = {t: torch.zeros(data[t].num_nodes).long() for t in data.node_types}
        (tmp_path / name).mkdir()
        check(some([name]), 2, True, tmp_path / name, owners=owners)


def outcome(model: nn.Module, loader: Any) -> str:
    """Return with what a step ends."""
    try:
        fast = accelerate(model, loader)
        batch = next(iter(loader))
        out = fast(batch.x, batch.edge_index)
        loss_of(out, SEEDS).backward()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


class Centred(nn.Module):
    """Layers, and something between them that reads all rows."""

    def __init__(self, between: Any) -> None:
        super().__init__()
        self.first, self.second = GraphSAGE(WIDTH, 16, 1), GraphSAGE(16, 16, 1, OUT)
        self.between = between

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.between(self.first(x, edge_index)), edge_index)


def by_sources(x: Tensor, edge_index: Tensor) -> Tensor:
    """Sum against the direction of the edges."""
    return torch.zeros_like(x).index_add(0, edge_index[0], x[edge_index[1]])


def counted_by_sources(x: Tensor, edge_index: Tensor) -> Tensor:
    """Scale rows by their edges out, in columns."""
    index = edge_index[0][:, None].expand(-1, 2)
    return x * torch.zeros(len(x), 2).scatter_add(0, index, torch.ones(index.shape))[:, :1]


class Reversed(nn.Module):
    def __init__(self, function: Any = by_sources) -> None:
        super().__init__()
        self.out, self.function = nn.Linear(WIDTH, OUT), function

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.out(self.function(x, edge_index))


class Readout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = GraphSAGE(WIDTH, 16, 2, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.body(x, edge_index)[edge_index[0]]


class Picky(nn.Module):
    """A model that fails on one rank only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = GraphSAGE(WIDTH, 16, 2, OUT)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        if dist.get_rank() == 1:
            raise KeyError("of rank 1")
        return self.body(x, edge_index)


REFUSED: dict[str, tuple[Any, str]] = {
    "graph norm": (lambda: Centred(GraphNorm(16)), "needs all rows|joins|mean"),
    "pair norm": (lambda: Centred(PairNorm()), "needs all rows"),
    "layer norm": (lambda: Centred(LayerNorm(16)), "needs all rows|joins"),
    "mean subtraction": (lambda: Centred(MeanSubtractionNorm()), "needs all rows|summed"),
    "mean": (lambda: Centred(lambda x: x - x.mean(0)), "aten.mean.dim needs all rows"),
    "product": (lambda: Centred(lambda x: x @ (x.t() @ x)), "mm multiplies over the rows"),
    "cheb": (lambda: ChebConv(WIDTH, OUT, 2), "summed by other lists"),
    "against the edges": (Reversed, "summed by other lists"),
    "edges out counted": (lambda: Reversed(counted_by_sources), "summed by other lists"),
    "edges out": (Readout, "returns a tensor of shape"),
    "lazy": (lambda: SAGEConv(-1, OUT), "lazy parameters"),
    "one fails": (Picky, "Rank 1 failed: KeyError: 'of rank 1'"),
}


def test_models_that_cannot_run_on_common_batches_are_refused_on_all_ranks(tmp_path) -> None:
    _, made = loaders_of(homogeneous_graph(torch.float32), 2)

    def ranks(rank: int) -> dict[str, str]:
        return {name: outcome(model(), made()) for name, (model, _) in REFUSED.items()}

    for rank, found in enumerate(run_ranks(2, ranks, tmp_path)):
        for name, (_, text) in REFUSED.items():
            if name == "one fails" and rank == 1:
                text = "^KeyError: 'of rank 1'"
            assert re.search(text, found[name]), f"{name}: {found[name]!r}"


def test_arguments_that_cannot_be_used_are_refused(tmp_path) -> None:
    data = homogeneous_graph(torch.float32)

    def ranks(rank: int) -> None:
        loader, model = loaders_of(data, 1)[1](), SAGEConv(WIDTH, OUT)
        with pytest.raises(ValueError, match="batch_norm='needed' cannot be used with"):
            accelerate(model, loader, batch_norm="needed")
        with pytest.raises(ValueError, match="cooperative=True, as no rank has all rows"):
            accelerate(model, loader, reuse=Reuse())
        with pytest.raises(TypeError, match="data must be a torch_geometric"):
            inference(model, cast(Any, loader))
        with pytest.raises(ValueError, match="one rank's part of a cooperative batch"):
            inference(model, next(iter(loader)), inputs=("x", "edge_index"))
        fast = accelerate(model, loader)
        batch = next(iter(loader))
        batch.edge_index.as_tensor()[0] = 0
        with pytest.raises(RuntimeError, match="were written to"):
            fast(batch.x, batch.edge_index)
        loader = loaders_of(data, 1, transform=ToUndirected())[1]()
        accelerate(model, loader)
        with pytest.raises(ValueError, match="transform= changed the edges"):
            next(iter(loader))

    run_ranks(1, ranks, tmp_path)


def test_a_loss_may_leave_outputs_out(tmp_path) -> None:
    single, made = loaders_of(homogeneous_graph(), 2)

    def gradients(model: nn.Module, near: Tensor, far: Tensor, count: int, use: bool) -> Any:
        (loss_of(near, count) + (loss_of(far, count) if use else 0.0)).backward()
        return {n: 0.0 if p.grad is None else p.grad for n, p in model.named_parameters()}

    def ranks(rank: int) -> Any:
        model, loader = model_of(TwoHeads, torch.float64, True), made()
        fast = accelerate(model, loader)
        batch = next(iter(loader))
        near, far = fast(batch.x, batch.edge_index)
        return near.detach(), far.detach(), gradients(model, near, far, SEEDS, rank == 0)

    every = run_ranks(2, ranks, tmp_path)
    model, batch = model_of(TwoHeads, torch.float64, True), next(iter(single))
    near, far = model(batch.x, batch.edge_index)
    total = loss_of(near[:SEEDS], SEEDS) + loss_of(near[SEEDS : 2 * SEEDS], SEEDS)
    (total + loss_of(far[:SEEDS], SEEDS)).backward()
    same(torch.cat([n for n, _, _ in every]), near[: 2 * SEEDS], 1e-12, "near")
    same(torch.cat([f for _, f, _ in every]), far[: 2 * SEEDS], 1e-12, "far")
    for name, parameter in model.named_parameters():
        same(sum(grads[name] for _, _, grads in every), parameter.grad, 1e-12, name)


def loss_of_batch(run: nn.Module, batch: Any, count: int) -> Tensor:
    out = run(batch.x, batch.edge_index)[:count]
    return nn.functional.cross_entropy(out, batch.y[:count])


def curve(model: nn.Module, run: nn.Module, loader: Any, count: int, epochs: int) -> list[float]:
    """Return the losses of a training."""
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.01), []
    for _ in range(epochs):
        for batch in loader:
            optimizer.zero_grad()
            loss = loss_of_batch(run, batch, count)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    return losses


def test_a_training_with_ddp_is_that_of_one_process(tmp_path) -> None:
    data = homogeneous_graph()
    make = MODELS["sage-norm"][0]
    options = {"shuffle": True, "input_nodes": torch.arange(7 * 2 * SEEDS)}
    single, made = loaders_of(data, 2, **options)

    def ranks(rank: int) -> Any:
        model = model_of(make, torch.float64, True)
        loader = made()
        fast = DistributedDataParallel(accelerate(model, loader))
        return curve(model, fast, loader, SEEDS, 3), dict(model.state_dict())

    every = run_ranks(2, ranks, tmp_path)
    model = model_of(make, torch.float64, True)
    losses = curve(model, model, single, 2 * SEEDS, 3)
    mean = torch.tensor([each for each, _ in every]).mean(0)
    same(mean.double(), torch.tensor(losses).double(), 1e-6, "losses")
    for _, state in every:
        for name, value in model.state_dict().items():
            same(state[name], value, 1e-8, name)


def test_a_training_over_a_saved_graph_goes_on_from_a_state(tmp_path) -> None:
    """Workers, a saved graph, kept memory and a state in the middle of an epoch, all at once."""
    nodes = torch.arange(7 * 2 * SEEDS)
    options = {"shuffle": True, "input_nodes": nodes}
    single, _ = loaders_of(homogeneous_graph(), 2, **options)
    save(homogeneous_graph(), tmp_path / "graph")
    (tmp_path / "ranks").mkdir()

    def ranks(rank: int) -> Any:
        if sys.platform == "linux":
            keep_memory()
        graph = pyg_direct.open(tmp_path / "graph")
        loader = loaders_of(graph, 2, num_workers=2, **options)[1]()
        model = model_of(MODELS["sage-norm"][0], torch.float64, True)
        optimizer = torch.optim.Adam(model.parameters(), 0.01)
        losses = some_steps(model, optimizer, loader, 3)
        states = copy.deepcopy((loader.state_dict(), model.state_dict(), optimizer.state_dict()))
        again = model_of(MODELS["sage-norm"][0], torch.float64, True)
        other = torch.optim.Adam(again.parameters(), 0.01)
        resumed = loaders_of(graph, 2, **options)[1]()
        for target, state in zip((resumed, again, other), states, strict=True):
            target.load_state_dict(state)
        return losses + some_steps(again, other, resumed, 7)

    every = run_ranks(2, ranks, tmp_path / "ranks")
    model = model_of(MODELS["sage-norm"][0], torch.float64, True)
    losses = curve(model, model, single, 2 * SEEDS, 1)
    same(torch.tensor(every).mean(0), torch.tensor(losses), 1e-6, "losses")


def some_steps(model: nn.Module, optimizer: Any, loader: Any, most: int) -> list[float]:
    """Train for some steps, with gradients of all ranks; return the losses."""
    fast, losses = accelerate(model, loader), []
    for _, batch in zip(range(most), loader, strict=False):
        optimizer.zero_grad()
        loss = loss_of_batch(fast, batch, SEEDS)
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses
