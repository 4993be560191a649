"""Batches and steps that reuse rows of the first layer from earlier steps.

A node that the last hop but one finds, and whose row of layer 1 was computed at most `staleness`
steps ago, gets no neighbours; layer 2 reads its row from a table. An older row is computed by the
step that needs it, and goes to the table: no row is computed that a step without reuse does not
compute.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from pyg_direct.core.types import SampledGraph
from pyg_direct.sampling.hops import BatchInput
from pyg_direct.sampling.keyed import KeyedSampler

NEVER = -(1 << 40)  # the step of a row that was not computed yet


class Reused(NamedTuple):
    """Where rows of a batch come from: those from `end` on from the table."""

    end: int
    read: int
    fresh: Tensor  # int64, rows below `end` that go to the table
    fresh_ids: Tensor
    reused_ids: Tensor
    refreshed: Tensor  # rows below `end` that are computed though the table has them
    cut: Tensor  # rows below `end` that are computed and get no gradient, at staleness 0


class Reuse:
    """The table and its schedule.

    Args:
        hot: bool [N], nodes that have rows in the table.
        staleness: the oldest row that is used, in steps.
        share_refreshed: of the rows that could be reused, computed with gradients.
        gradient: "none", or "refresh", where the gradients of refreshed rows are divided by their
            share.
    """

    def __init__(
        self, hot: Tensor, staleness: int, share_refreshed: float = 0.0, seed: int = 0
    ) -> None:
        self.hot, self.staleness, self.share = hot.numpy(), staleness, share_refreshed
        self.computed_at = np.full(len(hot), NEVER)
        self.table: Tensor | None = None
        self.step, self.batches = 0, deque[Reused]()
        self.current: Any = None
        self.mask = torch.zeros(len(hot), dtype=torch.bool)
        self.rng = np.random.default_rng(seed)
        self.frontier = self.reused = self.ages = self.oldest = 0

    def choose(self, frontier: Tensor) -> Any:
        """Return for nodes whether their rows are reused, kept, refreshed, cut."""
        ids = frontier.numpy()
        hot = self.hot[ids]
        age = self.step - self.computed_at[ids]
        reused = hot & (age <= self.staleness)
        refreshed, cut = np.zeros((2, len(ids)), bool)
        if self.staleness == 0:  # rows of the step itself, with the gradient's rule of reused ones
            refreshed = hot & (self.rng.random(len(ids)) < self.share)
            cut, reused = hot & ~refreshed, np.zeros_like(hot)
        elif self.share > 0:
            refreshed = reused & (self.rng.random(len(ids)) < self.share)
            reused &= ~refreshed
        self.frontier += len(ids)
        self.reused += int(reused.sum())
        self.ages += int(age[reused].sum())
        self.oldest = max(self.oldest, int(age[reused].max(initial=0)))
        fresh = hot & ~reused
        self.computed_at[ids[fresh]] = self.step
        self.step += 1
        return reused, fresh, refreshed, cut


@dataclass(frozen=True)
class ReusingSampler(KeyedSampler):
    """Leaves out the neighbours of nodes whose rows are reused, and lists these nodes last."""

    reuse: Any = field(default=None)

    def _drawn(self, batch: BatchInput) -> SampledGraph | None:
        reuse, (number, plan) = self.reuse, self._plan
        kind, pool = (number, self.backend.streams.stream_id()), self.shared.workspaces
        work = pool.take(kind) or self.backend.workspace(self.graph.csc, plan)
        last = len(plan.fanouts) - 1
        assert work.begin(*batch)
        for hop in range(last):
            work.hop(hop)
        ids = work.frontier(last).node[0].long()
        reused, fresh, refreshed, cut = reuse.choose(ids)
        reuse.mask[ids] = torch.from_numpy(reused)
        work.hop(last, [reuse.mask])
        sampled = work.finish()
        reuse.mask[ids] = False
        pool.give_back(kind, work)
        first = sum(sampled.num_sampled_nodes[0][:last])
        order = np.concatenate([np.flatnonzero(~reused), np.flatnonzero(reused)])
        end = first + int((~reused).sum())
        node, edges = sampled.node[0], sampled.edge_index[0]
        place = torch.arange(len(node))
        place[torch.from_numpy(first + order)] = torch.arange(first, first + len(ids))
        edges[0] = place[edges[0]]
        of_last = edges[1, sum(sampled.num_sampled_edges[0][:last]) :]
        of_last.copy_(place[of_last])
        node[first : first + len(ids)] = ids[torch.from_numpy(order)]
        kept = torch.from_numpy(np.flatnonzero(fresh[order]))
        again = torch.from_numpy(np.flatnonzero(refreshed[order]))
        without = torch.from_numpy(np.flatnonzero(cut[order]))
        reuse.batches.append(
            Reused(
                end, first + len(ids), first + kept, node[first + kept],
                node[end : first + len(ids)], first + again, first + without,
            )
        )  # fmt: skip
        return sampled


class TableRows:
    """The exchange of a step: rows of the table, and no gradient for them."""

    def __init__(self, reuse: Reuse, batch: Reused) -> None:
        self.reuse, self.batch = reuse, batch

    def reach(self, count: int) -> tuple[int, int]:
        """See `RowExchange`."""
        return (count, count) if count <= self.batch.end else (self.batch.read, self.batch.end)

    def forward(self, computed: Tensor, read: int) -> Tensor:
        """See `RowExchange`."""
        reuse, batch = self.reuse, self.batch
        if reuse.table is None:
            reuse.table = computed.new_zeros(len(reuse.hot), computed.size(1))
        reuse.table[batch.fresh_ids] = computed[batch.fresh]
        if read <= batch.end:
            return computed
        return torch.cat([computed, reuse.table[batch.reused_ids]])

    def backward(self, grad: Tensor) -> Tensor:
        """See `RowExchange`."""
        own = grad[: self.batch.end]
        if len(self.batch.refreshed) or len(self.batch.cut):
            own = own.clone()
            own[self.batch.cut] = 0
            own[self.batch.refreshed] /= self.reuse.share
        return own


def with_reuse(loader: Any, model: Any, reuse: Reuse) -> None:
    """Let a loader and an accelerated model reuse rows."""
    keyed = loader._sampler._keyed
    parts = {f.name: getattr(keyed, f.name) for f in fields(KeyedSampler)}
    loader._sampler._keyed = ReusingSampler(**parts, reuse=reuse)

    def exchange_of(sizes: Any, gathered: Any) -> TableRows | None:
        return TableRows(reuse, reuse.current) if gathered.layer == 1 else None

    model.acceleration.exchange_of = exchange_of
