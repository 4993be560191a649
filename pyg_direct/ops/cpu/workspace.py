"""One batch on the CPU: `ops.backend.Workspace` over numba kernels."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ...kernels import alias as weight_tables
from ...kernels import emit, exclude, hops, relabel, sample, temporal, weighted
from ...kernels.threads import split
from ...types import (
    NO_TIME,
    BatchKey,
    Csc,
    ExcludedEdges,
    SampledGraph,
    SamplingPlan,
)
from ..backend import ID_LIMIT, batch_too_large, in_range
from .buffers import Resources, grown
from .checks import check_items, check_sources, check_whole_lists
from .limits import NO_INTS, NO_LIMITS, limits_of
from .node_set import NodeSet
from .outputs import Edges, Lists, copy_lists, copy_out

Ints = npt.NDArray[Any]

MIN_ITEMS_PER_THREAD = 4096
STAMP_LIMIT = ID_LIMIT  # half of the stamps, so that a batch that begins below it never wraps
NOTHING_EXCLUDED = np.empty((2, 0), np.int64)
NO_DOUBLES = np.empty(0, np.float64)
NO_EDGES = np.zeros((0, 1), np.int64)  # no hop of no relation


class CpuWorkspace:
    """The scratch arrays of one batch; see `ops.Workspace` for what the calls mean."""

    def __init__(self, csc: Csc, plan: SamplingPlan, resources: Resources) -> None:
        depth, types, relations = len(plan.fanouts), csc.num_types, csc.num_relations
        self._csc, self._plan, self._resources = csc, plan, resources
        self._relations = np.stack([csc.src_type, csc.dst_type, csc.indptr_base])
        self._dst_types: list[int] = csc.dst_type.tolist()
        self._num_nodes: list[int] = csc.num_nodes.tolist()
        self._node_base: list[int] = csc.node_base.tolist()
        # A node of a disjoint batch counts once in each subgraph, so its type sets no limit.
        no_limit = np.full(types, np.iinfo(np.int64).max, np.int64)
        self._node_limit = no_limit if plan.disjoint else csc.num_nodes
        id_dtype, position_dtype = csc.indices.dtype, csc.indptr.dtype

        self._node_ptr = np.zeros((depth + 2, types), np.int64)
        self._edge_ptr = np.zeros((depth, relations + 1), np.int64)
        self._node_start = np.zeros(types, np.int64)  # each type's region of `_node`
        self._node_room = np.zeros(types, np.int64)
        self._most_nodes = 0  # of one type, at any time so far: no local id is above it
        self._node_bound = np.zeros(types, np.int64)  # what the next hop may need of it
        self._node = np.empty(0, id_dtype)
        self._seed_of = np.empty(0, np.int32)

        self._item_base = np.zeros(relations + 1, np.int64)
        self._items = np.empty((3, 0), np.int64)  # start, degree and first edge of each
        self._item_low = np.empty(0, np.float64)
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

        self._row = np.empty(0, id_dtype)
        self._col = np.empty(0, np.int32)
        self._position = np.empty(0, position_dtype)

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
        self._in_one_call = False
        # 0 is below every stamp, so fresh tables are empty tables.
        self._table: Ints = np.zeros(0, np.uint64)
        if not plan.disjoint:
            self._table = np.zeros(int(csc.node_base[-1]), np.uint32)
        self._sampled_nodes = NodeSet(csc.node_base)
        self._stamp = 1
        self._key = (np.uint64(0), np.uint64(0))

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
        self._stamp += self._most_nodes
        if self._stamp >= STAMP_LIMIT:
            self._table[:] = 0
            self._stamp = 1
        # Zeros also after a batch that was interrupted by an error.
        self._node_ptr.fill(0)
        self._edge_ptr.fill(0)
        sizes = [0 if seed is None else seed.shape[0] for seed in seeds]
        alone = len(self._limits.excluded) == 0 and not self._shares_hops(sum(sizes))
        self._in_one_call = self._is_plain and alone
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
        elif not self._in_one_call:  # which enters the seeds itself
            hops.seeds_entered(self._node, first, first + n, base, self._table, stamp)
        return True

    def sample_hops(self, first: int, last: int) -> None:
        """Sample the hops [first, last) of the plan."""
        if not self._in_one_call:
            for hop in range(first, last):
                self.plan(hop)
                self.sample(hop)
                self.relabel(hop)
            return
        csc, plan = self._csc, self._plan
        while first < last:
            first = hops.sample_hops(
                csc.indptr, csc.indices, self._relations, plan.fanouts, self._node_limit,
                csc.node_base, first, last, *self._key, np.uint32(self._stamp),
                self._node, self._node_start, self._node_room, self._node_ptr, self._node_bound,
                self._edge_ptr, self._item_base, self._items,
                self._row, self._col, self._position, self._table,
            )  # fmt: skip
            if first < last:
                self._make_item_room(self._count_items(first))
                self._make_edge_room(first)
                self._make_room()

    def _shares_hops(self, seeds: int) -> bool:
        """Whether there are several threads, and a hop may be large enough for them."""
        if self._resources.threads <= 1:
            return False
        most = self._node_base[-1] * self._csc.num_relations
        return min(seeds * self._growth, most) >= 2 * MIN_ITEMS_PER_THREAD

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

    def sample(self, hop: int) -> None:
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
        ends = self._edge_ptr.tolist()
        counts = [[hop[r + 1] - hop[r] for hop in ends] for r in range(self._csc.num_relations)]
        sizes, base = map(sum, counts), self._csc.edge_base
        return self._sampled(*self._copy_out(self._edge_ptr, base, sizes, self._lists()), counts)

    def _copy_out(
        self, edge_ptr: Ints, edge_base: Ints, sizes: Iterable[int], lists: Lists
    ) -> tuple[Edges, list[Tensor]]:
        edges = self._row, self._col, self._position, self._csc.perm
        id_dtype, nodes = self._plan.id_dtype, (self._node, lists)
        return copy_out(self._resources, id_dtype, edges, edge_ptr, edge_base, sizes, nodes)

    def _lists(self) -> Lists:
        """Return where the list of each type begins in `_node`, and how long it is."""
        return list(zip(self._node_start.tolist(), self._node_ptr[-1].tolist(), strict=True))

    def emit_induced(self) -> SampledGraph:
        """Copy out all edges between the sampled nodes, by destination."""
        csc, edges = self._csc, Edges()
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
            edges += self._copy_out(edge_ptr, csc.edge_base[r : r + 1], [size], [])[0]
        self._sampled_nodes.remove(*nodes)
        none = self._copy_out(NO_EDGES, csc.edge_base[:0], [], self._lists())
        return self._sampled(edges, none[1], None)

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

    def _sampled(
        self, edges: Edges, nodes: list[Tensor], num_edges: list[list[int]] | None
    ) -> SampledGraph:
        seed_of = None
        if self._plan.disjoint:
            seed_of = copy_lists(self._resources, self._seed_of, self._lists())
        ends = zip(*self._node_ptr.tolist(), strict=True)
        return SampledGraph(
            node=nodes,
            seed_of=seed_of,
            edge_index=[edge_index for edge_index, _ in edges],
            edge=[edge for _, edge in edges],
            num_sampled_nodes=[[b - a for a, b in pairwise(counts)] for counts in ends],
            num_sampled_edges=num_edges,
        )

    def _make_item_room(self, items: int) -> None:
        """Have room for more than `items` items; what is known of them is lost."""
        if items >= self._items.shape[1]:
            room = items + items // 2 + 1
            self._items = np.empty((3, room), np.int64)
            self._item_low = np.empty(room if self._csc.weights is not None else 0, np.float64)

    def _make_edge_room(self, hop: int) -> None:
        """Have room for the edges of a hop that was planned, keeping those before it."""
        kept, edges = int(self._edge_ptr[hop, 0]), int(self._edge_ptr[hop, -1])
        if edges > len(self._row):
            self._grow_edges(edges + edges // 2, kept)

    def _grow_edges(self, room: int, known: int) -> None:
        """Have room for `room` edges, keeping the first `known` ones."""
        self._row = grown(self._row, room, known)
        self._col = grown(self._col, room, known)
        self._position = grown(self._position, room, known)

    def _make_room(self) -> None:
        """Have room for more than `_node_bound` nodes of each type, keeping what is known.

        More, because `relabel_dense` writes past the end of a list before it knows whether a node
        is new.
        """
        bound = self._node_bound
        # Of few numbers: a function of NumPy would take longer than all of them in Python.
        if any(map(operator.ge, bound.tolist(), self._node_room.tolist())):
            if bound.max() >= STAMP_LIMIT:
                raise batch_too_large(int(bound.max()), int(self._edge_ptr.max(initial=0)))
            room = np.maximum(bound + bound // 2 + 1, self._node_room)
            start = np.zeros_like(room)
            np.cumsum(room[:-1], out=start[1:])
            node = np.empty(int(room.sum()), self._node.dtype)
            seed_of = np.empty(len(node) if self._plan.disjoint else 0, np.int32)
            for t, known in enumerate(self._node_ptr.max(0)):
                old, new = self._node_start[t], start[t]
                node[new : new + known] = self._node[old : old + known]
                if self._plan.disjoint:
                    seed_of[new : new + known] = self._seed_of[old : old + known]
            self._node, self._seed_of = node, seed_of
            self._node_start, self._node_room = start, room
            self._most_nodes = int(room.max(initial=0))
        if self._plan.disjoint:
            slots = 2 * int(bound.sum())
            if 2 * slots > len(self._table):
                self._rehash(slots)

    def _rehash(self, at_least: int) -> None:
        """Move the known nodes of this batch to a hash table of `at_least` slots."""
        slots = 1 << max(10, at_least.bit_length())
        self._table = np.zeros(2 * slots, np.uint64)
        total = int(self._csc.node_base[-1])
        for t, known in enumerate(self._node_ptr.max(0).tolist()):
            first = int(self._node_start[t])
            relabel.enter_disjoint(
                self._node, self._seed_of, first, first + known, 0, int(self._csc.node_base[t]),
                total, self._table, np.uint32(self._stamp),
            )  # fmt: skip
