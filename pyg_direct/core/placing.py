"""Where a user wants the batches, the topology and the features."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import torch


@dataclass(frozen=True, eq=False)
class Gpu:
    """What a loader puts where for a GPU; on the CPU it has no effect.

    Passed as ``NeighborLoader(..., gpu=Gpu(cache="auto"))``. The names of its fields are arguments
    of the loaders, too, and mean the same; one is given in one of the two ways. What was given is
    named by ``print(loader.placement)``. On the CPU ``topology="device"`` and ``features="device"``
    are refused, so that a script runs on both with everything else.

    Args:
        topology: where the graph is stored: 'host', pinned and read over PCIe; 'device'; or
            'auto', which takes GPU memory for the CSC's indptr first, then for the rest, as far as
            `device_bytes` go.
        features: the same for the attributes, which in 'auto' come after the graph, small ones
            first. Those on the host are registered where they are and read by the GPU, row by row;
            what cannot be registered is copied to pinned memory or left to the CPU, with a warning.
            Loaders share their copies in GPU memory, and a copy follows its tensor when torch
            changes that in place; what NumPy writes goes unseen.
        device_bytes: GPU memory that 'auto' may take; None for half of what is free.
        gather_blocks: blocks of 256 threads that may read attributes on the host at the same time;
            None takes what keeps PCIe busy, as ``python -m pyg_direct.info`` measured it or for
            PCIe 5. The fewer, the more of the GPU is left to training.
        cache: GPU memory for the rows of node attributes on the host that batches visit most, so
            that they are not read over PCIe: bytes as an int, a share of the attributes on the
            host as a float in [0, 1], or 'auto' for what graph and attributes left of
            `device_bytes`. Filled when the loader is first iterated; batches have the same bits
            with any cache, and cached rows follow their tensors as copies do. Where memory is
            short, a smaller cache is made, with a warning. None: no cache.
        cache_policy: which rows: those of nodes that batches visit most by seeds, fan-outs and
            degrees, 'visits' (where `expected_visits` refuses the loader, 'presample'); those in 64
            batches (at most an epoch) that are sampled beforehand, with their weights and times,
            'presample'; those with most edges that leave them, 'degree'; or those with the largest
            numbers in a tensor [num_nodes] of yours, with node types in a dict of such, where 0
            stands for nodes that are never cached.
        ids: where `n_id`, `e_id` and `input_id` are: on the 'host', as PyG's, since programs index
            their own CPU tensors with them; or on the 'device' of the batch, without that copy.

    Example:
        >>> in_memory = pyg_direct.Gpu(topology="device", features="host", cache=0.1)
        >>> in_memory.cache
        0.1
    """

    topology: str = "auto"
    features: str = "auto"
    device_bytes: int | None = None
    gather_blocks: int | None = None
    cache: str | int | float | None = None
    cache_policy: Any = "visits"
    ids: str = "host"


GPU_NAMES = tuple(field.name for field in fields(Gpu))


class Placing(NamedTuple):
    """A device, and the fields of `Gpu`: arguments of both loaders."""

    device: torch.device | str | int | None
    topology: str = "auto"
    features: str = "auto"
    device_bytes: int | None = None
    ids: str = "host"
    gather_blocks: int | None = None
    cache: str | int | float | None = None
    cache_policy: Any = "visits"
    cpu_for: str = ""  # the argument for which batches are made on the CPU, not a user's

    def given(self) -> tuple[str, ...]:
        """Return the names of the arguments, but for the device, that are not at their defaults."""
        defaults = {
            name: value for name, value in self._field_defaults.items() if name != "cpu_for"
        }
        return tuple(name for name, value in defaults.items() if getattr(self, name) != value)
