"""Filler rows of a batch that ranks make together, where one of them has too few of its own.

A rank may have no node or edge of some type while others have many. All of them must run the same
operations, so it gets rows behind all others, which nothing reads: at least two of each type, and
so many that types can be told apart by their numbers of rows.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..batch.edges import SampledEdges
from ..core.cooperation import Cooperation

FEWEST = 2  # rows of a type with which all operations of a step are possible
FEW_EDGES = 16  # lists of fewer may be equal by chance, and are told apart by what is added
MANY_EDGES = 1024  # which are not all self-loops


class Filler:
    """How many rows are added behind those of each type.

    Args:
        edges: of the batch, with their types.
        common: what the batch says of its ranks.

    Attributes:
        nodes: how many rows are added to each node type.
        num_edges: number of edges without those that are added, by number with them.
        edges: with those that are added.
    """

    def __init__(self, edges: list[tuple[Any, SampledEdges]], common: Cooperation) -> None:
        self._num_nodes = {
            t: n.num_seeds + sum(n.own_by_hop) + sum(n.others_by_hop)
            for t, n in common.nodes.items()
        }
        self.nodes = dict.fromkeys(self._num_nodes, 0)
        self._added: dict[Any, tuple[int, int]] = {}  # by edge type: how many, and how many more
        counts = [sampled.size(1) for _, sampled in edges]
        taken = {count for count in counts if count >= FEWEST}
        for (key, sampled), count in zip(edges, counts, strict=True):
            more = FEWEST if common.size > 1 and _has_few(sampled) else 0
            while more and count + more in taken:
                more += 1
            self._added[key] = count, more
            taken.add(count + more)
            for t in _ends(key) if more else ():
                self.nodes[t] = FEWEST
        if common.size > 1:
            self._tell_apart()
        self.num_edges = {count + more: count for count, more in self._added.values()}
        self._filled = {id(sampled): self._with_more(key, sampled) for key, sampled in edges}
        self.edges = [(key, self._filled[id(sampled)]) for key, sampled in edges]

    def _tell_apart(self) -> None:
        """Let no two types have equally many rows, and each at least two."""
        taken: set[int] = set()
        for t, count in sorted(self._num_nodes.items(), key=lambda entry: self.nodes[entry[0]]):
            more = self.nodes[t] or (FEWEST if count < FEWEST else 0)
            while count + more in taken:
                more += 1
            self.nodes[t] = more
            taken.add(count + more)

    def _with_more(self, key: Any, sampled: SampledEdges) -> SampledEdges:
        more, hops = self._added[key][1], sampled.hops
        source, destination = _ends(key)
        extra = self.nodes[source] or self.nodes[destination]
        if not extra or hops is None:
            return sampled
        edges = sampled.as_tensor()
        if more:  # from a second row to a first one, so that no list is one of sources and of ends
            ends = [self._num_nodes[source] + 1, self._num_nodes[destination]]
            added = torch.tensor(ends, device=edges.device)[:, None].expand(2, more)
            edges = torch.cat([edges, added.to(edges.dtype)], 1)
        return SampledEdges(
            edges.contiguous(),
            hops._replace(
                source=(*hops.source[:-1], hops.source[-1] + self.nodes[source]),
                destination=(
                    *hops.destination[:-1],
                    hops.destination[-1] + self.nodes[destination],
                ),
                edge=(*hops.edge[:-1], hops.edge[-1] + more),
            ),
        )

    def of(self, value: Any, key: Any = None) -> Any:
        """Return arguments of a forward with the added rows, which are zero."""
        if not any(self.nodes.values()):
            return value
        if isinstance(value, SampledEdges):
            return self._filled[id(value)]
        if type(value) is dict:
            return {name: self.of(part, name) for name, part in value.items()}
        if type(value) in (tuple, list):
            return type(value)([self.of(part, key) for part in value])
        if type(value) not in (Tensor, torch.nn.Parameter) or value.dim() == 0:
            return value
        more = self._more(key, len(value))
        if not more or value.layout != torch.strided:
            return value
        return torch.cat([value, value.new_zeros(more, *value.shape[1:])])

    def _more(self, key: Any, count: int) -> int:
        known = {t: (n, self.nodes[t]) for t, n in self._num_nodes.items()}
        known |= {k: v for k, v in self._added.items() if isinstance(k, tuple)}
        if key in known and key is not None:
            return known[key][1] if known[key][0] == count else 0
        fitting = {more for n, more in [*known.values(), *self._added.values()] if n == count}
        return fitting.pop() if len(fitting) == 1 else 0


def _ends(key: Any) -> tuple[Any, Any]:
    return (key[0], key[2]) if isinstance(key, tuple) else (None, None)


def _has_few(sampled: SampledEdges) -> bool:
    """Whether there are too few edges that are no self-loops."""
    source, destination = sampled.as_tensor()
    if len(source) >= MANY_EDGES:
        return False
    return int((source != destination).sum()) < FEW_EDGES
