"""Sampled batches for models, and how an accelerated model is compared with the plain one."""

from __future__ import annotations

from typing import Any

import torch
from models import EDGES, NODES, graph_inputs, hetero_inputs
from torch import Tensor, nn
from torch_geometric.data import Data, HeteroData

from pyg_direct import NeighborLoader
from pyg_direct.batch.edges import SampledEdges

EXTRA = ("edge_weight", "edge_attr", "edge_type")


def homogeneous_graph(dtype: torch.dtype = torch.float64) -> Data:
    """Return a graph of 60 nodes with everything that the models of `models.py` take."""
    inputs = graph_inputs(*EXTRA)
    data = Data(**{k: v.to(dtype) if v.is_floating_point() else v for k, v in inputs.items()})
    data.y = torch.arange(NODES) % 4
    assert data.num_edges == EDGES
    return data


def heterogeneous_graph(dtype: torch.dtype = torch.float64) -> HeteroData:
    inputs, data = hetero_inputs(), HeteroData()
    for key, x in inputs["x_dict"].items():
        data[key].x = x.to(dtype)
    for edge_type, edge_index in inputs["edge_index_dict"].items():
        data[edge_type].edge_index = edge_index
    return data


def loader_of(data: Any, hops: int = 3, **options: Any) -> NeighborLoader:
    """Return a loader whose batches are small parts of the graph."""
    options = {"batch_size": 7, "seed": 0, **options}
    if isinstance(data, HeteroData):
        options.setdefault("input_nodes", "paper")
    return NeighborLoader(data, [3, 2, 2, 1][:hops], **options)


def arguments(batch: Any, names: tuple[str, ...] = ()) -> dict[str, Any]:
    """Return what a model is called with."""
    if isinstance(batch, HeteroData):
        return {"x_dict": batch.x_dict, "edge_index_dict": batch.edge_index_dict}
    return {name: batch[name] for name in ("x", "edge_index", *names)}


def plain(value: Any) -> Any:
    """Return arguments with plain tensors for the edges."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    return value.as_tensor() if isinstance(value, SampledEdges) else value


def seeds_of(value: Any, counts: Any) -> Any:
    """Return the rows of the seeds: `counts` of them, or so many by node type."""
    if isinstance(value, dict):
        return {key: seeds_of(v, counts[key]) for key, v in value.items()}
    return value[:counts]


def outputs_and_gradients(
    model: nn.Module, inputs: dict[str, Any], counts: Any
) -> tuple[Any, dict[str, Tensor]]:
    """Return the seeds' outputs, and the gradients of parameters and of x under random weights."""
    x = inputs.get("x", inputs.get("x_dict"))
    rows = list(x.values()) if isinstance(x, dict) else [x]
    rows = [r.detach().clone().requires_grad_() for r in rows]
    fresh = dict(zip(x, rows, strict=True)) if isinstance(x, dict) else rows[0]
    inputs = {**inputs, "x" if "x" in inputs else "x_dict": fresh}
    out = model(**inputs)
    out = seeds_of(out, counts) if counts is not None else out
    generator = torch.Generator().manual_seed(1)
    loss = sum(
        (o * torch.randn(o.shape, generator=generator).to(o)).sum()
        for o in (out.values() if isinstance(out, dict) else [out])
    )
    wanted = {**dict(model.named_parameters()), **{f"x{i}": r for i, r in enumerate(rows)}}
    grads = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    found = {
        name: torch.zeros_like(value) if grad is None else grad
        for (name, value), grad in zip(wanted.items(), grads, strict=True)
    }
    return torch.utils._pytree.tree_map(torch.Tensor.detach, out), found


def assert_same_training(
    accelerated: nn.Module, model: nn.Module, inputs: dict[str, Any], counts: Any
) -> None:
    """Check outputs and gradients of an accelerated model against those of the plain one."""
    ours = outputs_and_gradients(accelerated, inputs, counts)
    theirs = outputs_and_gradients(model, plain(inputs), counts)
    torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-9)
