"""What a consumer does with batches, and how those of two devices are compared."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_direct.batch.edges import SampledEdges

ON_HOST = frozenset(["n_id", "e_id", "input_id"])  # unless ids="device"

Stores = list[dict[str, Any]]
"""Values by name, of each store of a batch."""


def take(batch: Any) -> Stores:
    """Queue a copy of every tensor on the current stream, without waiting, and drop the batch.

    What reads the batch runs later than the call, as a model's kernels do.
    """
    stores = [dict(store.items()) for store in batch.stores]
    return [{name: _copied(value) for name, value in store.items()} for store in stores]


def _copied(value: Any) -> Any:
    dense = isinstance(value, Tensor) and value.layout == torch.strided
    return value.clone() if dense and value.is_contiguous() else value


def epoch(loader: Iterable[Any]) -> list[Stores]:
    """Return what a consumer took of each batch of an epoch, once its streams have done all."""
    taken = [take(batch) for batch in loader]
    for device in devices_of(taken):  # a wait for another one would open a context there
        torch.cuda.current_stream(device).synchronize()
    return taken


def devices_of(batches: list[Stores]) -> set[torch.device]:
    """Return the CUDA devices of tensors."""
    values = (value for stores in batches for store in stores for value in store.values())
    return {value.device for value in values if isinstance(value, Tensor) and value.is_cuda}


def difference(found: list[Stores], expected: list[Stores]) -> str:
    """Return the first difference in names, shapes, dtypes or bits, or ""."""
    if len(found) != len(expected):
        return f"{len(found)} batches, not {len(expected)}"
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        if len(ours) != len(theirs):
            return f"batch {number}: {len(ours)} stores, not {len(theirs)}"
        for store, values in zip(ours, theirs, strict=True):
            if store.keys() != values.keys():
                return f"batch {number}: {sorted(store.keys() ^ values.keys())} in one of them"
            for name, value in values.items():
                wrong = _difference(store[name], value)
                if wrong:
                    return f"batch {number}: {name}: {wrong}"
    return ""


def _counts(edges: SampledEdges) -> Any:
    """Return the counts by hop of edges, without what they say of ranks."""
    return edges.hops and edges.hops._replace(common=None)


def _difference(found: Any, expected: Any) -> str:
    if not isinstance(expected, Tensor):
        return "" if repr(found) == repr(expected) else f"{found!r}, not {expected!r}"
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype} {tuple(found.shape)}, not {expected.dtype} {tuple(expected.shape)}"
    if isinstance(expected, SampledEdges):
        if not isinstance(found, SampledEdges) or _counts(found) != _counts(expected):
            return "no hops, or others"
        found, expected = found.as_tensor(), expected.as_tensor()
    ours, theirs = _bytes(found), _bytes(expected)
    wrong = (ours != theirs).nonzero().view(-1)
    if len(wrong) == 0:
        return ""
    first = int(wrong[0]) // expected.element_size()
    place = [int(i) for i in np.unravel_index(first, expected.shape)]
    values = [t.detach().cpu().flatten()[first].item() for t in (found, expected)]
    return f"{len(wrong)} of {len(ours)} bytes, first at {place}: {values[0]}, not {values[1]}"


def _bytes(tensor: Tensor) -> Tensor:
    flat = tensor.detach().cpu().flatten()
    return flat.view(torch.uint8) if flat.numel() > 0 else torch.empty(0, dtype=torch.uint8)


def misplaced(batches: list[Stores], device: str, ids_on_device: bool = False) -> str:
    """Return the first tensor that is not where batches of a GPU have it, or ""."""
    wanted = torch.device(device)
    for number, stores in enumerate(batches):
        for store in stores:
            for name, value in store.items():
                if not isinstance(value, Tensor):
                    continue
                on_host = name in ON_HOST and not ids_on_device
                place = torch.device("cpu") if on_host else wanted
                if value.device != place:
                    return f"batch {number}: {name} is on {value.device}, not on {place}"
    return ""
