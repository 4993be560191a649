"""Negative nodes for link loading, from the same counter-based generator as the neighbours."""

from __future__ import annotations

from itertools import count
from typing import Literal

import torch
from torch import Tensor
from torch_geometric.sampler import NegativeSampling

from . import rng
from .types import BatchKey


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
        if num_nodes is not None and weight.numel() != num_nodes:
            raise ValueError(
                f"{endpoint}_weight of NegativeSampling needs one weight for each of {num_nodes} "
                f"nodes, got {weight.numel()}."
            )
        running = weight.detach().cpu().to(torch.float64).reshape(-1).cumsum(0)
        if running.numel() == 0 or not bool(running[-1] > 0) or bool((weight < 0).any()):
            raise ValueError(
                f"{endpoint}_weight of NegativeSampling must not be negative and needs a positive "
                f"sum."
            )
        target = rng.uniforms(self._key, draw, num_samples) * running[-1]
        picks = torch.searchsorted(running, target, right=True)
        # Rounding can reach the sum itself, where only nodes without weight may follow.
        last = int(torch.searchsorted(running, running[-1]))
        return picks.clamp_(max=last)
