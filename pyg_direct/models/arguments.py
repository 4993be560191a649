"""Arguments of an accelerated model: containers with sampled edges in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor

from ..batch.edges import SampledEdges
from ..core.cooperation import Cooperation
from ..core.private_torch import tree_leaves, tree_map


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


def common_of(edges: list[tuple[Any, SampledEdges]]) -> Cooperation | None:
    """Return what edges say of the ranks that make their batch together; None for one rank's."""
    known = (sampled.common for _, sampled in edges)
    return next((common for common in known if common is not None), None)


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

    copies: dict[int, Tensor] = {}  # one for a tensor that is given twice

    def copied(leaf: Any) -> Any:
        if type(leaf) is not Tensor:
            return leaf
        if id(leaf) not in copies:
            copies[id(leaf)] = leaf.detach().clone().requires_grad_(leaf.requires_grad)
        return copies[id(leaf)]

    return tree_map(copied, value)


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors among arguments, beside edges: a forward may have written to them."""
    return [leaf.detach() for leaf in tree_leaves(value) if type(leaf) is Tensor]
