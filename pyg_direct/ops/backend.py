"""The seam between policy (above) and hardware (below).

Everything that touches the elements of a large array goes through one of these two protocols, which
each backend implements: `cpu` with numba kernels, `cuda` with the kernels of `cuda/*.cu`. Above the
seam nothing asks which backend it runs on; below it nothing knows what PyG's arguments mean. Both
backends give the same numbers, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..types import BatchKey, Csc, SampledGraph, SamplingPlan
from .placement import Placement
from .streams import Streams


class Workspace(Protocol):
    """Scratch memory for one batch at a time, reused from batch to batch.

    The order of calls is `start`, `sample_hops`, then `emit` or `emit_induced`. One thread at a
    time.
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

    def sample_hops(self, first: int, last: int) -> None:
        """Sample the hops [first, last) of the plan, in as few compiled calls as the backend can.

        Each hop counts the edges of every frontier node, draws them, and gives local ids to their
        sources in order of first occurrence: relations in the order of the CSC, and the edges of a
        relation by frontier node. The sources that are new are the next frontier.
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
    producers: int  # threads that make batches where the user asks for no worker
    streams: Streams

    @property
    def placement(self) -> Placement:
        """What was decided in `place` and `hold`, for the user to read."""

    def bring(self, value: Any, device: torch.device) -> Any:
        """Return a part of a batch on the device where it belongs, without waiting for it.

        Args:
            value: a tensor, or an object with a method `to`.
            device: where the data has what it was made from.
        """

    def place(self, csc: Csc, topology: str = "auto", device_bytes: int | None = None) -> Csc:
        """Return `csc` with its arrays as this backend reads them.

        Args:
            csc: the graph, with NumPy arrays.
            topology: "host", "device", or "auto" for the device as far as `device_bytes` go.
            device_bytes: device memory that `place` and `hold` may use in "auto"; None for half of
                what is free.

        Raises:
            ValueError: "device" where there is none.
            PinningError: memory of the host that the device cannot read.
        """

    def retrieve(self, csc: Csc) -> Csc:
        """Return a placed graph with NumPy arrays, so that another process can place it."""

    def hold(self, tables: Iterable[tuple[str, Tensor]], features: str = "auto") -> None:
        """Place tables that batches will be gathered from.

        Args:
            tables: names for messages, and contiguous tensors [N, ...].
            features: as `topology` of `place`. What the device cannot read is left to the host,
                with a warning.
        """

    def reach(self, table: Tensor) -> Tensor | None:
        """Return what `gather` takes for a contiguous table; None if the backend cannot read it."""

    def workspace(self, csc: Csc, plan: SamplingPlan) -> Workspace:
        """Return a new workspace for a placed graph."""

    def gather(self, table: Tensor, index: Tensor, end: int | None = None) -> Tensor:
        """Return ``table[index]``: rows of any dtype and shape.

        Args:
            table: [N, ...], contiguous, from `reach`; read where it lies.
            index: int64 [n], each in [0, N), on this backend's device.
            end: what all ids are known to be below; without it, a GPU is waited for.

        Raises:
            IndexError: an id out of range.
        """
