"""Upper bounds of what a batch needs, for a backend that keeps its counts on the device."""

from __future__ import annotations

import numpy as np

from ...core.types import Csc, IntTable, SamplingPlan
from ..backend import ID_LIMIT, batch_too_large

EDGE_LIMIT = 1 << 26  # a hop that may take more edges is counted first, to spare memory


class Forecast:
    """How many items, edges and nodes each hop of a batch has at most.

    A hop without negative fan-outs takes at most fan-out edges an item, and finds at most as many
    nodes, or all of a type. A hop with them, or one whose bound is above `EDGE_LIMIT`, must be
    counted on the device; the hops after it are forecast from what was counted.

    Example: 2 seeds, fan-outs 3, 2 in a graph of 100 nodes: items 2, 6; edges 6, 12; nodes 20.
    """

    def __init__(self, csc: Csc, plan: SamplingPlan) -> None:
        self._csc, self._plan = csc, plan
        self._sizes = np.diff(csc.edge_base)
        self._frontier: list[IntTable] = []  # [T] for each hop
        self._edges: list[IntTable] = []  # [R] for each hop that is forecast or counted
        self._most_nodes = np.zeros(csc.num_types, np.int64)
        self.nodes = self._most_nodes  # [T]: of all hops in `_edges`
        self._last = len(plan.fanouts)
        # Whether a hop draws no edge twice, as its nodes are distinct; seeds may not be.
        self._distinct = not plan.disjoint and not plan.replace

    def begin_hop(self, hop: int, nodes: IntTable) -> None:
        """Forecast one hop, of `nodes` [T] nodes of each type that may be of several batches."""
        none = np.zeros(self._csc.num_relations, np.int64)
        self._last, self._distinct = hop + 1, False
        self._begin([np.zeros_like(nodes)] * hop + [nodes], [none] * hop, nodes)

    def begin(self, seeds: IntTable) -> None:
        """Start a batch with `seeds` [T] seeds of each type."""
        self._begin([seeds], [], seeds)

    def _begin(self, frontier: list[IntTable], edges: list[IntTable], seeds: IntTable) -> None:
        self._frontier, self._edges, self.nodes = frontier, edges, seeds
        # Nodes are found once, except that duplicated seeds keep their places.
        self._most_nodes = seeds + self._csc.num_nodes
        self._look_ahead()

    def learn(self, hop: int, nodes: IntTable, edges: IntTable) -> None:
        """Take note of what was counted for `hop`: nodes [T] before it and its edges [R]."""
        del self._frontier[hop + 1 :], self._edges[hop:]
        self.nodes = nodes
        self._append(edges)
        self._look_ahead()

    def must_ask(self, hop: int) -> bool:
        """Whether the hop's edges have to be counted before there is room for them."""
        return hop >= len(self._edges)

    def items(self, hop: int) -> int:
        """Bound of (relation, frontier node) pairs."""
        return int(self._frontier[hop][self._csc.dst_type].sum())

    def edges(self, hop: int) -> int:
        """Bound of the hop's edges."""
        return int(self._edges[hop].sum())

    @property
    def hop_edges(self) -> list[int]:
        """Bounds of the edges of all hops that are forecast so far."""
        return [self.edges(hop) for hop in range(len(self._edges))]

    def _look_ahead(self) -> None:
        while len(self._edges) < self._last:
            hop = len(self._edges)
            fanout = self._plan.fanouts[hop]
            frontier = self._frontier[hop][self._csc.dst_type]
            # Numbers above the limit are as good as the next one after it, which cannot overflow.
            above = EDGE_LIMIT + 1
            edges = np.minimum(frontier * np.clip(fanout, 0, above), above)
            if hop > 0 and self._distinct:
                edges = np.minimum(edges, self._sizes)
            unknown = (fanout < 0) & (frontier > 0) & (self._sizes > 0)
            if unknown.any() or edges.sum() > EDGE_LIMIT:
                return
            self._append(edges)

    def _append(self, edges: IntTable) -> None:
        found = np.zeros_like(self.nodes)
        np.add.at(found, self._csc.src_type, edges)
        if not self._plan.disjoint:
            found = np.minimum(found, self._csc.num_nodes)
        nodes = self.nodes + found
        if not self._plan.disjoint:
            nodes = np.minimum(nodes, self._most_nodes)
        most_nodes, num_edges = int(nodes.max(initial=0)), int(edges.sum())
        if max(most_nodes, num_edges) >= ID_LIMIT:
            raise batch_too_large(most_nodes, num_edges)
        self._edges.append(edges)
        self._frontier.append(found)
        self.nodes = nodes
