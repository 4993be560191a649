"""Arguments of an accelerated model: containers with sampled edges in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch.edges import SampledEdges
from ..core.private_torch import tree_leaves, tree_map


def has_hops(value: Any) -> bool:
    """Whether there are sampled edges in a value."""
    if isinstance(value, Mapping):
        return any(map(has_hops, value.values()))
    return isinstance(value, SampledEdges)


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
    tensors, named = map_edges((args, kwargs), SampledEdges.as_tensor)
    return forward(*tensors, **named)


def copied_tensors(value: Any) -> Any:
    """Return arguments with copies of their tensors, which a forward may write to."""

    def copied(leaf: Any) -> Any:
        if type(leaf) is not Tensor:
            return leaf
        return leaf.detach().clone().requires_grad_(leaf.requires_grad)

    return tree_map(copied, value)


def tensors_of(inputs: Mapping[str, Any]) -> list[Tensor]:
    """Return the tensors among arguments, beside edges: a forward may have written to them."""
    leaves = tree_leaves({name: inputs[name] for name in sorted(inputs)})
    return [leaf.detach() for leaf in leaves if type(leaf) is Tensor]


def modes_of(module: torch.nn.Module) -> list[Any]:
    """Return what modules a model has, and their modes: a recorded forward holds for them only."""
    found: list[Any] = []
    rest = [module]
    while rest:
        module = rest.pop()
        found += (id(module), module.training)
        rest += [child for child in module._modules.values() if child is not None]
    return found


def modes_of_torch() -> tuple[Any, ...]:
    """Return the settings of torch that a forward may ask for and decide by."""
    devices = ("cpu", "cuda")
    mixed = [(torch.is_autocast_enabled(d), torch.get_autocast_dtype(d)) for d in devices]
    return (*mixed, torch.get_default_dtype(), torch.get_num_threads(), torch.is_grad_enabled())


def kind_of(value: Any) -> Any:
    """Return what has to be the same of an argument for a recorded forward to hold."""
    if isinstance(value, SampledEdges):
        value = value.as_tensor()  # what a subclass is asked goes through Python
    if isinstance(value, Tensor):
        return value.dtype, value.dim()
    if isinstance(value, Mapping):
        return tuple((key, kind_of(v)) for key, v in value.items())
    return type(value), str(value)
