"""Steps of models on batches that ranks make together, beside those of a single process."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from batches import arguments, heterogeneous_graph, homogeneous_graph
from models import HETEROGENEOUS, OUT
from rank_processes import run_ranks
from torch import Tensor, nn
from torch_geometric.data import HeteroData

from pyg_direct import NeighborLoader, accelerate

SEEDS = 4  # of each rank
Models = Mapping[str, tuple[Any, tuple[str, ...]]]  # how each is made, and what else it is given


def is_typed(name: str) -> bool:
    """Whether a model takes a heterogeneous graph."""
    return name in HETEROGENEOUS or name.startswith(("to-hetero", "hetero-"))


def data_of(name: str, dtype: torch.dtype = torch.float64) -> Any:
    """Return the graph of a model."""
    return heterogeneous_graph(dtype) if is_typed(name) else homogeneous_graph(dtype)


def loaders_of(data: Any, size: int, hops: int = 2, **options: Any) -> tuple[Any, Any]:
    """Return the loader of a single process, and what makes the one of each rank."""
    if isinstance(data, HeteroData):
        options["input_nodes"] = "paper"
    given = {"num_neighbors": [3, 2, 2][:hops], "seed": 0, "timeout": 120.0, **options}
    owners = given.pop("owners", "hash")
    split = {"split_by_rank": True, "cooperative": True, "owners": owners}
    return NeighborLoader(data, batch_size=size * SEEDS, **given), lambda: NeighborLoader(
        data, batch_size=SEEDS, **split, **given
    )


def model_of(make: Any, dtype: torch.dtype, training: bool) -> nn.Module:
    """Return the same model at each call, without dropout."""
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        for name in ("p", "dropout"):
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, 0.0)
    return model.to(dtype).train(training)


def loss_of(out: Any, count: int) -> Tensor:
    """Return the mean of a loss over the first rows."""
    labels = torch.arange(count) % OUT
    return nn.functional.cross_entropy(out[:count], labels)


def step(model: nn.Module, run: nn.Module, batch: Any, extra: Any, count: int) -> Any:
    """Return outputs, gradients and buffers of a step."""
    given = arguments(batch, extra)
    out = run(*given.values()) if "x_dict" in given else run(**given)
    out = out["paper"] if isinstance(out, dict) else out
    loss_of(out, count).backward()
    grads = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return out[:count].detach(), grads, dict(model.named_buffers())


def on_rank(known: Any, loader: Any, dtype: torch.dtype, training: bool) -> Any:
    """Return what a rank has after a step, with the gradients of all of them."""
    make, extra = known
    model = model_of(make, dtype, training)
    fast = accelerate(model, loader)
    out, grads, buffers = step(model, fast, next(iter(loader)), extra, SEEDS)
    for grad in grads.values():
        dist.all_reduce(grad)
        grad /= dist.get_world_size()
    return out, grads, buffers


def check(
    models: Models,
    size: int,
    training: bool,
    path: Path,
    dtype: Any = torch.float64,
    **options: Any,
) -> None:
    """Compare a step of some ranks with that of a single process."""
    kinds = {name: loaders_of(data_of(name, dtype), size, **options) for name in models}

    def ranks(rank: int) -> Any:
        return [on_rank(models[n], made(), dtype, training) for n, (_, made) in kinds.items()]

    every = run_ranks(size, ranks, path)
    tolerance = 1e-12 if dtype == torch.float64 else 1e-5
    for place, (name, (single, _)) in enumerate(kinds.items()):
        make, extra = models[name]
        model = model_of(make, dtype, training)
        batch = next(iter(single))
        out, grads, buffers = step(model, model, batch, extra, size * SEEDS)
        found = [of_rank[place] for of_rank in every]
        same(torch.cat([outs for outs, _, _ in found]), out, tolerance, name)
        for _, their_grads, their_buffers in found:
            assert their_grads.keys() == grads.keys()
            for part in grads:
                same(their_grads[part], grads[part], tolerance, f"{name}: {part}")
            for part in buffers:
                same(their_buffers[part], buffers[part], tolerance, f"{name}: {part}")


def same(found: Tensor, expected: Tensor, tolerance: float, what: str) -> None:
    """Compare two tensors."""

    def told(text: str) -> str:
        return f"{what}: {text}"

    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, msg=told)
