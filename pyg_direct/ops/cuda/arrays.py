"""Device arrays that travel together through the kernels' arguments."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...types import BatchKey, Csc, IntTable, SamplingPlan
from . import memory as device_memory

SCAN_ITEMS_PER_THREAD = 4
MAX_BLOCKS = 1024
MAX_SCAN_BLOCKS = 256
# Of a kernel that reads host memory. With a read of 32 bytes a thread, 32 blocks of 256 threads
# have 2.5 times as much under way as PCIe 5 x16 needs (64 GB/s * 1.6 us), and leave the rest of the
# multiprocessors to training.
HOST_BLOCKS = 32


class Grids:
    """How many blocks a launch has.

    Args:
        block_threads: threads of a block.
        most: blocks of a launch, at most.
    """

    def __init__(self, block_threads: int, most: int = MAX_BLOCKS) -> None:
        self.block_threads, self._most = block_threads, most

    def loop(self, threads: int) -> int:
        """Return the number of blocks for a loop over `threads` elements."""
        return max(1, min(-(-threads // self.block_threads), self._most))

    def scan(self, elements: int) -> int:
        """Return the number of blocks for a prefix sum of `elements` elements."""
        share = self.block_threads * SCAN_ITEMS_PER_THREAD
        return max(1, min(-(-elements // share), MAX_SCAN_BLOCKS, self._most))


def graph_arguments(csc: Csc, plan: SamplingPlan, device: torch.device) -> dict[str, Tensor | int]:
    """Return what kernels take of a graph and a plan, by the names of their parameters.

    Arrays that the graph has not are of length 0.

    Args:
        csc: the graph, placed for `device`.
        plan: how it is sampled.
        device: of the kernels.
    """
    no_doubles = torch.empty(0, dtype=torch.float64, device=device)
    no_ints = torch.empty(0, dtype=torch.int64, device=device)
    times, weights, perm = csc.times, csc.weights, csc.perm
    relations = np.stack([csc.src_type, csc.dst_type, csc.indptr_base])
    return {
        "indptr": csc.indptr,
        "indices": csc.indices,
        "perm": csc.indices[:0] if perm is None else perm,
        "has_perm": int(perm is not None),
        "edge_base": upload(csc.edge_base[:-1], device),  # [R]
        "relations": upload(relations, device),  # [3, R]
        "num_relations": csc.num_relations,
        "num_types": csc.num_types,
        "time": no_ints if times is None else times.time,
        "time_base": upload(csc.time_base, device),  # [R]
        "weighted": upload(csc.weighted, device),  # [R], 0 or 1
        "weight": no_doubles if weights is None else weights.weight,
        "cumulative": no_doubles if weights is None else weights.cumulative,
        "alias": no_ints if weights is None or weights.alias is None else weights.alias,
        "disjoint": int(plan.disjoint),
        "replace": int(plan.replace),
        "recent": int(plan.recent),
    }


class Growing(dict[str, Tensor]):
    """Arrays of a workspace by name, which are replaced by longer ones when they must grow.

    Args:
        device: of the kernels.
        replaced: called whenever an array is replaced, as its address is another one then.
    """

    def __init__(self, device: torch.device, replaced: Callable[[], None]) -> None:
        super().__init__()
        self._device, self._replaced = device, replaced

    def add(self, name: str, dtype: torch.dtype = torch.int64, room: int = 0) -> None:
        """Add an array."""
        self[name] = device_memory.empty(room, dtype, self._device)

    def grow(self, name: str, room: int, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Have room for `room` elements, keeping some pieces (first element, length)."""
        before = self[name]
        if room > len(before):
            self.replace(name, device_memory.grown(before, room, kept))

    def replace(self, name: str, array: Tensor) -> None:
        """Put an array in the place of another one."""
        self[name] = array
        self._replaced()


class BatchState:
    """What differs from batch to batch, in one piece, so that it is uploaded and read back at once.

    Args:
        csc: the graph.
        plan: how it is sampled.
        device: of the kernels.

    Attributes:
        arguments: all parts by name, int64: the counts node_ptr [hops + 2, T], the nodes of each
            type before and after each hop; item_base [hops + 1, R + 1] and edge_ptr
            [hops, R + 1], the first item and edge of each relation in each hop; induced [R + 1],
            the first edge of each relation between the sampled nodes; and what the kernels take as
            window, key, seed_start, seed and seed_time.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan, device: torch.device) -> None:
        hops, types, relations = len(plan.fanouts), csc.num_types, csc.num_relations
        self._dst_type, self._device = csc.dst_type, device
        self._counts: dict[str, tuple[int, ...]] = {
            "node_ptr": (hops + 2, types),
            "item_base": (hops + 1, relations + 1),
            "edge_ptr": (hops, relations + 1),
            "induced": (relations + 1,),
        }
        self._num_counts = sum(map(math.prod, self._counts.values()))
        self._others: dict[str, tuple[int, ...]] = {
            "window": (3,), "key": (2,), "seed_start": (types + 1,),
        }  # fmt: skip
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._all = torch.empty(0, dtype=torch.int64, device=device)
        self.arguments: dict[str, Tensor] = {}

    def begin(
        self, seeds: Sequence[Tensor], window: Sequence[int], key: BatchKey,
        seed_time: Tensor | None,
    ) -> bool:  # fmt: skip
        """Upload the state at the start of a batch, and return whether its arrays are new ones.

        Args:
            seeds: int64 of each type.
            window: base, width and locals: see table.cuh.
            key: of the draws.
            seed_time: int64, the time of each seed, or None.
        """
        sizes = np.array([len(seed) for seed in seeds], np.int64)
        times = 0 if seed_time is None else len(seed_time)
        total = int(sizes.sum())
        shapes = {**self._counts, **self._others, "seed": (total,), "seed_time": (times,)}
        host = torch.zeros(sum(map(math.prod, shapes.values())), dtype=torch.int64)
        parts = split(host, shapes)
        parts["node_ptr"][1] = torch.from_numpy(sizes)
        parts["item_base"][0, 1:] = torch.from_numpy(np.cumsum(sizes[self._dst_type]))
        parts["window"][:] = torch.tensor(window)
        parts["key"][:] = torch.tensor([key.low, key.high])
        parts["seed_start"][1:] = torch.from_numpy(np.cumsum(sizes))
        if total > 0:
            torch.cat([seed.cpu() for seed in seeds], out=parts["seed"])
        if seed_time is not None:
            parts["seed_time"].copy_(seed_time)
        if shapes == self._shapes:
            device_memory.upload_into(self._all, host)
            return False
        self._shapes, self._all = shapes, device_memory.upload(host, self._device)
        self.arguments = split(self._all, shapes)
        return True

    def move_window(self, window: Sequence[int]) -> None:
        """Upload another window in the middle of a batch."""
        device_memory.upload_into(self.arguments["window"], torch.tensor(window))

    def read(self) -> dict[str, IntTable]:
        """Wait for the device, and return the counts."""
        host = device_memory.download(self._all[: self._num_counts])
        return {name: part.numpy() for name, part in split(host, self._counts).items()}


def split(piece: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return views of one piece of memory, one behind the other."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    views = torch.split(piece, sizes)
    return {name: v.view(shape) for (name, shape), v in zip(shapes.items(), views, strict=True)}


def upload(table: IntTable | npt.NDArray[np.bool_], device: torch.device) -> Tensor:
    """Return a table of the host as int64 on `device`."""
    return device_memory.upload(torch.from_numpy(table.astype(np.int64)), device)


def prefix_sums(counts: IntTable) -> IntTable:
    """Return the sums of the first 0, 1, 2, ... counts."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
