"""Adaptive fan-outs draw from each list uniformly, however many edges its budget gives it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import THRESHOLD, Ints, mean_of_features, overlap, pairs, single_inclusion
from torch_geometric.data import Data

from pyg_direct import NeighborSampler
from pyg_direct.core.types import BatchKey
from pyg_direct.sampling.sampler import keyed

CASES = [(7, 2), (50, 10), (300, 40)]  # length of long lists, fan-out; each second list has one


def draw(degree: int, fanout: int, hubs: int) -> Ints:
    """Return the positions that each long list gives, which are twice the fan-out less one.

    Half of the lists have one edge, and leave ``fanout - 1`` to each long one.
    """
    length = torch.tensor([1, degree]).repeat(hubs)
    leaf = torch.arange(int(length.sum())) + 2 * hubs
    ends = torch.arange(2 * hubs).repeat_interleave(length)
    data = Data(edge_index=torch.stack([leaf, ends]), num_nodes=2 * hubs + len(leaf))
    sampler = NeighborSampler(data, [fanout], sampling="adaptive")
    sampled = keyed(sampler).sample([torch.arange(2 * hubs)], BatchKey(3, 4))
    edges, local = sampled.edge[0].numpy(), sampled.edge_index[0][1].numpy()
    taken = edges[local % 2 == 1].reshape(hubs, 2 * fanout - 1)
    assert len(edges) == 2 * hubs * fanout  # the budget is spent
    return taken - np.arange(hubs)[:, None] * (degree + 1) - 1


def p_values(drawn: Ints, degree: int) -> list[float]:
    half = len(drawn) // 2
    return [
        single_inclusion(drawn, degree), pairs(drawn, degree), mean_of_features(drawn, degree),
        overlap(drawn[:half], drawn[half : 2 * half], degree),
    ]  # fmt: skip


@pytest.mark.parametrize(("degree", "fanout"), CASES)
def test_long_lists_are_drawn_uniformly(degree: int, fanout: int) -> None:
    drawn = draw(degree, fanout, min(20_000, 1_500_000 // degree))
    assert (np.diff(np.sort(drawn, 1), axis=1) > 0).all()
    assert min(p_values(drawn, degree)) > THRESHOLD


def test_a_fanout_and_what_comes_after_it_are_not_uniform() -> None:
    """The control: a plain draw of the fan-out, to which the first edges left over are added."""
    degree, fanout = CASES[1]
    drawn = draw(degree, fanout, 20_000)
    random = np.random.default_rng(0)
    for row in drawn:
        kept = random.permutation(degree)[:fanout]
        row[:] = np.concatenate([kept, np.setdiff1d(np.arange(degree), kept)[: fanout - 1]])
    assert min(p_values(drawn, degree)) < THRESHOLD
