"""What several ranks must have in common to compute the outputs of one model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.lazy_tensor import LazyTensor
from ..core.private_torch import tree_leaves
from ..ranks.together import Together
from .inputs import EDGE_NAMES, is_edges
from .store import checksum_of

SAMPLE = 64  # rows, and columns, of an argument that are compared


def said_of(model: torch.nn.Module, data: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of a model and its arguments: all parameters, and samples of data."""
    found = {"model": checksum_of(model.state_dict())}
    for name, value in arguments.items():
        edges = [store[key] for store in data.stores for key in EDGE_NAMES if key in store]
        given = edges if is_edges(name) else value
        parts = [_sample(v) for v in tree_leaves(given) if isinstance(v, Tensor)]
        found[name] = checksum_of({str(i): part for i, part in enumerate(parts)})
    return found


def _sample(value: Tensor) -> Any:
    """Return some elements of a tensor; of one that would have to be made, its shape."""
    if isinstance(value, LazyTensor) or value.layout != torch.strided:
        return f"{tuple(value.shape)} {value.dtype}"
    steps = [slice(None, None, max(1, size // SAMPLE)) for size in value.shape]
    return {"shape": tuple(value.shape), "elements": value.detach()[tuple(steps)].tolist()}


def check_equal(ranks: Together, values: Mapping[str, Any]) -> None:
    """Raise ValueError on all ranks for a value, by name, that differs between them. Collective."""
    said = ranks.exchange("the arguments of inference()", {k: str(v) for k, v in values.items()})
    for rank, others in enumerate(said):
        differing = [name for name in said[0] if others.get(name) != said[0][name]]
        if differing or len(others) != len(said[0]):
            raise ValueError(
                f"Ranks give inference() different arguments: {', '.join(differing) or 'inputs'} "
                f"of rank {rank} is not that of rank 0. All ranks need the same model, as after "
                f"DistributedDataParallel, the same data, and equal arguments."
            )


@contextmanager
def same_draws(ranks: Together, device: torch.device) -> Iterator[None]:
    """Let several ranks draw the same random numbers for a while, and put back their generators."""
    if ranks.size == 1:
        yield
        return
    seed = ranks.from_first("a seed", lambda: int(torch.randint(1 << 62, ())))
    with torch.random.fork_rng([device] if device.index is not None else []):
        torch.manual_seed(seed)
        yield
