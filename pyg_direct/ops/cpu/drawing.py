"""The draws of one hop on the CPU: which edges each item may take, how many, and which it gets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...core.threads import split
from ...core.types import (
    NO_RULES,
    BatchKey,
    Csc,
    Frontier,
    Picks,
    Rules,
    SamplingPlan,
    Variates,
    damaged_graph,
    unknown_node,
)
from ...kernels import alias as weight_tables
from ...kernels import bounds, hops, labor, sample, temporal, weighted
from ..backend import ID_LIMIT, batch_too_large, in_range
from ..buffers import Resources
from ..metapaths import MetapathBudgets, check_alone
from ..picks import check_frontier
from .scratch import Scratch

Ints = npt.NDArray[Any]

MIN_ITEMS_PER_THREAD = 4096
NOTHING_EXCLUDED = np.empty((2, 0), np.int64)
NO_INTS = np.empty(0, np.int64)
NO_DOUBLES = np.empty(0, np.float64)


class CpuDrawing(Scratch):
    """Scratch memory, and the steps of a hop that read the graph: `plan` and `sample_edges`."""

    def __init__(self, csc: Csc, plan: SamplingPlan, resources: Resources) -> None:
        super().__init__(csc, plan, resources)
        self._relations = np.stack([csc.src_type, csc.dst_type, csc.indptr_base])
        self._dst_types: list[int] = csc.dst_type.tolist()
        self._num_nodes: list[int] = csc.num_nodes.tolist()
        # A node of a disjoint batch counts once in each subgraph, so its type sets no limit.
        no_limit = np.full(csc.num_types, np.iinfo(np.int64).max, np.int64)
        self._node_limit = no_limit if plan.disjoint else csc.num_nodes
        self._item_excluded = NOTHING_EXCLUDED
        self._item_local: Ints | None = None  # as of `sample.local_of`

        self._time = NO_INTS if csc.times is None else csc.times.time
        self._time_base, self._weighted = csc.time_base, csc.weighted
        self._weight = self._cumulative = NO_DOUBLES
        alias, self._positive = NO_INTS, False
        if csc.weights is not None:
            self._weight, self._cumulative = csc.weights.weight, csc.weights.cumulative
            alias = NO_INTS if csc.weights.alias is None else csc.weights.alias
            self._positive = csc.weights.positive
        self._alias = weight_tables.parts(alias)
        self._largest_fanout = int(plan.fanouts.max(initial=0))
        self._budgets: MetapathBudgets | None = None
        if plan.adaptive:
            self._budgets = MetapathBudgets(csc, plan.fanouts, torch.device("cpu"))
        self._key = (np.uint64(0), np.uint64(0))
        self._variates = (np.uint64(0),) * 5  # two keys and a share, of LABOR
        self._obey(NO_RULES)

    def _obey(self, rules: Rules) -> None:
        """Take the rules of a batch, as arrays for the kernels."""
        self._rules = rules
        self._excluded = self._excluded_bounds = NO_INTS  # as in `ExcludedEdges`
        self._seed_time = self._seed_before = NO_INTS  # [seeds]; [0] without times, starts
        if rules.excluded is not None:
            self._excluded, self._excluded_bounds = (part.numpy() for part in rules.excluded)
        if rules.seed_time is not None:
            self._seed_time = rules.seed_time.numpy()
        if rules.seed_since is not None:
            self._seed_before = (rules.seed_since - 1).numpy()  # of the least int64, the largest

    def _take(self, key: BatchKey, rules: Rules) -> None:
        self._key = (np.uint64(key.low), np.uint64(key.high))
        if self._plan.labor:
            first, following, share = rules.variates or Variates(key, key, 0)
            self._variates = (
                np.uint64(first.low), np.uint64(first.high),
                np.uint64(following.low), np.uint64(following.high), np.uint64(share),
            )  # fmt: skip
        self._obey(rules)

    def _count_items(self, hop: int) -> int:
        """Return how many lists are looked at in a hop: one of each node, in each relation."""
        frontier = (self._node_ptr[hop + 1] - self._node_ptr[hop]).tolist()
        return sum(map(frontier.__getitem__, self._dst_types))

    def plan(self, hop: int, skip: Sequence[Tensor | None] | None = None) -> None:
        """Count the edges of the hop and make room for them."""
        items = self._count_items(hop)
        self._make_item_room(items)
        self._item_low[:items] = 0.0
        csc, fanout = self._csc, self._plan.fanouts[hop]
        start, degree, item_ptr = self._items
        lists = self._item_base, start, degree
        hops.items_listed(
            csc.indptr, self._node, self._node_start, self._node_ptr, self._relations, hop, *lists
        )
        check_items(csc, *lists)
        if skip is not None:
            self._skip(hop, skip)
        self._item_excluded = NOTHING_EXCLUDED
        if csc.times is not None:
            temporal.cut_items(
                self._node_start, self._node_ptr, self._relations, hop,
                csc.indices, self._time, self._time_base,
                self._seed_of, self._seed_time, self._seed_before,
                self._weighted, self._cumulative,
                *lists, self._item_low,
            )  # fmt: skip
        # Where subgraphs share their nodes, only seeds have excluded edges, and hop 0 expands them.
        if len(self._excluded) > 0 and (hop == 0 or self._plan.disjoint):
            self._item_excluded = np.empty((2, items), np.int64)
            sample.exclude_edges(
                self._node_start, self._node_ptr, self._relations, hop, self._plan.disjoint,
                self._seed_of, self._excluded, self._excluded_bounds,
                *lists, self._item_excluded,
            )  # fmt: skip
        most = None
        if self._budgets is not None:
            most = self._budgets.counts(hop, torch.from_numpy(degree[:items])).numpy()
        if csc.times is not None and self._plan.recent:
            temporal.keep_latest(
                np.repeat(fanout, np.diff(self._item_base)) if most is None else most,
                self._time_base,
                self._weighted, self._positive, self._weight, self._cumulative,
                self._excluded, self._item_excluded, *lists, self._item_low,
            )  # fmt: skip
        if most is not None:
            item_ptr[: items + 1] = self._take_counts(hop, most)
            self._largest_fanout = int(most.max(initial=0))
        else:
            hops.hop_planned(
                self._node_ptr, self._relations, fanout, self._plan.replace, hop, self._node_limit,
                self._weighted, self._positive, self._weight,
                *lists, self._excluded, self._item_excluded, item_ptr, self._edge_ptr,
                self._node_bound,
            )  # fmt: skip
        new = int(self._edge_ptr[hop, -1] - self._edge_ptr[hop, 0])
        nodes = max(self._node_bound.tolist(), default=0)
        # Without replacement there is an edge of the graph for each.
        if nodes >= ID_LIMIT or (self._plan.replace and new >= ID_LIMIT):
            raise batch_too_large(nodes, new)
        self._make_edge_room(hop)

    def _take_counts(self, hop: int, counts: Ints) -> Ints:
        """Note how many edges a hop has, and nodes it may find, from the edges of its items.

        Returns:
            int64 [items + 1], the first edge of each.
        """
        known, found = self._node_ptr[hop], self._node_ptr[hop + 1]
        items = (found - known)[self._csc.dst_type]
        edges, base = (np.append(0, np.cumsum(n, dtype=np.int64)) for n in (counts, items))
        edges += self._edge_ptr[hop - 1, -1] if hop > 0 else 0
        self._edge_ptr[hop] = edges[base]
        new = np.zeros_like(self._node_bound)
        np.add.at(new, self._csc.src_type, np.diff(self._edge_ptr[hop]))
        self._node_bound[:] = found + np.minimum(new, self._node_limit)
        return edges

    def _skip(self, hop: int, skip: Sequence[Tensor | None]) -> None:
        """Leave nothing to draw from of the lists of some nodes; see `Workspace.hop`."""
        base, degree = self._item_base.tolist(), self._items[1]
        for r, t in enumerate(self._dst_types):
            chosen = skip[t]
            if chosen is not None:
                begin = self._starts[t] + int(self._node_ptr[hop, t])
                nodes = self._node[begin : begin + base[r + 1] - base[r]]
                degree[base[r] : base[r + 1]][chosen.numpy()[nodes]] = 0

    def sample_edges(self, hop: int) -> None:
        """Draw the edges of the hop."""
        items = int(self._item_base[-1])
        start, degree, item_ptr = self._items
        items_of_hop = (self._item_base, start, degree, item_ptr)
        fanout, given = self._plan.fanouts[hop], self._weighted
        arguments = (
            self._node_ptr, self._relations, fanout, self._plan.replace, hop, *self._key,
            *items_of_hop,
        )  # fmt: skip
        if self._plan.labor:
            given = fanout >= 0

        def task(first: int, last: int) -> None:
            if self._plan.labor:
                labor.draw_labor(
                    self._csc.indices, self._relations, fanout,
                    0 if self._plan.layer_dependency else hop, *self._variates, *items_of_hop,
                    first, last, self._position, self._excluded, self._item_excluded,
                )  # fmt: skip
            if self._csc.weights is not None:
                weighted.draw_weighted(
                    *arguments, first, last, self._position,
                    self._weighted, self._time_base, *self._alias, self._weight,
                    self._cumulative, self._item_low, self._excluded, self._item_excluded,
                    self._item_local,
                )  # fmt: skip
            slots = None
            if self._largest_fanout > hops.LARGEST_FANOUT:
                slots = np.empty(2 << self._largest_fanout.bit_length(), np.int64)
            hops.hop_sampled(
                self._csc.indices, *arguments, first, last, self._row, self._col, self._position,
                given, self._excluded, self._item_excluded, slots, self._item_local,
            )  # fmt: skip

        split(items, min(self._resources.threads, items // MIN_ITEMS_PER_THREAD), task)
        check_sources(self._csc, self._edge_ptr[hop], self._row)

    def draw_for(self, hop: int, items: Frontier, key: BatchKey, rules: Rules) -> Picks:
        """Draw for nodes that lie in this scratch memory for the one call; see `Workspace.draw`."""
        indices = torch.from_numpy(self._csc.indices[:0])
        check_alone(self._plan)
        check_frontier(items, self._csc.num_types, indices.dtype, self._plan.disjoint)
        sizes = [len(node) for node in items.node]
        self._take(key, rules)
        self._begin(sizes)
        self._node_ptr[hop + 1] = sizes
        for t, (first, node) in enumerate(zip(self._starts, items.node, strict=True)):
            nodes = node.numpy()
            if not in_range(nodes.astype(np.int64, copy=False), self._num_nodes[t]):
                raise ValueError(f"Frontier.node of type {t} must be in [0, {self._num_nodes[t]}).")
            self._node[first : first + sizes[t]] = nodes
            if items.seed_of is not None:
                self._seed_of[first : first + sizes[t]] = items.seed_of[t].numpy()
        local = [items.local[t].numpy() for t in self._dst_types]
        self._item_local = np.concatenate([np.empty(0, np.int32), *local])
        self.plan(hop)
        self.sample_edges(hop)
        item_ptr = self._items[2, : int(self._item_base[-1]) + 1]
        edges = int(item_ptr[-1])
        return Picks(
            torch.from_numpy(np.diff(item_ptr).astype(np.int32)),
            torch.from_numpy(self._row[:edges].copy()),
            torch.from_numpy(self._position[:edges].copy()),
        )


def check_items(csc: Csc, item_base: Ints, start: Ints, degree: Ints) -> None:
    """Raise a ValueError unless the list of each item lies within its relation.

    Args:
        csc: the graph.
        item_base: [R + 1], first item of each relation.
        start: [items], first position of each list.
        degree: [items], length of each list.
    """
    if not csc.verified:
        for r, (first, last) in enumerate(pairwise(item_base.tolist())):
            _check_lists(csc, r, start, degree, first, last)


def check_sources(csc: Csc, edge_ptr: Ints, row: Ints) -> None:
    """Raise a ValueError unless the sources of a hop are nodes of their types.

    Args:
        csc: the graph.
        edge_ptr: [R + 1], first edge of each relation.
        row: [edges], global ids of the sources.
    """
    if not csc.verified:
        for r, (first, last) in enumerate(pairwise(edge_ptr.tolist())):
            _check_ids(csc, r, row, first, last)


def check_whole_lists(csc: Csc, relation: int, start: Ints, degree: Ints) -> None:
    """Raise a ValueError unless some lists, and all ids in them, can be read."""
    if not csc.verified:
        _check_lists(csc, relation, start, degree, 0, len(start))
        for first, size in zip(start.tolist(), degree.tolist(), strict=True):
            _check_ids(csc, relation, csc.indices, first, first + size)


def _check_lists(csc: Csc, relation: int, start: Ints, degree: Ints, first: int, last: int) -> None:
    edges = csc.edge_base[relation : relation + 2].tolist()
    if bounds.first_bad_list(start, degree, first, last, edges[0], edges[1]) >= 0:
        raise ValueError(damaged_graph("a neighbour list does not lie within its edges"))


def _check_ids(csc: Csc, relation: int, ids: Ints, first: int, last: int) -> None:
    end = int(csc.num_nodes[csc.src_type[relation]])
    at = bounds.first_bad_id(ids, first, last, end)
    if at >= 0:
        raise ValueError(damaged_graph(unknown_node(int(ids[at]), end)))
