"""Negative nodes for link loading, from the same counter-based generator as the neighbours."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from ..core.arguments import check_tensor
from ..core.types import BatchKey
from ..ops.host import keys as rng

MAX_RETRIES = 16  # of a source with edges to half of all nodes, one negative in 131,072 stays one


def check_weights(config: NegativeSampling, num_src: int, num_dst: int) -> None:
    """Check the weights of `neg_sampling` once, for graphs of so many sources and destinations.

    Raises:
        TypeError: weights that are not a tensor.
        ValueError: not one for each node, negative or infinite ones, or none above 0.
    """
    for name, weight, num_nodes in (
        ("src_weight", config.src_weight, num_src),
        ("dst_weight", config.dst_weight, num_dst),
    ):
        check_tensor(f"neg_sampling: {name}", weight)
        if weight is not None:
            _check_weight(f"neg_sampling: {name}", weight, num_nodes)


def check_strict(link_type: Any, node_times: Mapping[Any, Any] | None) -> None:
    """Raise a ValueError if the ends of links have times, which `strict_negatives` cannot mind.

    PyG draws those of negatives again by a rule of its own, which loses what belongs together.
    """
    ends = (None, None) if link_type is None else (link_type[0], link_type[-1])
    if node_times and any(kind in node_times for kind in ends):
        raise ValueError(
            "strict_negatives=True does not go with times of the nodes that negatives are drawn "
            "from. Use times of edges, or leave it out."
        )


def _check_weight(name: str, weight: Tensor, num_nodes: int | None) -> None:
    if num_nodes is not None and weight.numel() != num_nodes:
        raise ValueError(
            f"{name} of NegativeSampling needs one weight for each of {num_nodes} nodes, got "
            f"{weight.numel()}."
        )
    good = bool((torch.isfinite(weight) & (weight >= 0)).all()) and bool((weight > 0).any())
    if not good:
        raise ValueError(
            f"{name} of NegativeSampling must be finite, must not be negative and needs a positive "
            f"sum."
        )


def sample_ends(sample: Callable[..., Any], seed: Any, seed_time: Any = None) -> Any:
    """Sample a subgraph around each link, whose two ends share its number.

    PyG numbers subgraphs by the position of a seed modulo the number of positive links. That tells
    the ends of one link apart where the number of all links is not a multiple of it.

    Args:
        sample: called with the other two arguments; returns an output with `batch`.
        seed: sources and destinations of all links, int64 [2 * links], or by node type.
        seed_time: their times, if any.
    """
    out = sample(seed, seed_time)
    if isinstance(seed, dict):
        num_links = sum(map(len, seed.values())) // 2
        out.batch = {kind: number % num_links for kind, number in out.batch.items()}
    else:
        out.batch = out.batch % (len(seed) // 2)
    return out


def links_of_seeds(num_seeds: int, num_links: int, paired: bool) -> Tensor:
    """Return which link each seed of a batch belongs to, int64 [num_seeds].

    PyG passes the sources of all links, then of their negatives, and then the destinations; also
    where these are of two types, whose seeds follow each other.

    Args:
        num_seeds: sources and destinations.
        num_links: without negatives.
        paired: whether there are as many sources as destinations; else, with 'triplet', there are
            whole multiples of `num_links` of both.

    Example: 2 links with one negative, which is of the first, give 0, 1, 0, 0, 1, 0.
    """
    return torch.arange(num_seeds) % (num_seeds // 2 if paired else num_seeds) % num_links


@dataclass
class RetryCounts:
    """What `strict_negatives` did in all batches of a sampler so far.

    Attributes:
        drawn: negatives.
        redrawn: draws that were edges, and were made again; one negative may take several.
        left: negatives that are edges all the same, after `MAX_RETRIES` more draws each.
    """

    drawn: int = 0
    redrawn: int = 0
    left: int = 0
    _lock: Any = field(default_factory=threading.Lock, repr=False, compare=False)

    def add(self, drawn: int, redrawn: int, left: int) -> None:
        """Count a batch; producers may do so at the same time."""
        with self._lock:
            self.drawn += drawn
            self.redrawn += redrawn
            self.left += left

    def __reduce__(self) -> Any:
        return RetryCounts, (self.drawn, self.redrawn, self.left)


class Strict(NamedTuple):
    """How the negatives of one batch avoid the edges of the graph."""

    are_edges: Callable[[Tensor, Tensor], Tensor]
    """From sources and destinations, int64 [n] each, to which of them are edges, bool [n]."""
    sources: Tensor  # int64 [negatives], of the triplets of the batch; see `triplet_sources`
    counts: RetryCounts


def triplet_sources(row: Tensor, amount: int, disjoint: bool) -> Tensor:
    """Return the source that PyG gives each negative destination to, int64 [amount * links].

    Example: the sources 7 and 8 with two negatives each have them in the order 7, 8, 7, 8 in
    disjoint batches, and 7, 7, 8, 8 in others.
    """
    return row.repeat(amount) if disjoint else row.repeat_interleave(amount)


class KeyedNegatives(NegativeSampling):
    """PyG's `NegativeSampling` for one batch: as configured, drawn from the key of the batch.

    Nodes are uniform, or in proportion to `src_weight` and `dst_weight`. As in PyG, nothing checks
    whether a negative happens to be an edge, unless `strict` does: then the destination of one that
    is an edge is drawn again, so that sources are as likely as before, and so are, in proportion to
    each other, the destinations of a source that are not edges.

    Args:
        config: what the user asked for.
        key: the key of the batch.
        strict: how edges are avoided; None for not at all.
    """

    def __init__(
        self, config: NegativeSampling, key: BatchKey, strict: Strict | None = None
    ) -> None:
        super().__init__(config.mode, config.amount, config.src_weight, config.dst_weight)
        self._key = key
        self._draws = count()  # every call has random numbers of its own
        self._strict = strict
        self._sources: Tensor | None = None  # of the negatives, in binary mode

    def sample(
        self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None
    ) -> Tensor:
        """Return `num_samples` node ids, int64, each in [0, num_nodes).

        PyG asks for the sources, if at all, before the destinations of the same negatives.

        Raises:
            ValueError: no nodes to draw from, or not one weight for each, or no positive weight.
        """
        nodes = self._drawn(num_samples, endpoint, num_nodes)
        if self._strict is None:
            return nodes
        if endpoint == "src":
            self._sources = nodes
            return nodes
        sources = self._sources
        if sources is None:
            sources = self._strict.sources
        return self._redrawn(self._strict, sources, nodes, num_nodes)

    def _redrawn(
        self, strict: Strict, sources: Tensor, nodes: Tensor, num_nodes: int | None
    ) -> Tensor:
        """Draw destinations again that make an edge, some times at most."""
        wrong = strict.are_edges(sources, nodes).nonzero().view(-1)
        redrawn = 0
        for _ in range(MAX_RETRIES):
            if len(wrong) == 0:
                break
            nodes[wrong] = self._drawn(len(wrong), "dst", num_nodes)
            redrawn += len(wrong)
            wrong = wrong[strict.are_edges(sources[wrong], nodes[wrong])]
        strict.counts.add(len(nodes), redrawn, len(wrong))
        return nodes

    def _drawn(
        self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None
    ) -> Tensor:
        draw = next(self._draws)
        weight = self.src_weight if endpoint == "src" else self.dst_weight
        if weight is None:
            if not num_nodes:
                raise ValueError("There are no nodes to draw negatives from.")
            return rng.integers(self._key, draw, num_samples, num_nodes)
        _check_weight(f"{endpoint}_weight", weight, num_nodes)
        running = weight.detach().cpu().to(torch.float64).reshape(-1).cumsum(0)
        target = rng.uniforms(self._key, draw, num_samples) * running[-1]
        picks = torch.searchsorted(running, target, right=True)
        # Rounding can reach the sum itself, where only nodes without weight may follow.
        last = int(torch.searchsorted(running, running[-1]))
        return picks.clamp_(max=last)
