"""Random walks: uniform, with node2vec's law, and along a metapath."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import EdgeType

from ..core.arguments import check_count, check_ids, check_seed, shown
from ..core.threads import available_cores
from ..core.types import BatchKey
from ..graph.from_pyg import Graph, graph_of
from ..ops.host import keys as rng
from ..ops.host.walks import Walks

MAX_STEPS = 1 << 24  # a step is 24 bits of the random counter


class RandomWalker:
    """A graph that is ready for random walks: its edges grouped by source, once.

    Args:
        data: `Data` or `HeteroData`, with edges as `edge_index` (or `adj_t`).
        threads: CPU threads that may share one call; None for all cores. The walks do not depend
            on it.

    Example:
        >>> walker = pyg_direct.RandomWalker(data)
        >>> walker.walk(torch.arange(100), 20, p=0.5, q=2.0, seed=0).shape
        torch.Size([100, 21])
    """

    def __init__(self, data: Data | HeteroData, *, threads: int | None = None) -> None:
        if not isinstance(data, (Data, HeteroData)):
            raise ValueError(f"data must be a Data or a HeteroData, got {type(data).__name__}.")
        threads = available_cores() if threads is None else check_count("threads", threads, 1)
        self._take(graph_of(data, backward=True), threads)

    def _take(self, graph: Graph, threads: int) -> None:
        self._graph, self.threads = graph, threads
        self._walks = Walks(graph.csc)

    @property
    def num_nodes(self) -> int:
        """The number of nodes, of all types."""
        return int(self._graph.csc.node_base[-1])

    def walk(
        self,
        start: Tensor,
        length: int,
        p: float = 1.0,
        q: float = 1.0,
        *,
        seed: int | BatchKey | None = None,
    ) -> Tensor:
        """Walk `length` steps from every node of `start`; see `random_walk`."""
        if self._graph.edge_types != [None]:
            raise ValueError("A graph with edge types is walked along a metapath: use walk_along.")
        length = check_length(length)
        starts = _starts(start, self.num_nodes)
        check_law(p, q)
        key = _key(seed)
        if p == q == 1.0:
            base = np.zeros(length, np.int64)
            return self._walks.uniform(starts, base, True, key, self.threads)
        return self._walks.biased(starts, length, float(p), float(q), key, self.threads)

    def walk_along(
        self,
        start: Tensor,
        metapath: Sequence[EdgeType],
        *,
        seed: int | BatchKey | None = None,
    ) -> Tensor:
        """Walk along one edge type after the other from every node of `start`.

        Args:
            start: int64 [n], ids of nodes of the source type of ``metapath[0]``.
            metapath: an edge type for each step; each begins at the node type where the one before
                ends. Write a path twice to walk it twice: ``path * 2``.
            seed: as in `random_walk`.

        Returns:
            int64 [n, len(metapath) + 1]: ids within the node type of each column. Behind a node
            from which no edge of the next type leads on, -1.

        Raises:
            ValueError: unknown edge types, or ones that do not follow each other.
            IndexError: a start out of range.
        """
        csc = self._graph.csc
        types: list[Any] = list(self._graph.edge_types)
        path: list[Any] = [tuple(step) for step in metapath]
        for step in path:
            if step not in types:
                raise ValueError(f"metapath must name edge types of {types}, got {shown(step)}.")
        for one, two in pairwise(path):
            if one[-1] != two[0]:
                raise ValueError(
                    f"metapath goes on from {one} with {two}, which begins at another node type."
                )
        relations = [types.index(step) for step in path]
        check_length(len(path), least=1, name="len(metapath)")
        # Grouped by source, the source type of an edge type is the destination type of the CSC.
        starts = _starts(start, int(csc.num_nodes[csc.dst_type[relations[0]]]))
        base = csc.indptr_base[relations]
        return self._walks.uniform(starts, base, False, _key(seed), self.threads)


def walker_over(graph: Graph, threads: int) -> RandomWalker:
    """Return a walker over a graph whose edges are grouped by source, without a copy."""
    walker = RandomWalker.__new__(RandomWalker)
    walker._take(graph, threads)
    return walker


def check_law(p: Any, q: Any) -> None:
    """Raise a ValueError unless p and q are finite numbers above 0."""
    for name, value in (("p", p), ("q", q)):
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0.0 < value < math.inf:
            raise ValueError(f"{name} must be a finite number above 0, got {shown(value)}.")


def random_walk(
    data: Data | RandomWalker,
    start: Tensor,
    length: int,
    p: float = 1.0,
    q: float = 1.0,
    *,
    seed: int | BatchKey | None = None,
) -> Tensor:
    """Walk `length` steps along edges (from source to destination) from every node of `start`.

    With ``p = q = 1`` each step takes one of the node's edges with equal chances. Else the law is
    node2vec's (Grover and Leskovec, "node2vec: Scalable Feature Learning for Networks", KDD 2016,
    section 3.2.2): coming from t, a step from v to x weighs 1 / p if x is t, 1 if an edge leads
    from x to t, and else 1 / q; the first step is uniform. Parallel edges count one by one. A walk
    stays where no edge leads on.

    The law is exact. It is drawn by rejection sampling, as in KnightKing (Yang et al., SOSP 2019),
    which needs no memory beside the graph; alias tables for each edge would need the sum of the
    degrees at both ends over all edges. Refused draws cost time where p and q are far from 1.

    Args:
        data: `Data`, or a `RandomWalker`, which saves grouping the edges at each call.
        start: int64 [n], node ids; may repeat.
        length: number of steps, 0 or more.
        p: return parameter, above 0.
        q: in-out parameter, above 0.
        seed: base seed of the draws in [0, 2^64); None draws one from torch's default generator.

    Returns:
        int64 [n, length + 1]; column 0 is `start`.

    Raises:
        ValueError, TypeError: a wrong argument; the message says which.
        IndexError: a start out of range.

    Example:
        >>> walks = pyg_direct.random_walk(data, torch.arange(data.num_nodes), 10, seed=0)
        >>> walks.shape
        torch.Size([300, 11])
    """
    walker = data if isinstance(data, RandomWalker) else RandomWalker(data)
    return walker.walk(start, length, p, q, seed=seed)


def metapath_walk(
    data: HeteroData | RandomWalker,
    start: Tensor,
    metapath: Sequence[EdgeType],
    *,
    seed: int | BatchKey | None = None,
) -> Tensor:
    """Walk along one edge type after the other; see `RandomWalker.walk_along`.

    Example:
        >>> there = ("author", "writes", "paper")
        >>> back = ("paper", "rev_writes", "author")
        >>> walks = pyg_direct.metapath_walk(hetero, torch.arange(5), [there, back], seed=0)
        >>> walks.shape  # authors, papers, authors
        torch.Size([5, 3])
    """
    walker = data if isinstance(data, RandomWalker) else RandomWalker(data)
    return walker.walk_along(start, metapath, seed=seed)


def _starts(start: Any, num_nodes: int) -> Any:
    if (
        not isinstance(start, Tensor)
        or start.dim() != 1
        or start.is_floating_point()
        or (start.dtype == torch.bool)
    ):
        raise ValueError(
            f"start must be a tensor of node ids of one dimension, got {shown(start)}."
        )
    check_ids(start, num_nodes, "start")
    return start.to("cpu", torch.int64).contiguous().numpy()


def check_length(length: Any, least: int = 0, name: str = "length") -> int:
    """Return a number of steps that a walk can have."""
    if check_count(name, length, least) >= MAX_STEPS:
        raise ValueError(f"{name} must be below {MAX_STEPS}, got {length}.")
    return int(length)


def _key(seed: Any) -> BatchKey:
    if isinstance(seed, BatchKey):
        return seed
    base = rng.draw_seed(None) if seed is None else check_seed(seed)
    assert base is not None
    return rng.derive(base, 0, 0, rng.WALK_DOMAIN)
