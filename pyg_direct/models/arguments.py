"""Arguments of `accelerate`, and of an accelerated model: containers with sampled edges in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data, HeteroData

from ..batch.edges import SampledEdges
from ..core.arguments import check_model
from ..core.cooperation import Cooperation
from ..core.private_torch import compiled_in_place, tree_leaves, tree_map
from ..loading.base import DirectLoader

UNKNOWN_EDGES = (
    "its edges are not those of a loader that was given to accelerate(), or were changed since, as "
    "by transform= or in the loop; change them in the whole graph, or in the model's forward"
)

LONGEST_REASON = 200  # characters of an error that are told


def edges_in(value: Any, key: Any = None) -> Iterator[tuple[Any, SampledEdges]]:
    """Yield the sampled edges in containers, each with the key that it has in a mapping."""
    if isinstance(value, SampledEdges):
        yield key, value
    elif isinstance(value, Mapping):
        for name, part in value.items():
            yield from edges_in(part, name)
    elif type(value) in (tuple, list):
        for part in value:
            yield from edges_in(part, key)


def why_unknown(arguments: tuple[Any, ...], refused: list[str]) -> tuple[str, bool]:
    """Return why there are no sampled edges in some arguments, and whether that is a fault.

    Args:
        arguments: of a forward.
        refused: why the order of the edges is not known in batches of some loaders.
    """
    if any(isinstance(value, (Data, HeteroData)) for value in arguments):
        return "its forward takes a whole Data; let it take x and edge_index", True
    return UNKNOWN_EDGES + "".join(f" ({reason})" for reason in refused), False


def common_of(edges: list[tuple[Any, SampledEdges]]) -> Cooperation | None:
    """Return what edges say of the ranks that make their batch together; None for one rank's."""
    known = (sampled.common for _, sampled in edges)
    return next((common for common in known if common is not None), None)


def without_counts(forward: Callable[..., Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Leave out the counts that `trim_to_layer` of PyG takes: rows are left out already."""
    counts = [name for name in kwargs if name.startswith("num_sampled_")]
    if not counts:
        return kwargs
    parameters = inspect.signature(forward).parameters
    options = {name for name, p in parameters.items() if p.default is None}
    return {k: v for k, v in kwargs.items() if k not in counts or k not in options}


def map_edges(value: Any, change: Any) -> Any:
    """Return containers with each `SampledEdges` in them changed."""
    if isinstance(value, SampledEdges):
        return change(value)
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(map_edges(v, change) for v in value)
    if type(value) is dict:
        return {key: map_edges(v, change) for key, v in value.items()}
    return value


def run_plain(forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a forward with plain tensors for the edges."""
    if next(edges_in((args, kwargs)), None) is None:
        return forward(*args, **kwargs)
    tensors, named = map_edges((args, kwargs), SampledEdges.as_tensor)
    return forward(*tensors, **named)


def copied_tensors(value: Any) -> Any:
    """Return arguments with copies of their tensors, which a forward may write to."""

    copies: dict[int, Tensor] = {}  # one for a tensor that is given twice

    def copied(leaf: Any) -> Any:
        if type(leaf) is not Tensor:
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    return tree_map(copied, value)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the dense tensors among arguments, beside edges: a forward may write to them."""
    found = (leaf for leaf in tree_leaves(value) if type(leaf) is Tensor)
    return [leaf for leaf in found if leaf.layout == torch.strided]


def failure(error: Exception) -> str:
    """Say in one line that a step failed; torch's errors may list all its backends."""
    text = str(error).partition("\n")[0]
    text = text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."
    return f"it fails on some of the rows ({type(error).__name__}: {text})"


def check_accelerable(model: Any, loaders: tuple[Any, ...]) -> None:
    """Raise a TypeError or ValueError for what `accelerate` cannot be given."""
    check_model(model)
    wrappers = DistributedDataParallel, torch.nn.DataParallel
    if isinstance(model, wrappers) or hasattr(model, "_orig_mod"):
        raise ValueError(
            f"accelerate() needs the model itself, got a {type(model).__name__} around it. Call "
            f"accelerate first and wrap its result."
        )
    compiled = [name for name, part in model.named_modules() if compiled_in_place(part)]
    if compiled:
        which = f"its part {compiled[0]!r}" if compiled[0] else "the model"
        raise ValueError(
            f"accelerate() needs a model that is not compiled, but .compile() was called on "
            f"{which}. Call accelerate first and compile its result."
        )
    if not loaders:
        raise TypeError("accelerate() needs the loaders whose batches the model will see.")
    for loader in loaders:
        if not isinstance(loader, DirectLoader):
            raise TypeError(
                f"accelerate() needs loaders of pyg_direct (NeighborLoader, LinkNeighborLoader), "
                f"got {type(loader).__module__}.{type(loader).__name__}."
            )
