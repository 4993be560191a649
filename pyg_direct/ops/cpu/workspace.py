"""One batch on the CPU: `ops.backend.Workspace` over numba kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import split
from ...core.types import NO_TIME, BatchKey, Csc, ExcludedEdges, SampledGraph, SamplingPlan, maker
from ...kernels import alias as weight_tables
from ...kernels import emit, exclude, hops, relabel, sample, temporal, weighted
from ..backend import ID_LIMIT, batch_too_large, in_range
from ..buffers import Resources
from .checks import check_items, check_sources, check_whole_lists
from .limits import NO_INTS, NO_LIMITS, limits_of
from .node_set import NodeSet
from .outputs import Lists, Outputs, copy_lists, copy_out
from .scratch import Scratch

Ints = npt.NDArray[Any]

new_graph = maker(SampledGraph)
MIN_ITEMS_PER_THREAD = 4096
NOTHING_EXCLUDED = np.empty((2, 0), np.int64)
NO_SEEDS = torch.empty(0, dtype=torch.int64)
NO_DOUBLES = np.empty(0, np.float64)
NO_EDGES = np.zeros((0, 1), np.int64)  # no hop of no relation


class CpuWorkspace(Scratch):
    """One batch at a time; see `ops.Workspace` for what the calls mean."""

    def __init__(self, csc: Csc, plan: SamplingPlan, resources: Resources) -> None:
        super().__init__(csc, plan)
        self._resources = resources
        self._relations = np.stack([csc.src_type, csc.dst_type, csc.indptr_base])
        self._dst_types: list[int] = csc.dst_type.tolist()
        self._num_nodes: list[int] = csc.num_nodes.tolist()
        self._node_base: list[int] = csc.node_base.tolist()
        # A node of a disjoint batch counts once in each subgraph, so its type sets no limit.
        no_limit = np.full(csc.num_types, np.iinfo(np.int64).max, np.int64)
        self._node_limit = no_limit if plan.disjoint else csc.num_nodes
        self._item_excluded = NOTHING_EXCLUDED

        self._time = NO_INTS if csc.times is None else csc.times.time
        self._time_base, self._weighted = csc.time_base, csc.weighted
        self._limits = NO_LIMITS
        self._weight = self._cumulative = NO_DOUBLES
        alias, self._positive = NO_INTS, False
        if csc.weights is not None:
            self._weight, self._cumulative = csc.weights.weight, csc.weights.cumulative
            alias = NO_INTS if csc.weights.alias is None else csc.weights.alias
            self._positive = csc.weights.positive
        self._alias = weight_tables.parts(alias)

        self._largest_fanout = int(plan.fanouts.max(initial=0))
        self._is_plain = (
            csc.verified
            and csc.times is None
            and csc.weights is None
            and not (plan.disjoint or plan.replace)
            and len(plan.fanouts) > 0
            and self._largest_fanout <= hops.LARGEST_FANOUT
        )
        self._growth = plan.growth
        self._most_items: int = self._node_base[-1] * csc.num_relations  # of a hop
        self._never_shared = self._most_items < 2 * MIN_ITEMS_PER_THREAD
        self._sampled_nodes = NodeSet(csc.node_base)
        self._key = (np.uint64(0), np.uint64(0))
        # What `hops.sample_batch` takes beside the seeds and the key.
        self._num_seeds = np.zeros(csc.num_types, np.int64)
        self._graph = (
            csc.indptr, csc.indices, self._relations, plan.fanouts, csc.num_nodes, csc.node_base,
        )  # fmt: skip

    def sample(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        seed_time: Tensor | None = None,
        excluded: ExcludedEdges | None = None,
        induced: bool = False,
    ) -> SampledGraph | None:
        """Sample a batch; in one call of a kernel if its rules are the plain ones."""
        alone = self._never_shared or self._resources.threads <= 1 or not self._shares_hops(seeds)
        if self._is_plain and excluded is None and alone:
            if not self._sample_plain(seeds, key):
                return None
        else:
            if not self.start(seeds, key, seed_time, excluded):
                return None
            self.sample_hops(0, len(self._plan.fanouts))
        return self.emit_induced() if induced else self.emit()

    def _sample_plain(self, seeds: Sequence[Tensor | None], key: BatchKey) -> bool:
        """Sample all hops in one call, or one more for each that finds an array too short."""
        ids = seeds[0]
        if ids is None or len(seeds) > 1:
            ids = torch.cat([NO_SEEDS, *(seed for seed in seeds if seed is not None)])
        if not (ids.is_cpu and ids.is_contiguous()):  # the kernel gets their address
            ids = ids.cpu().contiguous()
        sizes = [0 if seed is None else seed.shape[0] for seed in seeds]
        self._begin(sizes)
        self._num_seeds[:] = sizes
        self._limits, hop, address = NO_LIMITS, 0, ids.data_ptr()
        arrays = self._growing()
        while hop < len(self._plan.fanouts):
            hop = hops.sample_batch(
                *self._graph, address, self._num_seeds, hop, *key, self._stamp, *arrays
            )
            if hop < 0:
                return False
            if hop < len(self._plan.fanouts):
                self._make_item_room(self._count_items(hop))
                self._make_edge_room(hop)
                self._make_room()
                arrays = self._growing()
        return True

    def _growing(self) -> tuple[Ints, ...]:
        return (
            self._node, self._node_start, self._node_room, self._node_ptr, self._node_bound,
            self._edge_ptr, self._item_base, self._items, self._row, self._col, self._position,
            self._table, self._hop_nodes, self._hop_edges,
        )  # fmt: skip

    def start(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        seed_time: Tensor | None = None,
        excluded: ExcludedEdges | None = None,
    ) -> bool:
        """Begin a batch."""
        self._limits = limits_of(seed_time, excluded, self._plan.window)
        self._key = (np.uint64(key.low), np.uint64(key.high))
        sizes = [0 if seed is None else seed.shape[0] for seed in seeds]
        self._begin(sizes)
        self._node_bound[:] = counts = np.array(sizes, np.int64)
        self._make_room()
        # Before they are entered: if one is no node, the next batch must not know the others.
        self._node_ptr[1] = counts
        subgraph = 0
        for t, seed in enumerate(seeds):
            if seed is not None:
                if not self._enter(t, seed.numpy(), subgraph):
                    return False
                subgraph += sizes[t]
        return True

    def _enter(self, t: int, seed: Ints, subgraph: int) -> bool:
        """Enter the seeds of type t, of subgraphs from `subgraph` on; False if one is no node."""
        if not in_range(seed, self._num_nodes[t]):
            return False
        first, base = int(self._node_start[t]), self._node_base[t]
        n, stamp = len(seed), np.uint32(self._stamp)
        self._node[first : first + n] = seed
        if self._plan.disjoint:
            self._seed_of[first : first + n] = np.arange(subgraph, subgraph + n, dtype=np.int32)
            region = (first, first + n, 0, base, self._node_base[-1])
            relabel.enter_disjoint(self._node, self._seed_of, *region, self._table, stamp)
        else:
            hops.seeds_entered(self._node, first, first + n, base, self._table, stamp)
        return True

    def sample_hops(self, first: int, last: int) -> None:
        """Sample the hops [first, last) of the plan, step by step."""
        for hop in range(first, last):
            self.plan(hop)
            self.sample_edges(hop)
            self.relabel(hop)
        hops.hops_counted(self._node_ptr, self._edge_ptr, self._hop_nodes, self._hop_edges)

    def _shares_hops(self, seeds: Sequence[Tensor | None]) -> bool:
        """Whether a hop may be large enough for several threads."""
        count = sum(seed.shape[0] for seed in seeds if seed is not None)
        return min(count * self._growth, self._most_items) >= 2 * MIN_ITEMS_PER_THREAD

    def _count_items(self, hop: int) -> int:
        """Return how many lists are looked at in a hop: one of each node, in each relation."""
        known, found = self._node_ptr[hop].tolist(), self._node_ptr[hop + 1].tolist()
        return sum(found[t] - known[t] for t in self._dst_types)

    def plan(self, hop: int) -> None:
        """Count the edges of the hop and make room for them and for the nodes they may find."""
        items = self._count_items(hop)
        self._make_item_room(items)
        self._item_low[:items] = 0.0
        csc, fanout, limits = self._csc, self._plan.fanouts[hop], self._limits
        start, degree, item_ptr = self._items
        lists = self._item_base, start, degree
        hops.items_listed(
            csc.indptr, self._node, self._node_start, self._node_ptr, self._relations, hop, *lists
        )
        check_items(csc, *lists)
        self._item_excluded = NOTHING_EXCLUDED
        if csc.times is not None:
            temporal.cut_items(
                self._node_start, self._node_ptr, self._relations, hop,
                csc.indices, self._time, self._time_base,
                self._seed_of, limits.seed_time, limits.seed_before,
                self._weighted, self._cumulative,
                *lists, self._item_low,
            )  # fmt: skip
        # Where subgraphs share their nodes, only seeds have excluded edges, and hop 0 expands them.
        if len(limits.excluded) > 0 and (hop == 0 or self._plan.disjoint):
            self._item_excluded = np.empty((2, items), np.int64)
            sample.exclude_edges(
                self._node_start, self._node_ptr, self._relations, hop, self._plan.disjoint,
                self._seed_of, limits.excluded, limits.excluded_bounds,
                *lists, self._item_excluded,
            )  # fmt: skip
        if csc.times is not None and self._plan.recent:
            temporal.keep_latest(
                fanout, self._time_base, self._weighted, self._cumulative,
                limits.excluded, self._item_excluded, *lists, self._item_low,
            )  # fmt: skip
        edges = hops.hop_planned(
            self._node_ptr, self._relations, fanout, self._plan.replace, hop, self._node_limit,
            self._weighted, self._positive, self._weight,
            *lists, limits.excluded, self._item_excluded, item_ptr, self._edge_ptr,
            self._node_bound,
        )  # fmt: skip
        new = edges - int(self._edge_ptr[hop, 0])
        if self._plan.replace and new >= ID_LIMIT:  # else there is an edge for each
            raise batch_too_large(int(self._node_bound.max()), new)
        self._make_edge_room(hop)
        self._make_room()

    def sample_edges(self, hop: int) -> None:
        """Draw the edges of the hop."""
        items = int(self._item_base[-1])
        start, degree, item_ptr = self._items
        arguments = (
            self._node_ptr, self._relations, self._plan.fanouts[hop], self._plan.replace, hop,
            *self._key, self._item_base, start, degree, item_ptr,
        )  # fmt: skip

        def task(first: int, last: int) -> None:
            if self._csc.weights is not None:
                weighted.draw_weighted(
                    *arguments, first, last, self._position,
                    self._weighted, self._time_base, *self._alias, self._weight,
                    self._cumulative, self._item_low, self._limits.excluded, self._item_excluded,
                )  # fmt: skip
            slots = None
            if self._largest_fanout > hops.LARGEST_FANOUT:
                slots = np.empty(2 << self._largest_fanout.bit_length(), np.int64)
            hops.hop_sampled(
                self._csc.indices, *arguments, first, last, self._row, self._col, self._position,
                self._weighted, self._limits.excluded, self._item_excluded, slots,
            )  # fmt: skip

        split(items, min(self._resources.threads, items // MIN_ITEMS_PER_THREAD), task)
        check_sources(self._csc, self._edge_ptr[hop], self._row)

    def relabel(self, hop: int) -> None:
        """Number the sources of the hop."""
        stamp = np.uint32(self._stamp)
        if self._plan.disjoint:
            relabel.relabel_disjoint(
                self._relations, self._csc.node_base, self._edge_ptr, hop, self._row, self._col,
                self._table, stamp,
                self._node, self._seed_of, self._node_start, self._node_ptr,
            )  # fmt: skip
        else:
            hops.hop_relabelled(
                self._relations, self._csc.node_base, self._edge_ptr, hop, self._row,
                self._table, stamp, self._node, self._node_start, self._node_ptr,
            )  # fmt: skip

    def emit(self) -> SampledGraph:
        """Copy the edges out, relation by relation."""
        num_edges, num_nodes = self._hop_edges.tolist(), self._hop_nodes.tolist()
        sizes, lists = map(sum, num_edges), zip(self._starts, map(sum, num_nodes), strict=True)
        edge_index, edge, node = self._copy_out(self._edge_ptr, self._csc.edge_base, sizes, lists)
        seed_of = self._seeds_of_nodes() if self._plan.disjoint else None
        return new_graph((node, seed_of, edge_index, edge, num_nodes, num_edges))

    def _copy_out(
        self,
        edge_ptr: Ints,
        edge_base: Ints,
        sizes: Iterable[int],
        lists: Iterable[tuple[int, int]] = (),
    ) -> Outputs:
        sources = self._row, self._col, self._position, self._csc.perm, self._node
        return copy_out(
            self._resources, self._plan.id_dtype, sources, edge_ptr, edge_base, sizes, lists
        )

    def _seeds_of_nodes(self) -> list[Tensor]:
        return copy_lists(self._resources, self._seed_of, self._lists())

    def _lists(self) -> Lists:
        """Return where the list of each type begins in `_node`, and how long it is."""
        return list(zip(self._starts, self._node_ptr[-1].tolist(), strict=True))

    def emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes, by destination."""
        csc = self._csc
        edge_index, edge = [], []
        nodes = self._node, self._node_start, self._node_ptr[-1]
        if not self._plan.disjoint:
            self._sampled_nodes.add(*nodes)
        for r in range(csc.num_relations):
            src, dst = int(csc.src_type[r]), int(csc.dst_type[r])
            first, count = int(self._node_start[dst]), int(self._node_ptr[-1, dst])
            start, degree, excluded = self._lists_of(r, first, count)
            between = (
                start, degree, csc.indices, int(csc.node_base[src]), int(csc.node_base[-1]),
                self._seed_of, first, not self._plan.disjoint, self._table, np.uint32(self._stamp),
                self._sampled_nodes.words, self._limits.excluded, excluded,
            )  # fmt: skip
            item, size = emit.induced_edges(*between, 0, 0, self._row, self._col, self._position)
            while item < count:
                self._grow_edges(2 * (size + int(degree[item]) + 1), size)
                item, size = emit.induced_edges(
                    *between, item, size, self._row, self._col, self._position
                )
            edge_ptr = np.array([[0, size]], np.int64)
            found = self._copy_out(edge_ptr, csc.edge_base[r : r + 1], [size])
            edge_index += found[0]
            edge += found[1]
        self._sampled_nodes.remove(*nodes)
        node = self._copy_out(NO_EDGES, csc.edge_base[:0], [], self._lists())[2]
        seed_of = self._seeds_of_nodes() if self._plan.disjoint else None
        return SampledGraph(node, seed_of, edge_index, edge, self._hop_nodes.tolist(), None)

    def _lists_of(self, relation: int, first: int, count: int) -> tuple[Ints, Ints, Ints]:
        """Return what the nodes at `_node[first:]` may see of their lists in one relation.

        Returns:
            start [count], degree [count], and [2, count], where the excluded edges of each list
            begin and end; or [2, 0].
        """
        csc, base = self._csc, int(self._time_base[relation])
        start, degree = np.empty((2, count), np.int64)
        hops.each_node_listed(
            csc.indptr, int(csc.indptr_base[relation]), self._node, first, 0, count, start, degree
        )
        check_whole_lists(csc, relation, start, degree)
        lists = (start, degree, 0, count)
        if base != NO_TIME:
            times = (csc.indices, self._time, base)
            temporal.count_until(*lists, self._seed_of, first, self._limits.seed_time, *times)
            if len(self._limits.seed_before) > 0:
                temporal.skip_until(*lists, self._seed_of, first, self._limits.seed_before, *times)
        excluded = NOTHING_EXCLUDED
        if len(self._limits.excluded) > 0:
            excluded = np.empty((2, count), np.int64)
            exclude.exclude_from_lists(
                *lists, self._plan.disjoint, self._seed_of, first,
                self._limits.excluded, self._limits.excluded_bounds, excluded,
            )  # fmt: skip
        return start, degree, excluded
