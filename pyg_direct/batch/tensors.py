"""The tensors in a batch, or in whatever a user's transform makes of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor
from torch_geometric.sampler import SamplerOutput

from .edges import SampledEdges

PLAIN = (str, bytes, int, float, complex, bool, type(None), type)


def tensors_of(value: Any, without: frozenset[int] = frozenset()) -> Iterator[Tensor]:
    """Yield every tensor that can be reached from `value` through containers and attributes.

    Args:
        value: a batch, a sampler's output, or anything else.
        without: ids of objects that are not looked into, however they are reached.
    """
    seen, rest = set(without), [value]
    while rest:
        item = rest.pop()
        if isinstance(item, PLAIN) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, SampledEdges):
            yield from item.tensors()
        elif isinstance(item, Tensor):
            yield item
        elif isinstance(item, Mapping):
            rest.extend(item.values())
        elif isinstance(item, (list, tuple, set, frozenset)):
            rest.extend(item)
        else:
            rest.extend(getattr(item, "__dict__", {}).values())


def tensors_made(data: Any, product: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch or a sampled subgraph that it does not share with the graph.

    What it shares may be large, and is not the batch's to keep.
    """
    shared = {id(data)}
    for store in getattr(data, "stores", ()):
        shared |= {id(store), *map(id, store.values())}
    yield from tensors_of(product, frozenset(shared))


SAMPLED = ("node", "row", "col", "edge", "batch", "orig_row", "orig_col")


def moved(out: Any, device: torch.device) -> Any:
    """Return a sampler's output with its tensors on `device`; itself if they are there."""
    changed = {}
    for name in SAMPLED:
        value = getattr(out, name)
        if isinstance(value, dict):
            if any([part is not None and part.device != device for part in value.values()]):
                here = {k: None if part is None else part.to(device) for k, part in value.items()}
                changed[name] = here
        elif value is not None and value.device != device:
            changed[name] = value.to(device)
    if changed:
        out = copy.copy(out)
        out.__dict__.update(changed)
    return out


def with_edge_ids(out: Any, permutation: Any) -> Any:
    """Return the output of a sampler of PyG's, whose `edge` is a position, with edge ids instead.

    Our own sampler has no permutation to apply.
    """
    if permutation is None or out.edge is None:
        return out
    out = copy.copy(out)
    if isinstance(out, SamplerOutput):
        out.edge = permutation[out.edge]
    else:
        out.edge = {
            key: edge if edge is None or permutation.get(key) is None else permutation[key][edge]
            for key, edge in out.edge.items()
        }
    return out
