"""LABOR follows the law of uniform draws list by list, and its own between lists and batches.

Each law comes with a control: a fault that its test sees.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import (
    THRESHOLD,
    Ints,
    chi_square,
    independence,
    lag_one,
    mean_of_features,
    overlap,
    pairs,
    single_inclusion,
    two_sided,
)
from scipy import stats
from torch import Tensor
from torch_geometric.data import Data

from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.core.types import BatchKey
from pyg_direct.kernels.labor import fill_variates
from pyg_direct.ops.host import keys as rng
from pyg_direct.sampling.sampler import keyed

CASES = [(2, 1), (7, 3), (50, 15), (100, 64), (300, 40)]
WINDOW = 4


def own_leaves(hubs: int, degree: int) -> Data:
    """Return `hubs` nodes with `degree` in-neighbours each that no other list has."""
    leaf = torch.arange(hubs * degree) + hubs
    return Data(
        edge_index=torch.stack([leaf, torch.arange(hubs).repeat_interleave(degree)]),
        num_nodes=hubs * (degree + 1),
    )


def draw(degree: int, k: int, hubs: int, batch: int = 0) -> Ints:
    """Return the positions [hubs, k] that batch `batch` of a window takes of each list."""
    sampler = NeighborSampler(own_leaves(hubs, degree), [k], sampling="labor")
    key = next(rng.dependent_keys(1, 0, batch, WINDOW))
    sampled = keyed(sampler).sample([torch.arange(hubs)], key)
    edges = sampled.edge[0].numpy()
    assert np.array_equal(edges // degree, np.repeat(np.arange(hubs), k))
    return (edges % degree).reshape(hubs, k)


@pytest.mark.parametrize("batch", range(WINDOW))
@pytest.mark.parametrize(("degree", "k"), CASES)
def test_each_list_alone_is_drawn_uniformly(degree: int, k: int, batch: int) -> None:
    """At every moment between two windows."""
    drawn = draw(degree, k, min(30_000, 2_000_000 // degree), batch)
    ordered = np.sort(drawn, 1)
    assert (np.diff(ordered, axis=1) > 0).all()
    assert single_inclusion(drawn, degree) > THRESHOLD
    assert pairs(drawn, degree) > THRESHOLD
    assert mean_of_features(drawn, degree) > THRESHOLD
    half = len(drawn) // 2
    assert overlap(drawn[:half], drawn[half : 2 * half], degree) > THRESHOLD


def test_every_subset_equally_often() -> None:
    drawn = np.sort(draw(6, 3, 60_000, batch=2), 1)
    _, counts = np.unique(drawn, axis=0, return_counts=True)
    assert len(counts) == 20
    assert chi_square(counts, np.full(20, len(drawn) / 20)) > THRESHOLD


# Variates #########################################################################################


def variates(batch: int, nodes: int = 200_000, window: int = WINDOW, layer: int = 0) -> np.ndarray:
    """Return the variates of the nodes 0, 1, ... in a batch, in [0, 1)."""
    first, following, share = next(rng.dependent_keys(1, 0, batch, window)).variates
    out = np.empty(nodes, np.uint64)
    words = [np.uint64(word) for word in (layer, *first, *following, share)]
    fill_variates(out, np.arange(nodes), 0, nodes, *words)
    return out / 2.0**64


def is_uniform(values: np.ndarray) -> float:
    return float(stats.kstest(values, "uniform").pvalue)


@pytest.mark.parametrize("batch", range(2 * WINDOW))
def test_variates_are_uniform_in_every_batch(batch: int) -> None:
    assert is_uniform(variates(batch)) > THRESHOLD


def test_mixed_variates_are_not_uniform() -> None:
    """The control: means of two uniform numbers are not."""
    half = (variates(0) + variates(WINDOW)) / 2
    assert is_uniform(half) < THRESHOLD


@pytest.mark.parametrize("window", [2, 5, 64, 256])
def test_the_same_share_changes_from_batch_to_batch(window: int) -> None:
    """Also from the last batch of a window to the first of the next."""
    for batch in (0, window // 2, window - 1, window):
        changed = variates(batch, window=window) != variates(batch + 1, window=window)
        count = int(changed.sum())
        assert stats.binomtest(count, len(changed), 1 / window).pvalue > THRESHOLD
        assert stats.binomtest(count, len(changed), 1.3 / window).pvalue < THRESHOLD


def test_each_variate_changes_once_in_a_window() -> None:
    values = np.stack([variates(batch, window=5) for batch in range(11)])
    changes = (values[1:] != values[:-1]).astype(int)
    assert (changes[:5].sum(0) == 1).all()
    assert (changes[5:].sum(0) == 1).all()


def test_variates_are_independent_after_two_windows() -> None:
    def cells(values: np.ndarray) -> Ints:
        return (values * 20).astype(np.int64)

    for batch in range(WINDOW):
        here, there = cells(variates(batch)), cells(variates(batch + 2 * WINDOW))
        assert independence(here, there, 20) > THRESHOLD
    assert independence(cells(variates(1)), cells(variates(2)), 20) < THRESHOLD  # the control


def test_hops_and_neighbours_are_independent() -> None:
    here, there = ((variates(1, layer=hop) * 20).astype(np.int64) for hop in (0, 1))
    assert independence(here, there, 20) > THRESHOLD
    assert independence(here[:-1], here[1:], 20) > THRESHOLD


# Between lists ####################################################################################


def shared_list(pairs_: int, degrees: tuple[int, int], common: int) -> tuple[Data, int]:
    """Return pairs of nodes, of whose lists the first `common` entries are the same."""
    leaves = sum(degrees) - common
    first, second = torch.arange(degrees[0]), torch.arange(common)
    second = torch.cat([second, torch.arange(degrees[0], leaves)])
    offset = (2 * pairs_ + leaves * torch.arange(pairs_)).unsqueeze(1)
    row = torch.cat([(offset + first).flatten(), (offset + second).flatten()])
    hub = torch.arange(pairs_)
    col = torch.cat(
        [hub.repeat_interleave(degrees[0]), (hub + pairs_).repeat_interleave(degrees[1])]
    )
    return Data(edge_index=torch.stack([row, col]), num_nodes=(2 + leaves) * pairs_), leaves


def together(sampling: str) -> tuple[int, int]:
    """Return how often both lists take their common neighbour 0, and of how many pairs."""
    count, degrees, common, k = 40_000, (9, 6), 4, 3
    data, leaves = shared_list(count, degrees, common)
    sampler = NeighborSampler(data, [k], sampling=sampling)
    sampled = keyed(sampler).sample([torch.arange(2 * count)], BatchKey(3, 4))
    row, col = sampled.node[0][sampled.edge_index[0]]
    is_first = (row - 2 * count) % leaves == 0
    taken = torch.zeros(2 * count, dtype=torch.bool)
    taken[col[is_first]] = True
    return int((taken[:count] & taken[count:]).sum()), count


def test_lists_take_common_neighbours_together() -> None:
    """As often as in a simulation of ranks; independent draws do as often as their product."""
    generator = np.random.default_rng(5)
    r = generator.random((400_000, 11))  # 4 in common, 5 and 2 of their own
    one = (r[:, :9] < r[:, :1]).sum(1) < 3
    other = (r[:, [0, 1, 2, 3, 9, 10]] < r[:, :1]).sum(1) < 3
    law = float((one & other).mean())
    assert law > 0.29 > 3 / 9 * 3 / 6 + 0.1
    margin = 5 * (law * (1 - law) * (1 / 400_000 + 1 / 40_000)) ** 0.5
    both, count = together("labor")
    assert abs(both / count - law) < margin
    both, count = together("uniform")
    assert stats.binomtest(both, count, 3 / 9 * 3 / 6).pvalue > THRESHOLD


# Estimates ########################################################################################


def two_layers(layer_dependency: bool) -> float:
    """Return the p-value of a mean over means, where children stand in their own lists."""
    trees, children = 30_000, 4
    child = torch.arange(trees * children) + trees
    leaf = child + trees * children
    parent = torch.arange(trees).repeat_interleave(children)
    edge_index = torch.cat(
        [torch.stack([child, parent]), torch.stack([child, child]), torch.stack([leaf, child])], 1
    )
    data = Data(edge_index=edge_index, num_nodes=trees * (1 + 2 * children))
    sampler = NeighborSampler(
        data, [2, 1], sampling="labor", layer_dependency=layer_dependency, disjoint=False
    )
    sampled = keyed(sampler).sample([torch.arange(trees)], BatchKey(5, 6))
    row, col = sampled.edge_index[0]
    node, first = sampled.node[0], int(sampled.num_sampled_edges[0][0])
    x = (node < trees * (1 + children)).double()  # 1 of children, 0 of leaves
    value = torch.zeros(len(node), dtype=torch.float64)
    value[col[first:]] = x[row[first:]]  # of each child, the mean over its one draw
    estimates = value[row[:first]].view(trees, 2).mean(1)
    return two_sided(float((estimates.mean() - 0.5) / (estimates.std() / trees**0.5)))


def test_means_over_two_layers_are_unbiased_but_with_layer_dependency() -> None:
    assert two_layers(layer_dependency=False) > THRESHOLD
    assert two_layers(layer_dependency=True) < THRESHOLD


# Between batches ##################################################################################


def memberships(window: int, batches: int = 4000) -> tuple[np.ndarray, int, int]:
    degree, k = 20, 6
    data = Data(
        edge_index=torch.stack([torch.arange(1, degree + 1), torch.zeros(degree).long()]),
        num_nodes=degree + 1,
    )
    loader = NeighborLoader(
        data, [k], input_nodes=[0], batch_sampler=[[0]] * batches, seed=5, sampling="labor",
        batch_dependency=window,
    )  # fmt: skip
    member = np.zeros((batches, degree), bool)
    for row, batch in zip(member, loader, strict=True):
        row[batch.e_id.numpy()] = True
    return member, degree, k


def test_batches_are_independent_unless_they_depend() -> None:
    member, degree, k = memberships(window=1)
    assert lag_one(member, k / degree) > THRESHOLD
    assert single_inclusion(np.nonzero(member)[1].reshape(-1, k), degree) > THRESHOLD
    member, degree, k = memberships(window=8)
    assert lag_one(member, k / degree) < THRESHOLD
    # Every sixteenth batch is of another window but one.
    assert lag_one(member[::16], k / degree) > THRESHOLD
    assert single_inclusion(np.nonzero(member[::16])[1].reshape(-1, k), degree) > THRESHOLD


def test_seeds_of_a_batch_are_not_independent() -> None:
    """The control of the laws above: where lists are the same, their picks are, too."""
    hubs, degree, k = 2000, 20, 6
    leaf: Tensor = torch.arange(degree).repeat(hubs) + hubs
    data = Data(
        edge_index=torch.stack([leaf, torch.arange(hubs).repeat_interleave(degree)]),
        num_nodes=hubs + degree,
    )
    sampler = NeighborSampler(data, [k], sampling="labor", seed=0)
    sampled = keyed(sampler).sample([torch.arange(hubs)], BatchKey(1, 1))
    drawn = (sampled.edge[0] % degree).numpy().reshape(hubs, k)
    assert (drawn == drawn[0]).all()
    assert single_inclusion(drawn, degree) < THRESHOLD
    assert overlap(drawn[::2], drawn[1::2], degree) < THRESHOLD
