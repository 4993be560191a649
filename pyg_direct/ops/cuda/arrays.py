"""Device arrays that travel together through the kernels' arguments."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...types import Csc, IntTable, SamplingPlan
from . import memory as device_memory

SCAN_ITEMS_PER_THREAD = 4
MAX_BLOCKS = 1024
MAX_SCAN_BLOCKS = 256


class Grids:
    """How many blocks a launch has.

    Args:
        block_threads: threads of a block.
    """

    def __init__(self, block_threads: int) -> None:
        self.block_threads = block_threads

    def loop(self, threads: int) -> int:
        """Return the number of blocks for a loop over `threads` elements."""
        return max(1, min(-(-threads // self.block_threads), MAX_BLOCKS))

    def scan(self, elements: int) -> int:
        """Return the number of blocks for a prefix sum of `elements` elements."""
        share = self.block_threads * SCAN_ITEMS_PER_THREAD
        return max(1, min(-(-elements // share), MAX_SCAN_BLOCKS))


class Attributes:
    """The times and weights of a placed graph; arrays of length 0 where it has none.

    Args:
        csc: the graph, with its arrays on `device`.
        device: of the kernels.
    """

    def __init__(self, csc: Csc, device: torch.device) -> None:
        self._device = device
        no_doubles = torch.empty(0, dtype=torch.float64, device=device)
        no_ints = self._no_time = torch.empty(0, dtype=torch.int64, device=device)
        self.time: Tensor = no_ints if csc.times is None else csc.times.time
        self.time_base = upload(csc.time_base, device)  # [R]
        self.seed_time = self._no_time  # of the batch
        self.weighted = upload(csc.weighted, device)  # [R], 0 or 1
        self.weight = self.cumulative = no_doubles
        self.alias = no_ints
        if csc.weights is not None:
            self.weight, self.cumulative = csc.weights.weight, csc.weights.cumulative
            self.alias = no_ints if csc.weights.alias is None else csc.weights.alias

    def begin(self, seed_time: Tensor | None) -> None:
        """Take the times of a batch's seeds: int64 [n], or None."""
        self.seed_time = self._no_time
        if seed_time is not None:
            self.seed_time = device_memory.upload(seed_time.contiguous(), self._device)


class Items:
    """The (relation, frontier node) pairs of the current hop.

    Args:
        device: of the kernels.
        weighted: whether any relation has weights.
    """

    def __init__(self, device: torch.device, weighted: bool) -> None:
        self._device, self._weighted = device, weighted
        self._allocate(0)

    def make_room(self, items: int) -> None:
        """Have room for `items` items, forgetting those of the hop before."""
        if items >= len(self.ptr):
            self._allocate(items + items // 2 + 1)

    def _allocate(self, room: int) -> None:
        def ints() -> Tensor:
            return device_memory.empty(room, torch.int64, self._device)

        self.start, self.degree = ints(), ints()  # the positions that may be taken
        self.ptr = ints()  # [items + 1]: first edge
        # The weight of the node's list before the item.
        low_room = room if self._weighted else 0
        self.low = device_memory.empty(low_room, torch.float64, self._device)


class Counts:
    """All counts of a batch in one piece, so that they are uploaded and read back at once.

    Args:
        csc: the graph.
        plan: how it is sampled.
        device: of the kernels.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, device: torch.device) -> None:
        hops, types, relations = len(plan.fanouts), csc.num_types, csc.num_relations
        self._dst_type, self._device = csc.dst_type, device
        self._shapes = (
            (hops + 2, types),
            (hops + 1, relations + 1),
            (hops, relations + 1),
            (relations + 1,),
        )
        size = sum(math.prod(shape) for shape in self._shapes)
        self._all = upload(np.zeros(size, np.int64), device)
        self.node_ptr, self.item_base, self.edge_ptr, self.induced = self._split(self._all)

    def begin(self, seeds: IntTable) -> None:
        """Start a batch with `seeds` [T] seeds of each type."""
        counts = torch.zeros(len(self._all), dtype=torch.int64)
        node_ptr, item_base, _, _ = self._split(counts)
        node_ptr[1] = torch.from_numpy(seeds)
        item_base[0, 1:] = torch.from_numpy(np.cumsum(seeds[self._dst_type]))
        self._all.copy_(device_memory.upload(counts, self._device))

    def read(self) -> list[IntTable]:
        """Wait for the device, and return node_ptr, item_base, edge_ptr and induced."""
        host = device_memory.download(self._all)
        return [part.numpy() for part in self._split(host)]

    def _split(self, counts: Tensor) -> list[Tensor]:
        parts, first = [], 0
        for shape in self._shapes:
            last = first + math.prod(shape)
            parts.append(counts[first:last].view(shape))
            first = last
        return parts


def upload(table: IntTable | npt.NDArray[np.bool_], device: torch.device) -> Tensor:
    """Return a table of the host as int64 on `device`."""
    return device_memory.upload(torch.from_numpy(table.astype(np.int64)), device)


def prefix_sums(counts: IntTable) -> IntTable:
    """Return the sums of the first 0, 1, 2, ... counts."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
