"""Negatives drawn by weight, at the ends of what a draw can be."""

from __future__ import annotations

import pytest
import torch
from torch_geometric.sampler import NegativeSampling

from pyg_direct.core.types import BatchKey
from pyg_direct.sampling.negatives import KeyedNegatives


@pytest.mark.parametrize(
    ("draw", "node"), [(0.0, 1), (0.24, 1), (0.25, 2), (0.99, 2), (1.0, 2)], ids=str
)
def test_nodes_of_weight_0_are_never_drawn(
    draw: float, node: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draw of 1 is what rounding can make of one just below."""
    draws = lambda key, number, count: torch.full((count,), draw, dtype=torch.float64)  # noqa: E731
    monkeypatch.setattr("pyg_direct.sampling.negatives.rng.uniforms", draws)
    config = NegativeSampling("binary", dst_weight=torch.tensor([0.0, 1.0, 3.0, 0.0]))
    assert KeyedNegatives(config, BatchKey(1, 2)).sample(2, "dst", 4).tolist() == [node, node]
