"""Negative nodes for link loading, from the same counter-based generator as the neighbours."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from ..core.arguments import check_tensor
from ..core.types import BatchKey
from ..ops.host import keys as rng


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
    where these are of two types, whose seeds come one behind the other.

    Args:
        num_seeds: sources and destinations.
        num_links: without negatives.
        paired: whether there are as many sources as destinations; else, with 'triplet', there are
            whole multiples of `num_links` of both.

    Example: 2 links with one negative, which is of the first, give 0, 1, 0, 0, 1, 0.
    """
    return torch.arange(num_seeds) % (num_seeds // 2 if paired else num_seeds) % num_links


class KeyedNegatives(NegativeSampling):
    """PyG's `NegativeSampling` for one batch: as configured, drawn from the key of the batch.

    Nodes are uniform, or in proportion to `src_weight` and `dst_weight`; as in PyG, nothing checks
    whether a negative happens to be an edge.

    Args:
        config: what the user asked for.
        key: the key of the batch.
    """

    def __init__(self, config: NegativeSampling, key: BatchKey) -> None:
        super().__init__(config.mode, config.amount, config.src_weight, config.dst_weight)
        self._key = key
        self._draws = count()  # every call has random numbers of its own

    def sample(
        self, num_samples: int, endpoint: Literal["src", "dst"], num_nodes: int | None = None
    ) -> Tensor:
        """Return `num_samples` node ids, int64, each in [0, num_nodes).

        Raises:
            ValueError: no nodes to draw from, or not one weight for each, or no positive weight.
        """
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
