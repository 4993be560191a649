"""One batch on the CPU: `ops.backend.Workspace` over numba kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.types import (
    NO_RULES,
    NO_TIME,
    BatchKey,
    Csc,
    Frontier,
    Picks,
    Rules,
    SampledGraph,
    SamplingPlan,
    Sizes,
    maker,
)
from ...kernels import emit, exclude, hops, relabel, temporal
from ..backend import in_range
from ..buffers import Resources
from ..picks import LISTS_ELSEWHERE, check_picks, put_edge_ids
from .drawing import MIN_ITEMS_PER_THREAD, NOTHING_EXCLUDED, CpuDrawing, check_whole_lists
from .scratch import Lists, NodeSet, copy_lists

Ints = npt.NDArray[Any]

new_graph = maker(SampledGraph)
NO_SEEDS = torch.empty(0, dtype=torch.int64)
NO_EDGES = np.zeros((0, 1), np.int64)  # no hop of no relation


class CpuWorkspace(CpuDrawing):
    """One batch at a time; see `ops.Workspace` for what the calls mean."""

    def __init__(self, csc: Csc, plan: SamplingPlan, resources: Resources) -> None:
        super().__init__(csc, plan, resources)
        self._node_base: list[int] = csc.node_base.tolist()
        self._is_plain = (
            csc.verified
            and csc.times is None
            and csc.weights is None
            and not (plan.disjoint or plan.replace or plan.labor or plan.adaptive)
            and len(plan.fanouts) > 0
            and self._largest_fanout <= hops.LARGEST_FANOUT
        )
        self._growth = plan.growth
        self._most_items: int = self._node_base[-1] * csc.num_relations  # of a hop
        self._never_shared = self._most_items < 2 * MIN_ITEMS_PER_THREAD
        self._sampled_nodes = NodeSet(csc.node_base)
        self._edge_ids: dict[int, Tensor] = {}  # `Picks.edge` of hops that were entered
        self._drawing: CpuWorkspace | None = None  # what `draw` draws in
        # What `hops.sample_batch` takes beside the seeds and the key.
        self._num_seeds = np.zeros(csc.num_types, np.int64)
        self._graph = (
            csc.indptr, csc.indices, self._relations, plan.fanouts, csc.num_nodes, csc.node_base,
        )  # fmt: skip

    def sample(
        self,
        seeds: Sequence[Tensor | None],
        key: BatchKey,
        rules: Rules = NO_RULES,
        induced: bool = False,
    ) -> SampledGraph | None:
        """Sample a batch; in one call of a kernel if its rules are the plain ones."""
        alone = self._never_shared or self._resources.threads <= 1 or not self._shares_hops(seeds)
        if self._is_plain and rules.excluded is None and alone:
            if not self._sample_plain(seeds, key):
                return None
            return self._emit_induced() if induced else self._emit()
        if not self.begin(seeds, key, rules):
            return None
        for hop in range(len(self._plan.fanouts)):
            self.hop(hop)
        return self.finish(induced)

    def sample_padded(
        self, seeds: Sequence[Tensor | None], key: BatchKey, rules: Rules, sizes: Sizes
    ) -> SampledGraph | None:
        """Do nothing, as the counts are there when a batch is."""
        raise NotImplementedError("On the CPU nobody waits for the counts of a batch.")

    def _sample_plain(self, seeds: Sequence[Tensor | None], key: BatchKey) -> bool:
        """Sample all hops in one call, or one more for each that finds an array too short."""
        if len(seeds) == 1 and seeds[0] is not None:
            ids = seeds[0]
            sizes = [ids.shape[0]]
        else:
            ids = torch.cat([NO_SEEDS, *(seed for seed in seeds if seed is not None)])
            sizes = [0 if seed is None else seed.shape[0] for seed in seeds]
        if not (ids.is_cpu and ids.is_contiguous()):  # the kernel gets their address
            ids = ids.cpu().contiguous()
        self._begin(sizes)
        self._num_seeds[:] = sizes
        if self._rules is not NO_RULES:
            self._obey(NO_RULES)
        hop, address = 0, ids.data_ptr()
        arrays = self._arrays or self._growing()
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
        """Return the arrays that `hops.sample_batch` writes to, as they are now."""
        self._arrays = (
            self._node, self._node_start, self._node_room, self._node_ptr, self._node_bound,
            self._edge_ptr, self._item_base, self._items, self._row, self._col, self._position,
            self._table, self._hop_nodes, self._hop_edges,
        )  # fmt: skip
        return self._arrays

    def begin(self, seeds: Sequence[Tensor | None], key: BatchKey, rules: Rules = NO_RULES) -> bool:
        """Begin a batch."""
        self._take(key, rules)
        self._edge_ids = {}
        sizes = [0 if seed is None else seed.shape[0] for seed in seeds]
        self._begin(sizes)
        if self._budgets is not None:
            self._budgets.begin(sizes, self._plan.disjoint)
        self._node_bound[:] = counts = np.array(sizes, np.int64)
        self._make_room()
        # Before they are entered: if one is not a node, the next batch must not know the others.
        self._node_ptr[1] = counts
        subgraph = 0
        for t, seed in enumerate(seeds):
            if seed is not None:
                if not self._enter(t, seed.numpy(), subgraph):
                    return False
                subgraph += sizes[t]
        return True

    def _enter(self, t: int, seed: Ints, subgraph: int) -> bool:
        """Enter the seeds of type t, of subgraphs from `subgraph` on; False for a bad id."""
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

    def hop(self, hop: int, skip: Sequence[Tensor | None] | None = None) -> None:
        """Sample a hop, step by step."""
        self.plan(hop, skip)
        self.sample_edges(hop)
        self.relabel(hop)

    def frontier(self, hop: int) -> Frontier:
        """Return copies of the nodes that a hop expands."""
        known, found = self._node_ptr[hop].tolist(), self._node_ptr[hop + 1].tolist()
        ends = list(zip(self._starts, known, found, strict=True))
        lists = [self._node, self._seed_of] if self._plan.disjoint else [self._node]
        parts = [[torch.from_numpy(a[s + b : s + e].copy()) for s, b, e in ends] for a in lists]
        local = [torch.arange(b, e, dtype=torch.int32) for _, b, e in ends]
        return Frontier(parts[0], local, parts[1] if self._plan.disjoint else None)

    def draw(self, hop: int, items: Frontier, key: BatchKey, rules: Rules = NO_RULES) -> Picks:
        """Draw for any nodes, in other scratch memory, which is taken at the first call."""
        if self._drawing is None:
            self._drawing = self._another()
        return self._drawing.draw_for(hop, items, key, rules)

    def _another(self) -> CpuWorkspace:
        return CpuWorkspace(self._csc, self._plan, self._resources)

    def enter(self, hop: int, picks: Picks) -> None:
        """Take the edges of a hop, and number their sources."""
        ids, positions = (torch.from_numpy(a[:0]).dtype for a in (self._row, self._position))
        check_picks(picks, self._count_items(hop), ids, positions)
        count, known, found = picks.counts.numpy(), self._node_ptr[hop], self._node_ptr[hop + 1]
        self._take_counts(hop, count)
        first, last = self._edge_ptr[hop, [0, -1]].tolist()
        self._make_edge_room(hop)
        local = [np.arange(known[t], found[t], dtype=np.int32) for t in self._dst_types]
        self._col[first:last] = np.repeat(np.concatenate([self._col[:0], *local]), count)
        self._row[first:last] = picks.source.numpy()
        self._position[first:last] = 0 if picks.position is None else picks.position.numpy()
        if picks.edge is not None:
            self._edge_ids[hop] = picks.edge
        self.relabel(hop)

    def finish(self, induced: bool = False) -> SampledGraph:
        """Hand out the batch."""
        hops.hops_counted(self._node_ptr, self._edge_ptr, self._hop_nodes, self._hop_edges)
        if induced:
            if self._edge_ids:
                raise ValueError(LISTS_ELSEWHERE)
            return self._emit_induced()
        sampled = self._emit()
        put_edge_ids(sampled.edge, self._hop_edges.tolist(), self._edge_ids)
        return sampled

    def _shares_hops(self, seeds: Sequence[Tensor | None]) -> bool:
        """Whether a hop may be large enough for several threads."""
        count = sum(seed.shape[0] for seed in seeds if seed is not None)
        return min(count * self._growth, self._most_items) >= 2 * MIN_ITEMS_PER_THREAD

    def relabel(self, hop: int) -> None:
        """Number the sources of the hop."""
        self._make_room()
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
        if self._budgets is not None:
            first, last = self._edge_ptr[hop, [0, -1]].tolist()
            ends = self._node_ptr[hop + 1].tolist(), self._node_ptr[hop + 2].tolist()
            self._budgets.follow(hop, torch.from_numpy(self._row[first:last]), *ends)

    def _emit(self) -> SampledGraph:
        """Copy the edges out, relation by relation."""
        num_edges, num_nodes = self._hop_edges.tolist(), self._hop_nodes.tolist()
        sizes, lists = map(sum, num_edges), zip(self._starts, map(sum, num_nodes), strict=True)
        edge_index, edge, node = self._copy_out(self._edge_ptr, self._csc.edge_base, sizes, lists)
        seed_of = self._seeds_of_nodes() if self._plan.disjoint else None
        return new_graph((node, seed_of, edge_index, edge, num_nodes, num_edges, None))

    def _seeds_of_nodes(self) -> list[Tensor]:
        return copy_lists(self._resources, self._seed_of, self._lists())

    def _lists(self) -> Lists:
        """Return where the list of each type begins in `_node`, and how long it is."""
        return list(zip(self._starts, self._node_ptr[-1].tolist(), strict=True))

    def _emit_induced(self) -> SampledGraph:
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
                self._sampled_nodes.words, self._excluded, excluded,
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
            temporal.count_until(*lists, self._seed_of, first, self._seed_time, *times)
            if len(self._seed_before) > 0:
                temporal.skip_until(*lists, self._seed_of, first, self._seed_before, *times)
        excluded = NOTHING_EXCLUDED
        if len(self._excluded) > 0:
            excluded = np.empty((2, count), np.int64)
            exclude.exclude_from_lists(
                *lists, self._plan.disjoint, self._seed_of, first,
                self._excluded, self._excluded_bounds, excluded,
            )  # fmt: skip
        return start, degree, excluded
