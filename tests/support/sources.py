"""Sources of hops: the same draws made in other places, and a law of another kind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pyg_direct.core.types import Csc, Frontier, Picks
from pyg_direct.ops.backend import Workspace
from pyg_direct.sampling.hops import BatchInProgress


class OneByOne:
    """Each hop as it is, by itself."""

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        for batch in window:
            batch.work.hop(hop)


@dataclass
class Elsewhere:
    """Each hop as the sum of its parts; another workspace draws, if one is given."""

    owner: Workspace | None = None

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        for work, key, rules in window:
            items = work.frontier(hop)
            work.enter(hop, (self.owner or work).draw(hop, items, key, rules))


@dataclass
class Exchange:
    """Nodes belong to owners by their ids, who draw what is asked of them and tell the edges' ids.

    As between ranks that have a part of the lists each: requests are ids with their local ids, and
    answers numbers of edges, sources and ids.

    Attributes:
        owners: a workspace for each rank.
        csc: the graph, in host memory.
        by_id: whether edge ids are told in place of positions.
    """

    owners: Sequence[Workspace]
    csc: Csc
    by_id: bool = True
    # How many nodes each owner was asked for, one owner after another.
    requests: list[int] = field(default_factory=list)

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        for work, key, rules in window:
            items = work.frontier(hop)
            parts = []
            for rank, owner in enumerate(self.owners):
                mine = [node % len(self.owners) == rank for node in items.node]
                self.requests.append(sum(int(of_type.sum()) for of_type in mine))
                asked = Frontier(*(lists and masked(lists, mine) for lists in items))
                parts.append((mine, owner.draw(hop, asked, key, rules)))
            work.enter(hop, self.merged(parts))

    def merged(self, parts: Sequence[tuple[list[Tensor], Picks]]) -> Picks:
        """Put the answers of all owners into the order of the whole frontier."""
        first, picks = parts[0][0], [answer for _, answer in parts]
        device = picks[0].source.device
        counts = torch.zeros(
            sum(len(first[t]) for t in self.csc.dst_type), dtype=torch.int32, device=device
        )
        owner_of = torch.zeros_like(counts)
        for rank, (mine, answer) in enumerate(parts):
            mask = torch.cat([mine[t] for t in self.csc.dst_type])
            counts[mask], owner_of[mask] = answer.counts, rank
        by_edge = torch.repeat_interleave(owner_of, counts)
        source = torch.zeros(len(by_edge), dtype=picks[0].source.dtype, device=device)
        position = torch.zeros(len(by_edge), dtype=picks[0].position.dtype, device=device)
        for rank, answer in enumerate(picks):
            source[by_edge == rank], position[by_edge == rank] = answer.source, answer.position
        if not self.by_id:
            return Picks(counts, source, position)
        return Picks(counts, source, None, edge_ids(self.csc, position))


def masked(lists: Sequence[Tensor], mask: Sequence[Tensor]) -> list[Tensor]:
    return [part[of_type] for part, of_type in zip(lists, mask, strict=True)]


def edge_ids(csc: Csc, position: Tensor) -> Tensor:
    """Return what the user calls the edges at some positions."""
    at = position.cpu().numpy().astype(np.int64)
    relation = np.searchsorted(csc.edge_base, at, "right") - 1
    ids = at - csc.edge_base[relation] if csc.perm is None else csc.perm[at]
    return torch.from_numpy(ids.astype(np.int64)).to(position.device)


@dataclass
class RandomCounts:
    """A law whose number of picks is random: each edge of a list with probability 1/2, by a coin.

    Not more of a list than the fan-out. The draws depend on the node only, so that any backend
    gets the same ones.
    """

    csc: Csc
    fanouts: Any
    drawn: list[tuple[int, int, list[int]]] = field(default_factory=list)

    def hop(self, window: Sequence[BatchInProgress], hop: int) -> None:
        for batch in window:
            items = batch.work.frontier(hop)
            picks = [
                self.of(hop, r, v)
                for r, dst in enumerate(self.csc.dst_type.tolist())
                for v in items.node[dst].tolist()
            ]
            device, ids = items.node[0].device, items.node[0].dtype
            position = np.concatenate([*picks, np.empty(0, self.csc.indptr.dtype)])
            position = position.astype(self.csc.indptr.dtype)
            batch.work.enter(
                hop,
                Picks(
                    torch.tensor([len(p) for p in picks], dtype=torch.int32, device=device),
                    torch.from_numpy(self.csc.indices[position]).to(ids).to(device),
                    torch.from_numpy(position).to(device),
                ),
            )

    def of(self, hop: int, relation: int, node: int) -> Any:
        at = int(self.csc.indptr_base[relation]) + node
        all_of_it = np.arange(self.csc.indptr[at], self.csc.indptr[at + 1])
        coins = np.random.default_rng([hop, relation, node]).random(len(all_of_it)) < 0.5
        fanout = int(self.fanouts[hop, relation])
        picked = all_of_it[coins][: fanout if fanout >= 0 else None]
        self.drawn.append((hop, relation, picked.tolist()))
        return picked
