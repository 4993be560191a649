"""Fan-outs that adapt by metapath: how many edges each node of a frontier gets.

A metapath is the sequence of relations by which a batch came from its seeds to a node. Without
shortage, a metapath of fan-outs k1, k2, ... takes ``seeds * k1 * k2 * ...`` edges; that number is
its budget. What short lists leave of it goes to the longer lists of the same metapath, in the same
hop and in the hops after it. This is the law of pyg-lib's `HeteroNeighborSampler`, except where
several metapaths meet in a node type: there a node's share is that among the nodes of its own
metapath, and not of all, so that a budget is spent as far as the lists go.

All numbers are integers, and each operation gives the same on every device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..core.types import Csc, IntTable, SamplingPlan
from .backend import ID_LIMIT


class MetapathBudgets:
    """The budgets of one batch at a time, and the nodes that share each.

    Nodes of a frontier share a budget if they are of one subgraph (of all where batches are not
    disjoint) and were found by one metapath. Such nodes are a group; a node that several metapaths
    find in one hop is of the group of the first edge that found it.

    Args:
        csc: the graph; only its types are looked at.
        fanouts: [hops, R], each at least 0.
        device: of the tensors that come and go.
    """

    def __init__(self, csc: Csc, fanouts: IntTable, device: torch.device) -> None:
        self._dst_types: list[int] = csc.dst_type.tolist()
        self._relations, self._types = csc.num_relations, csc.num_types
        self._device = device
        self._src_type = torch.from_numpy(csc.src_type).to(device)
        self._fanouts = torch.from_numpy(np.minimum(fanouts, ID_LIMIT)).to(device)
        self._group: list[Tensor] = []  # T x int64 [f_t], of each node of the frontier
        self._budget = self._pair = self._counts = torch.empty(0, dtype=torch.int64, device=device)

    def begin(self, sizes: Sequence[int], disjoint: bool) -> None:
        """Begin a batch with so many seeds of each type."""
        total = sum(sizes)
        if disjoint:
            self._budget = torch.ones(total, dtype=torch.int64, device=self._device)
            groups = torch.arange(total, device=self._device)
        else:
            self._budget = torch.tensor(sizes, dtype=torch.int64, device=self._device)
            types = torch.arange(self._types, device=self._device)
            groups = types.repeat_interleave(self._budget)
        self._group = list(torch.split(groups, list(sizes)))

    def counts(self, hop: int, degree: Tensor) -> Tensor:
        """Return how many edges each item of the hop gets, int64 [items].

        Each budget is poured over its items like water over their lists: short lists are filled,
        and the others get the same number, or one more where the budget does not come out even;
        these are the longest lists and, of equal ones, the last.

        Args:
            hop: of the frontier.
            degree: int64 [items], how many edges each item may take.

        Example: two seeds of one type and a fan-out of 3 have a budget of 6: lists of 1 and 9 get 1
        and 5. Three seeds have 9: lists of 2, 8 and 8 get 2, 3 and 4.
        """
        pairs = [self._group[t] * self._relations + r for r, t in enumerate(self._dst_types)]
        self._pair = pair = torch.cat([self._budget[:0], *pairs])
        # There is memory for a flag for each pair, so the keys stay far below 2^63.
        key, order = (pair * (ID_LIMIT + 1) + degree.clamp(max=ID_LIMIT)).sort(stable=True)
        pair = key // (ID_LIMIT + 1)
        budget = self._budgets(hop, pair)
        degree = torch.minimum(key - pair * (ID_LIMIT + 1), budget)
        _, owner, size = torch.unique_consecutive(pair, return_inverse=True, return_counts=True)
        first = size.cumsum(0) - size
        rank = torch.arange(len(pair), device=self._device) - first[owner]
        filled = degree.cumsum(0) - degree  # by the items before, of all budgets
        left = budget - (filled - filled[first][owner])
        # If a list is longer than its share of what is left, so are all after it.
        is_short = degree * (size[owner] - rank) <= left
        short = torch.zeros_like(size).scatter_add_(0, owner, is_short.to(torch.int64))
        taken = torch.zeros_like(size).scatter_add_(0, owner, degree * is_short)
        long = size - short
        rest = budget[first] - taken
        level = rest // long.clamp(min=1)
        more_from = size - (rest - level * long)  # the ranks from here on get one more
        count = torch.where(is_short, degree, level[owner] + (rank >= more_from[owner]))
        self._counts = torch.empty_like(count).scatter_(0, order, count)
        return self._counts

    def _budgets(self, hop: int, pair: Tensor) -> Tensor:
        """Return the budget of each pair of a group and a relation."""
        group, relation = pair // self._relations, pair % self._relations
        return (self._budget[group] * self._fanouts[hop][relation]).clamp(max=ID_LIMIT)

    def follow(self, hop: int, label: Tensor, known: Sequence[int], found: Sequence[int]) -> None:
        """Take the nodes that a hop found as the next frontier.

        Args:
            hop: whose `counts` were asked for.
            label: [edges], local ids of their sources, item by item.
            known: [T], nodes of each type before the hop.
            found: [T], nodes of each type after it.
        """
        edge_pair = self._pair.repeat_interleave(self._counts)
        sizes = [after - before for before, after in zip(known, found, strict=True)]
        shift = torch.tensor([sum(sizes[:t]) - known[t] for t in range(self._types)])
        least = torch.tensor(known, device=self._device)
        source_type = self._src_type[edge_pair % self._relations]
        is_new = (label >= least[source_type]).nonzero().squeeze(1)
        place = label[is_new] + shift.to(self._device)[source_type[is_new]]
        finder = torch.full((sum(sizes),), len(label), dtype=torch.int64, device=self._device)
        finder.scatter_reduce_(0, place, is_new, "amin")
        pair = edge_pair[finder]
        is_used = torch.zeros(len(self._budget) * self._relations + 1, dtype=torch.bool)
        is_used = is_used.to(self._device).index_fill_(0, pair, True)
        self._budget = self._budgets(hop, is_used.nonzero().squeeze(1))
        group = (is_used.cumsum(0) - 1)[pair]
        self._group = list(torch.split(group, sizes))


def check_alone(plan: SamplingPlan) -> None:
    """Raise a ValueError if nodes of any origin cannot draw by a plan."""
    if plan.adaptive:
        raise ValueError(
            "Nodes alone do not say what is left of the budgets of their metapaths. Sample whole "
            "batches, or use a plan that is not adaptive."
        )
