"""Device arrays of a workspace, and what is uploaded for each batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import (
    BatchKey,
    Csc,
    ExcludedEdges,
    IntTable,
    Rules,
    SamplingPlan,
    Variates,
)
from ..streams import Streams
from . import memory as device_memory
from . import tuning
from .descriptor import Descriptor

SCAN_ITEMS_PER_THREAD = 4


class Grids:
    """How many blocks a launch has.

    Args:
        block_threads: threads of a block.
        most: blocks of a launch, at most.
    """

    def __init__(self, block_threads: int, most: int) -> None:
        self.block_threads, self._most = block_threads, most

    def loop(self, threads: int) -> int:
        """Return the number of blocks for a loop over `threads` elements."""
        return max(1, min(-(-threads // self.block_threads), self._most))

    def scan(self, elements: int) -> int:
        """Return the number of blocks for a prefix sum of `elements` elements."""
        share = self.block_threads * SCAN_ITEMS_PER_THREAD
        return max(1, min(-(-elements // share), tuning.MAX_SCAN_BLOCKS, self._most))


def graph_fields(csc: Csc, plan: SamplingPlan, device: torch.device) -> dict[str, Tensor | int]:
    """Return the fields of the struct `Graph`: see cuda/batch.cuh.

    Arrays that the graph has not are of length 0.

    Args:
        csc: the graph, placed for `device`.
        plan: how it is sampled.
        device: of the kernels.
    """
    no_doubles = torch.empty(0, dtype=torch.float64, device=device)
    no_ints = torch.empty(0, dtype=torch.int64, device=device)
    times, weights = csc.times, csc.weights
    by_source = np.argsort(csc.src_type, kind="stable")
    tables = {
        "relations": np.concatenate([csc.src_type, csc.dst_type, csc.indptr_base]),
        "by_source": by_source,
        "source_ptr": np.searchsorted(csc.src_type[by_source], np.arange(csc.num_types + 1)),
        "edge_base": csc.edge_base[:-1],
        "fanouts": plan.fanouts.ravel(),
        "time_base": csc.time_base,
        "weighted": csc.weighted,
    }
    piece = upload(np.concatenate(list(tables.values())), device)
    return {
        **split(piece, {name: (len(table),) for name, table in tables.items()}),
        "indptr": csc.indptr,
        "indices": csc.indices,
        "time": no_ints if times is None else times.time,
        "weight": no_doubles if weights is None else weights.weight,
        "cumulative": no_doubles if weights is None else weights.cumulative,
        "alias": no_ints if weights is None or weights.alias is None else weights.alias,
        "num_relations": csc.num_relations,
        "num_types": csc.num_types,
        "disjoint": int(plan.disjoint),
        "replace": int(plan.replace),
        "recent": int(plan.recent),
        "excluding": int(plan.excluding),
    }


class Arrays:
    """Arrays of a workspace, which are replaced by longer ones when they must grow.

    Args:
        descriptor: has a field for each, through which kernels find it.
        device: of the kernels.
    """

    def __init__(self, descriptor: Descriptor, device: torch.device) -> None:
        self._descriptor, self.device = descriptor, device

    def __getitem__(self, name: str) -> Tensor:
        return self._descriptor.array(name)

    def add(self, name: str, dtype: torch.dtype = torch.int64, room: int = 0) -> None:
        """Add an array."""
        self.replace(name, device_memory.empty(room, dtype, self.device))

    def grow(self, name: str, room: int, kept: Sequence[tuple[int, int]] = ()) -> None:
        """Have room for `room` elements, keeping some pieces (first element, length)."""
        before = self[name]
        if room > len(before):
            self.replace(name, device_memory.grown(before, room, kept))

    def replace(self, name: str, array: Tensor) -> None:
        """Put an array in the place of another one; the descriptor must be uploaded again."""
        self._descriptor.set(**{name: array})


class BatchState:
    """All that is uploaded for a batch, in one piece: the descriptor, small tables, and the seeds.

    The counts of a batch stand in it, too, and are read back at once.

    Args:
        csc: the graph.
        plan: how it is sampled.
        descriptor: of the batch, which finds its place here.
        device: of the kernels.

    Attributes:
        tables: what the host writes, by the names of the descriptor's fields; see cuda/batch.cuh.
        induced: int64 [R + 1] on the device, the first edge of each relation between the sampled
            nodes.
    """

    def __init__(
        self, csc: Csc, plan: SamplingPlan, descriptor: Descriptor, device: torch.device
    ) -> None:
        hops, types, relations = len(plan.fanouts), csc.num_types, csc.num_relations
        self._dst_type, self._device, self._descriptor = csc.dst_type, device, descriptor
        self._plan = plan
        self._counts: dict[str, tuple[int, ...]] = {
            "node_ptr": (hops + 2, types),
            "item_base": (hops + 1, relations + 1),
            "edge_ptr": (hops, relations + 1),
            "induced": (relations + 1,),
        }
        head: dict[str, tuple[int, ...]] = {
            "descriptor": (len(descriptor.words),), "window": (3,), "node_start": (types,),
            "slot_base": (types + 1,), "hop_start": (hops + 1,), "key": (7,),
            "seed_start": (types + 1,),
        }  # fmt: skip
        self._shapes = {**head, **self._counts}
        self._head, self._fixed = (
            sum(map(math.prod, shapes.values())) for shapes in (head, self._shapes)
        )
        self._host = torch.zeros(self._fixed, dtype=torch.int64)
        parts = split(self._host, self._shapes)
        self.tables: dict[str, IntTable] = {name: part.numpy() for name, part in parts.items()}
        self._all = torch.empty(0, dtype=torch.int64, device=device)
        # Of seeds, their times and starts, excluded edges and their bounds.
        self._lengths: tuple[int, ...] = ()

    def begin(self, seeds: Sequence[Tensor], key: BatchKey, rules: Rules) -> bool:
        """Upload the state at the start of a batch, and return whether it has moved.

        Args:
            seeds: int64 of each type.
            key: of the draws.
            rules: of the batch.
        """
        sizes = np.array([len(seed) for seed in seeds], np.int64)
        return self._begin(0, sizes, seeds, key, rules, int(sizes.sum()))

    def begin_hop(
        self,
        hop: int,
        sizes: IntTable,
        key: BatchKey,
        rules: Rules,
        seed_of: Sequence[Tensor] | None,
    ) -> None:
        """Upload the state before a hop of `sizes` [T] nodes, which the lists hold already.

        Args:
            hop: number of the hop.
            sizes: nodes of each type.
            key: of the draws.
            rules: of the batch that the nodes belong to.
            seed_of: their subgraphs, or None.
        """
        subgraphs = 0
        if seed_of is not None and self._plan.excluding and rules.excluded is None:
            subgraphs = 1 + max((int(part.max()) for part in seed_of if len(part) > 0), default=-1)
        none = [torch.empty(0, dtype=torch.int64)] * len(sizes)
        self._begin(hop, sizes, none, key, rules, subgraphs)

    def _begin(
        self,
        hop: int,
        sizes: IntTable,
        seeds: Sequence[Tensor],
        key: BatchKey,
        rules: Rules,
        subgraphs: int,
    ) -> bool:
        tables, start = self.tables, prefix_sums(np.array([len(seed) for seed in seeds], np.int64))
        none = torch.empty(0, dtype=torch.int64)
        times = [none if part is None else part for part in (rules.seed_time, rules.seed_since)]
        left_out = self._left_out(subgraphs, rules.excluded)
        tail = [*(seed.cpu() for seed in seeds), *times, *left_out]
        lengths = (int(start[-1]), *map(len, times), *map(len, left_out))
        tables["node_ptr"][:], tables["item_base"][:] = 0, 0
        tables["node_ptr"][hop + 1] = sizes
        np.cumsum(sizes[self._dst_type], out=tables["item_base"][hop, 1:])
        first, following, share = rules.variates or Variates(key, key, 0)
        tables["key"][:] = (*key, *first, *following, share)
        tables["seed_start"][:] = start
        size = self._fixed + sum(lengths)
        moved = size > len(self._all)
        if moved:
            self._move(size + size // 2)
        if moved or lengths != self._lengths:
            self._lengths = lengths
            parts = torch.split(self._all[self._fixed :], [*lengths, len(self._all) - size])
            names = ("seed", "seed_time", "seed_since", "excluded", "excluded_bounds")
            fields = dict(zip(names, parts, strict=False))
            self._descriptor.set(**fields, has_since=int(lengths[2] > 0))
        tables["descriptor"][:] = self._descriptor.words
        host = torch.empty(size, dtype=torch.int64)
        host[: self._fixed] = self._host
        torch.cat(tail, out=host[self._fixed :])
        device_memory.upload_into(self._all[:size], host)
        return moved

    def _left_out(self, subgraphs: int, excluded: ExcludedEdges | None) -> list[Tensor]:
        """Return the excluded edges, and their bounds subgraph by subgraph."""
        if excluded is not None:
            return [excluded.position, excluded.bounds.T.reshape(-1)]
        groups = (subgraphs if self._plan.disjoint else 1) if self._plan.excluding else 0
        return [torch.zeros(size, dtype=torch.int64) for size in (0, 2 * groups)]

    def upload_tables(self) -> None:
        """Upload the descriptor and the tables again, in the middle of a batch."""
        self.tables["descriptor"][:] = self._descriptor.words
        device_memory.upload_into(self._all[: self._head], self._host[: self._head].clone())

    def read(self) -> dict[str, IntTable]:
        """Wait for the device, and return the counts."""
        return self._named(device_memory.download(self._all[self._head : self._fixed]))

    def begin_read(self, streams: Streams) -> Callable[[], dict[str, IntTable]]:
        """Begin to copy the counts to the host, and return what waits for them."""
        host = device_memory.begin_download(self._all[self._head : self._fixed])
        copied = streams.record_event()

        def read() -> dict[str, IntTable]:
            streams.synchronize(copied)
            return self._named(host)

        return read

    def _named(self, counts: Tensor) -> dict[str, IntTable]:
        return {name: part.numpy() for name, part in split(counts, self._counts).items()}

    def _move(self, room: int) -> None:
        """Take another piece of device memory, of `room` words."""
        self._all = device_memory.upload(torch.zeros(room, dtype=torch.int64), self._device)
        parts = split(self._all[: self._fixed], self._shapes)
        self.induced = parts.pop("induced")
        self._descriptor.place(parts.pop("descriptor"))
        self._descriptor.set(**parts)


def split(piece: Tensor, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    """Return views of one piece of memory, one after the other."""
    sizes = [math.prod(shape) for shape in shapes.values()]
    views = torch.split(piece, sizes)
    return {name: v.view(shape) for (name, shape), v in zip(shapes.items(), views, strict=True)}


def upload(table: IntTable | npt.NDArray[np.bool_], device: torch.device) -> Tensor:
    """Return a table of the host as int64 on `device`."""
    return device_memory.upload(torch.from_numpy(table.astype(np.int64)), device)


def prefix_sums(counts: IntTable) -> IntTable:
    """Return the sums of the first 0, 1, 2, ... counts."""
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
