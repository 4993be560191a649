"""The seam between policy (above) and hardware (below).

Everything that touches the elements of a large array goes through one of these two protocols, which
each backend implements: `cpu` with numba kernels, `cuda` with the kernels of `cuda/*.cu`. Above the
seam nothing asks which backend it runs on; below it nothing knows what PyG's arguments mean. Both
backends give the same numbers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from ..types import BatchKey, Csc, SampledGraph, SamplingPlan


class Workspace(Protocol):
    """Scratch memory for one batch at a time, reused from batch to batch.

    The order of calls is `start`, then for each hop `plan`, `sample`, `relabel`, then `emit` or
    `emit_induced`. One thread at a time.
    """

    def start(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        seed_time: Tensor | None = None,
    ) -> None:
        """Begin a batch.

        Args:
            seeds: one int64 tensor [n_t] of node ids in [0, num_nodes[t]) for each node type, or
                None; duplicates are kept.
            key: the Philox key that all draws of the batch come from.
            seed_time: int64 [n], the time of each seed, all types one after another; needed if and
                only if the CSC has times. No neighbour is later than the seed of its subgraph.
        """

    def plan(self, hop: int) -> None:
        """Count the edges that each frontier node gets, and make room for them."""

    def sample(self, hop: int) -> None:
        """Draw the edges of the hop."""

    def relabel(self, hop: int) -> None:
        """Number the sources of the hop in order of first occurrence; they are the next frontier.

        Relations are visited in the order of the CSC, edges in the order of `sample`.
        """

    def emit(self) -> SampledGraph:
        """Hand out the sampled subgraph as tensors of its own. Waits for the device, if any."""

    def emit_induced(self) -> SampledGraph:
        """Hand out all edges between the sampled nodes, by destination; no counts of edges."""


class Backend(Protocol):
    """What a device can do."""

    device: torch.device
    threads: int  # CPU threads that may share one batch
    on_host: bool  # whether batches lie in host memory, where they can be pinned

    def home(self, device: torch.device) -> torch.device:
        """Return where a batch keeps what the data has on `device`."""

    def place(self, csc: Csc) -> Csc:
        """Return `csc` with its arrays as this backend reads them, copying nothing if it can."""

    def workspace(self, csc: Csc, plan: SamplingPlan) -> Workspace:
        """Return a new workspace for a placed graph."""

    def gather(self, table: Tensor, index: Tensor) -> Tensor:
        """Return ``table[index]``: rows of any dtype and shape.

        Args:
            table: [N, ...], contiguous; read where it lies.
            index: int64 [n], each in [0, N), on this backend's device.

        Raises:
            IndexError: on the CPU, an id out of range.
        """


def backend_for(device: torch.device, threads: int = 1) -> Backend:
    """Return the backend of `device`.

    Args:
        device: where the batches shall be.
        threads: how many CPU threads may share one batch.

    Raises:
        NotImplementedError: no backend for such a device.
        RuntimeError: a CUDA device that cannot be used; the message says what is missing.
    """
    if device.type == "cpu":
        from .cpu import CpuBackend

        return CpuBackend(threads)
    if device.type == "cuda":
        from .cuda import CudaBackend

        return CudaBackend(device)
    raise NotImplementedError(
        f"No backend for device {str(device)!r}: use 'cpu', 'cuda' or 'cuda:0'."
    )
