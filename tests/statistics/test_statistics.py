"""The draws follow the exact law. Fixed seeds; a false alarm of the whole file has p < 1e-3.

`test_laws_catch.py` shows that each of these tests can fail.
"""

import random

import numpy as np
import pytest
import torch
from graphs import example_graph
from laws import (
    THRESHOLD,
    chi_square,
    independence,
    lag_one,
    mean_of_features,
    overlap,
    pairs,
    same_counts,
    same_distribution,
    single_inclusion,
    single_inclusion_with_replacement,
    star,
    two_sided,
)
from reference import in_edges, sample
from scipy import stats
from torch_geometric.data import Data

from pyg_direct import NeighborLoader

# (degree, fan-out): both sides of a warp (32) and of the change to hashing (64), and the extremes.
CASES = [(2, 1), (7, 3), (7, 6), (50, 15), (50, 32), (60, 33), (100, 64), (130, 65), (200, 80)]
WITH_REPLACEMENT = [(2, 1), (7, 3), (7, 20), (50, 33), (10, 70), (200, 80)]


def draw(degree: int, k: int, draws: int, replace: bool = False, seed: int = 1) -> np.ndarray:
    """Return positions [draws, k] in lists of length `degree`, each row for a node of its own."""
    data = star(draws, degree)
    nodes = torch.arange(degree, degree + draws)
    loader = NeighborLoader(
        data, [k], input_nodes=nodes, batch_size=draws, replace=replace, seed=seed
    )
    (batch,) = loader
    edges = batch.e_id.numpy()
    assert np.array_equal(edges // degree, np.repeat(np.arange(draws), k))  # each from its own list
    assert np.array_equal(batch.edge_index[1].numpy(), np.repeat(np.arange(draws), k))
    return (edges % degree).reshape(draws, k)


def draws_for(degree: int, k: int) -> int:
    """Enough draws to see a relative bias of one to three per cent of any one entry."""
    return min(150_000, 5_000_000 // degree)


@pytest.fixture(scope="module", params=CASES, ids=str)
def picks(request: pytest.FixtureRequest) -> tuple[np.ndarray, int]:
    degree, k = request.param
    return draw(degree, k, draws_for(degree, k)), degree


# Without replacement ##############################################################################


def test_distinct_and_in_range(picks: tuple[np.ndarray, int]) -> None:
    drawn, degree = picks
    ordered = np.sort(drawn, 1)
    assert (np.diff(ordered, axis=1) > 0).all()
    assert ordered.min() == 0
    assert ordered.max() == degree - 1


def test_each_neighbour_is_drawn_equally_often(picks: tuple[np.ndarray, int]) -> None:
    assert single_inclusion(*picks) > THRESHOLD


def test_each_pair_of_neighbours_is_drawn_equally_often(picks: tuple[np.ndarray, int]) -> None:
    assert pairs(*picks) > THRESHOLD


def test_mean_and_variance(picks: tuple[np.ndarray, int]) -> None:
    assert mean_of_features(*picks) > THRESHOLD


def test_between_seeds_of_one_batch(picks: tuple[np.ndarray, int]) -> None:
    drawn, degree = picks
    half = len(drawn) // 2
    assert overlap(drawn[0 : 2 * half : 2], drawn[1 : 2 * half : 2], degree) > THRESHOLD
    assert overlap(drawn[:half], drawn[half : 2 * half], degree) > THRESHOLD


@pytest.mark.parametrize(("degree", "k"), [(5, 2), (6, 3), (7, 5)])
def test_every_subset_equally_often(degree: int, k: int) -> None:
    """Not only its margins: the whole law, where it is small enough to count."""
    drawn = np.sort(draw(degree, k, 60_000, seed=2), 1)
    subsets, counts = np.unique(drawn, axis=0, return_counts=True)
    number = int(stats.binom(degree, 0.5).pmf(k) * 2**degree + 0.5)
    assert len(subsets) == number
    assert chi_square(counts, np.full(number, len(drawn) / number)) > THRESHOLD


# With replacement #################################################################################


@pytest.mark.pyg("replace")
@pytest.mark.parametrize(("degree", "k"), WITH_REPLACEMENT)
def test_draws_with_replacement_are_uniform_in_every_slot(degree: int, k: int) -> None:
    drawn = draw(degree, k, 20_000, replace=True)
    assert single_inclusion_with_replacement(drawn, degree) > THRESHOLD
    for j in {0, k // 2, k - 1}:  # every slot alone
        assert single_inclusion_with_replacement(drawn[:, j : j + 1], degree) > THRESHOLD


@pytest.mark.pyg("replace")
def test_slots_with_replacement_are_independent() -> None:
    """Within one block of four random words, across two, and far apart."""
    drawn = draw(7, 70, 20_000, replace=True)
    for i, j in ((0, 1), (0, 2), (0, 3), (3, 4), (0, 4), (1, 65)):
        assert independence(drawn[:, i], drawn[:, j], 7) > THRESHOLD
    assert independence(drawn[:-1, 0], drawn[1:, 0], 7) > THRESHOLD  # two seeds, the same slot


# Between hops, batches, epochs and seeds ##########################################################


@pytest.mark.parametrize(("degree", "k"), [(7, 3), (100, 70)])
def test_draws_of_two_hops_are_independent(degree: int, k: int) -> None:
    """A node whose in-edges all come from one middle node, which has as many: two equal draws."""
    trees = 20_000
    seed = torch.arange(trees).repeat_interleave(degree)
    leaf = torch.arange(degree).repeat(trees) + 2 * trees
    edge_index = torch.cat(
        [torch.stack([seed + trees, seed]), torch.stack([leaf, seed + trees])], 1
    )
    data = Data(edge_index=edge_index, num_nodes=2 * trees + degree)
    loader = NeighborLoader(data, [k, k], input_nodes=torch.arange(trees), batch_size=trees, seed=3)
    edges = loader([*range(trees)]).e_id.numpy().reshape(2, trees, k) % degree
    for hop in edges:
        assert single_inclusion(hop, degree) > THRESHOLD
    assert overlap(edges[0], edges[1], degree) > THRESHOLD


def test_mean_over_two_layers_is_unbiased() -> None:
    """Six children with five grandchildren each: the mean over samples of means over samples."""
    trees, hops = 20_000, [3, 2]
    child = torch.arange(6 * trees)
    grandchild = torch.arange(30 * trees)
    edge_index = torch.cat(
        [
            torch.stack([child + trees, child // 6]),
            torch.stack([grandchild + 7 * trees, grandchild // 5 + trees]),
        ],
        1,
    )
    x = torch.from_numpy(np.random.default_rng(1).normal(size=30))
    data = Data(edge_index=edge_index, num_nodes=37 * trees)
    loader = NeighborLoader(data, hops, input_nodes=torch.arange(trees), batch_size=trees, seed=4)
    (batch,) = loader
    leaves = batch.n_id[batch.edge_index[0, batch.num_sampled_edges[0] :]] - 7 * trees
    estimates = x[leaves % 30].view(trees, 6).mean(1)
    z = (estimates.mean() - x.mean()) / (estimates.std() / trees**0.5)
    assert two_sided(float(z)) > THRESHOLD


def repeated(k: int, degree: int, batches: int, **arguments: object) -> np.ndarray:
    """Return the picks [batches, k] of one node that is the only seed of every batch."""
    loader = NeighborLoader(
        star(1, degree), [k], input_nodes=[degree], batch_sampler=[[0]] * batches, **arguments
    )
    return np.stack([batch.e_id.numpy() for batch in loader])


@pytest.mark.parametrize("arguments", [{"seed": 5}, {}], ids=["seed", "torch.manual_seed"])
def test_draws_of_successive_batches_are_independent(arguments: dict[str, int]) -> None:
    degree, k = 20, 6
    drawn = repeated(k, degree, 4000, **arguments)
    assert single_inclusion(drawn, degree) > THRESHOLD
    member = np.zeros((len(drawn), degree), bool)
    member[np.arange(len(drawn))[:, None], drawn] = True
    assert lag_one(member, k / degree) > THRESHOLD
    assert overlap(drawn[:-1:2], drawn[1::2], degree) > THRESHOLD


def test_between_epochs_and_seeds() -> None:
    degree, k, draws = 20, 6, 10_000
    data, nodes = star(draws, degree), torch.arange(degree, degree + draws)

    def epochs(seed: int) -> list[np.ndarray]:
        loader = NeighborLoader(data, [k], input_nodes=nodes, batch_size=draws, seed=seed)
        return [next(iter(loader)).e_id.numpy().reshape(draws, k) % degree for _ in range(2)]

    one, two, other = *epochs(0), epochs(1)[0]
    for drawn in (one, two, other):
        assert single_inclusion(drawn, degree) > THRESHOLD
    assert overlap(one, two, degree) > THRESHOLD
    assert overlap(one, other, degree) > THRESHOLD


# Whole batches ####################################################################################


def test_every_seed_and_edge_is_treated_fairly() -> None:
    """Per edge against theory, min(1, k/d), on a graph of mixed degrees with all nodes as seeds."""
    generator = np.random.default_rng(7)
    num_nodes, k, batches = 40, 3, 3000
    degrees = generator.integers(0, 15, num_nodes)
    col = np.repeat(np.arange(num_nodes), degrees)
    row = generator.integers(0, num_nodes, len(col))
    order = generator.permutation(len(col))  # edges in no order: the permutation is in play, too
    row, col = row[order], col[order]
    data = Data(edge_index=torch.from_numpy(np.stack([row, col])), num_nodes=num_nodes)
    everyone = list(range(num_nodes))
    loader = NeighborLoader(data, [k], batch_sampler=[everyone] * batches, seed=6)
    counts = np.zeros(len(col))
    for batch in loader:
        counts += np.bincount(batch.e_id.numpy(), minlength=len(col))
    p = np.minimum(1, k / degrees[col])
    assert (counts[p == 1] == batches).all()
    free = p < 1
    z = (counts[free] - batches * p[free]) / np.sqrt(batches * p[free] * (1 - p[free]))
    assert two_sided(float(np.abs(z).max())) * free.sum() > THRESHOLD


@pytest.mark.slow
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("disjoint", [False, True])
def test_two_hops_follow_the_law_of_the_reference(replace: bool, disjoint: bool) -> None:
    """Sizes of hops and inclusion of nodes, against a sampler that draws with `random.sample`."""
    data = example_graph()
    seeds, hops, batches = [1, 7, 4, 0], [2, 3], 1500
    generator = random.Random(8)
    theirs = [
        sample(data.edge_index, 12, seeds, hops, disjoint, generator, replace)
        for _ in range(batches)
    ]
    loader = NeighborLoader(
        data, hops, input_nodes=seeds, batch_sampler=[[0, 1, 2, 3]] * batches,
        replace=replace, disjoint=disjoint, seed=9,
    )  # fmt: skip
    ours = list(loader)
    for hop in (1, 2):
        one = [batch.num_sampled_nodes[hop] for batch in ours]
        assert same_distribution(one, [e.num_sampled_nodes[hop] for e in theirs]) > THRESHOLD
        one = [batch.num_sampled_edges[hop - 1] for batch in ours]
        assert same_distribution(one, [e.num_sampled_edges[hop - 1] for e in theirs]) > THRESHOLD
    for ids, one, other in (
        (12, [b.n_id for b in ours], [e.n_id for e in theirs]),
        (20, [b.e_id for b in ours], [e.e_id for e in theirs]),
    ):
        mine = np.bincount(np.concatenate(one), minlength=ids)
        assert same_counts(mine, np.bincount(np.concatenate(other), minlength=ids)) > THRESHOLD
    assert max(map(len, in_edges(data.edge_index, 12))) > max(hops)  # there is something to draw
