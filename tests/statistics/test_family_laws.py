"""The draws of the family's methods follow their laws, and wrong laws are noticed."""

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from laws import THRESHOLD, chi_square, pairs, single_inclusion, star, two_sided
from scipy import stats
from torch_geometric.data import Data, HeteroData

from pyg_direct import (
    GraphSAINTEdgeSampler,
    GraphSAINTNodeSampler,
    GraphSAINTRandomWalkSampler,
    HGTSampler,
    RandomWalker,
    ShaDowKHopSampler,
)
from pyg_direct.ops.host import keys as rng


def key(number: int) -> Any:
    return rng.derive(11, 0, number)


# Directed, with parallel edges 0->1, a self-loop at 3, and edges back for some only.
WALK_EDGES = torch.tensor(
    [
        [0, 0, 0, 0, 1, 1, 1, 2, 2, 3, 3, 3, 4, 4, 5, 5],
        [1, 1, 2, 3, 0, 2, 4, 0, 5, 3, 0, 5, 1, 5, 2, 4],
    ]
)


def bias(edges: set[tuple[int, int]], t: int, x: int, p: float, q: float) -> float:
    """Node2vec's weight, as its authors' program has it: an edge from x back to t."""
    return 1 / p if x == t else 1.0 if (x, t) in edges else 1 / q


def transition_p(walks: np.ndarray, p: float, q: float, flipped: bool = False) -> float:
    """The third node of each walk, given the first two: chi-square summed over all such pairs."""
    edges = set(map(tuple, WALK_EDGES.t().tolist()))
    back = {(v, u) for u, v in edges} if flipped else edges
    statistic, freedom = 0.0, 0
    for (t, v), count in Counter(map(tuple, walks[:, :2].tolist())).items():
        neighbours = [x for u, x in WALK_EDGES.t().tolist() if u == v]
        weight: Counter[int] = Counter()
        for x in neighbours:
            weight[x] += bias(back, t, x, p, q)
        seen = Counter(walks[(walks[:, 0] == t) & (walks[:, 1] == v), 2].tolist())
        assert set(seen) <= set(weight)
        for x, w in weight.items():
            expected = count * w / sum(weight.values())
            statistic += (seen[x] - expected) ** 2 / expected
        freedom += len(weight) - 1
    return float(stats.chi2.sf(statistic, freedom))


def walks_of(p: float, q: float, count: int = 60_000) -> np.ndarray:
    start = torch.arange(6).repeat(count // 6)
    return (
        RandomWalker(Data(edge_index=WALK_EDGES, num_nodes=6)).walk(start, 4, p, q, seed=5).numpy()
    )


@pytest.mark.parametrize("p", [0.25, 1.0, 4.0])
@pytest.mark.parametrize("q", [0.25, 1.0, 4.0])
def test_node2vec_walks_follow_the_laws_of_p_and_q(p: float, q: float) -> None:
    walks = walks_of(p, q)
    assert transition_p(walks[:, :3], p, q) > THRESHOLD
    assert transition_p(walks[:, 2:], p, q) > THRESHOLD, "later steps"


@pytest.mark.parametrize(("p", "q"), [(300.0, 300.0), (0.002, 300.0), (300.0, 0.002)])
def test_node2vec_where_draws_are_refused(p: float, q: float) -> None:
    """Past the last trial the weights are added up: the law stays what it was."""
    assert transition_p(walks_of(p, q)[:, :3], p, q) > THRESHOLD


def test_wrong_node2vec_transitions_are_noticed() -> None:
    walks = walks_of(0.25, 4.0)[:, :3]
    assert transition_p(walks, 0.27, 4.0) < THRESHOLD
    assert transition_p(walks, 0.25, 3.7) < THRESHOLD
    assert transition_p(walks, 0.25, 4.0, flipped=True) < THRESHOLD, "edges the other way round"
    assert transition_p(walks_of(1.0, 1.0)[:, :3], 1.0, 1.1) < THRESHOLD


def test_metapath_steps_are_uniform() -> None:
    data = HeteroData()
    data["a"].num_nodes, data["b"].num_nodes = 1, 5
    data["a", "to", "b"].edge_index = torch.tensor([[0] * 6, [0, 1, 2, 3, 4, 4]])
    walks = RandomWalker(data).walk_along(
        torch.zeros(30_000, dtype=int), [("a", "to", "b")], seed=1
    )
    observed = np.bincount(walks[:, 1], minlength=5)
    assert chi_square(observed, 30_000 * np.array([1, 1, 1, 1, 2]) / 6) > THRESHOLD
    assert chi_square(observed, np.full(5, 6_000.0)) < THRESHOLD


def saint_graph() -> Data:
    generator = torch.Generator().manual_seed(2)
    edge_index = torch.randint(12, (2, 50), generator=generator) ** 2 // 12
    return Data(edge_index=edge_index, num_nodes=12)


def drawn_counts(loader: Any, num_nodes: int, batches: int = 3_000) -> np.ndarray:
    nodes = torch.cat([loader._draw_nodes(key(i)) for i in range(batches)])
    return np.bincount(nodes, minlength=num_nodes)


def edge_weights(data: Data, law: str) -> np.ndarray:
    row, col = data.edge_index.numpy()
    out_degree, in_degree = (np.bincount(end, minlength=12) for end in (row, col))
    if law == "pyg":
        return (in_degree[row] + out_degree[col]).astype(float)
    return 1 / out_degree[row] + 1 / in_degree[col]


def test_saint_nodes_are_drawn_by_their_out_degree() -> None:
    data = saint_graph()
    counts = drawn_counts(GraphSAINTNodeSampler(data, 8), 12)
    degree = np.bincount(data.edge_index[0], minlength=12)
    assert chi_square(counts, degree / degree.sum() * counts.sum()) > THRESHOLD
    incoming = np.bincount(data.edge_index[1], minlength=12)
    assert chi_square(counts, incoming / incoming.sum() * counts.sum() + 1e-9) < THRESHOLD


@pytest.mark.parametrize("law", ["pyg", "paper"])
def test_saint_edges_are_drawn_by_their_law(law: Any) -> None:
    """Both ends come from one edge: so pairs of ends are counted."""
    data = saint_graph()
    loader = GraphSAINTEdgeSampler(data, 8, edge_law=law)
    ends = torch.stack([loader._draw_nodes(key(i)).view(2, -1) for i in range(4_000)], 1)
    pairs_drawn = np.bincount((ends[0] * 12 + ends[1]).flatten(), minlength=144)
    place = (data.edge_index[0] * 12 + data.edge_index[1]).numpy()

    def expected(which: str) -> np.ndarray:
        weight = np.bincount(place, edge_weights(data, which), minlength=144)
        return weight / weight.sum() * pairs_drawn.sum()

    used = np.unique(place)
    assert pairs_drawn[used].sum() == pairs_drawn.sum()
    assert chi_square(pairs_drawn[used], expected(law)[used]) > THRESHOLD
    other = "paper" if law == "pyg" else "pyg"
    assert chi_square(pairs_drawn[used], expected(other)[used]) < THRESHOLD


def test_saint_walks_start_uniformly_and_follow_the_transition_matrix() -> None:
    """Starts are uniform, and the nodes after each step follow the transition matrix."""
    data = saint_graph()
    loader = GraphSAINTRandomWalkSampler(data, 8, walk_length=2)
    walks = torch.cat([loader._draw_nodes(key(i)).view(8, 3) for i in range(4_000)]).numpy()
    step = np.zeros((12, 12))
    np.add.at(step, tuple(data.edge_index.numpy()), 1)
    stuck = step.sum(1) == 0
    step[stuck, stuck.nonzero()] = 1
    step /= step.sum(1, keepdims=True)
    law = np.full(12, 1 / 12)
    for column in walks.T:
        counts = np.bincount(column, minlength=12)
        used = law > 0
        assert counts[~used].sum() == 0
        assert chi_square(counts[used], law[used] * len(walks)) > THRESHOLD
        law = law @ step
    assert (
        chi_square(np.bincount(walks[:, 2], minlength=12), np.full(12, len(walks) / 12)) < THRESHOLD
    )


def inclusion(data: Data, draws: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the probabilities that nodes and edges are in a subgraph of the node sampler."""
    row, col = data.edge_index.numpy()
    p = np.bincount(row, minlength=12) / len(row)
    node = 1 - (1 - p) ** draws
    both = np.where(row == col, p[row], p[row] + p[col])
    edge = np.where(
        row == col,
        node[row],
        1 - (1 - p[row]) ** draws - (1 - p[col]) ** draws + (1 - both) ** draws,
    )
    return node, edge


@pytest.mark.slow
def test_saint_coefficients_estimate_inclusion_probabilities() -> None:
    """node_norm N is 1 / P(node), edge_norm is P(source) / P(edge), but for counting."""
    data = saint_graph()
    loader = GraphSAINTNodeSampler(data, 6, num_steps=50, sample_coverage=3000, log=False, seed=1)
    node, edge = inclusion(data, 6)
    steps_at_least = 12 * 3000 / 6
    met = node > 0
    estimate = 1 / (12 * loader.node_norm.numpy()[met])
    z = (estimate - node[met]) / np.sqrt(node[met] * (1 - node[met]) / steps_at_least)
    assert two_sided(np.abs(z).max()) * met.sum() > THRESHOLD
    wrong = node[met] * 1.2
    z = (estimate - wrong) / np.sqrt(node[met] * (1 - node[met]) / steps_at_least)
    assert two_sided(np.abs(z).max()) * met.sum() < THRESHOLD
    given = edge / node[data.edge_index[0]]
    often = edge > 0.02
    assert loader.edge_norm.numpy()[often] == pytest.approx(1 / given[often], rel=0.25)


@pytest.mark.slow
def test_saint_normalisation_is_unbiased() -> None:
    """The weighted sum over a subgraph has the mean over the graph as its expectation."""
    data = saint_graph()
    loader = GraphSAINTNodeSampler(data, 6, num_steps=2000, sample_coverage=2000, log=False, seed=1)
    met = torch.from_numpy(inclusion(data, 6)[0] > 0)
    value = torch.arange(12.0) * met
    data.value = value
    sums, plain = [], []
    for node, _, _ in (loader._subgraph(key(i)) for i in range(3_000)):
        sums.append(float((value[node] * loader.node_norm[node]).sum()))
        plain.append(float(value[node].mean()))
    mean = float(value.sum()) / 12
    # Twice the variance: the coefficients were counted over as many subgraphs again.
    error = np.std(sums) / np.sqrt(len(sums)) * np.sqrt(2)
    assert two_sided((np.mean(sums) - mean) / error) > THRESHOLD
    assert two_sided((np.mean(plain) - mean) / (np.std(plain) / np.sqrt(len(plain)))) < THRESHOLD


def successive(weight: dict[int, float], k: int) -> dict[frozenset[int], float]:
    """Return the law of k successive draws, each in proportion to the weights left."""
    law: Counter[frozenset[int]] = Counter()
    for order in itertools.permutations(weight, k):
        left, chance = sum(weight.values()), 1.0
        for item in order:
            chance *= weight[item] / left
            left -= weight[item]
        law[frozenset(order)] += chance
    return law


def hgt_graph() -> HeteroData:
    """Papers 0 and 1 are seeds; authors 0 to 4 wrote them, some by two edges; not so author 5."""
    data = HeteroData()
    data["paper"].num_nodes, data["author"].num_nodes = 3, 6
    data["author", "wrote", "paper"].edge_index = torch.tensor(
        [[0, 1, 1, 2, 2, 3, 4, 5], [0, 0, 0, 0, 1, 1, 1, 2]]
    )
    return data


BUDGET = {0: 1 / 4, 1: 2 / 4, 2: 1 / 4 + 1 / 3, 3: 1 / 3, 4: 1 / 3}


def hgt_sets(sampler: HGTSampler, draws: int) -> Counter[frozenset[int]]:
    seeds = {"paper": torch.tensor([0, 1])}
    out = (sampler._sample(key(i), seeds) for i in range(draws))
    return Counter(frozenset(o.node["author"].tolist()) for o in out)


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 2, 4])
def test_hgt_draws_follow_squared_budgets(k: int) -> None:
    """Budgets are 1 / degree for each edge, and draws go by their squares."""
    sampler = HGTSampler(hgt_graph(), {"paper": [0], "author": [k]})
    seen = hgt_sets(sampler, 8_000)

    def p_value(power: int) -> float:
        law = successive({a: b**power for a, b in BUDGET.items()}, k)
        assert set(seen) <= set(law)
        return chi_square([seen[s] for s in law], [8_000 * chance for chance in law.values()])

    assert p_value(2) > THRESHOLD
    assert p_value(1) < THRESHOLD, "budgets that are not squared"


@pytest.mark.slow
def test_hgt_budgets_grow_from_hop_to_hop() -> None:
    """All but one author in hop 1 cannot be; the second hop draws from what both hops gave."""
    data = HeteroData()
    data["n"].num_nodes = 7
    # 0 is the seed, 1 and 2 its neighbours; all of 3, 4 and 5 lead to 1 or 2.
    data["n", "to", "n"].edge_index = torch.tensor(
        [[1, 2, 3, 4, 5, 4, 5, 5], [0, 0, 1, 1, 1, 2, 2, 2]]
    )
    sampler = HGTSampler(data, [2, 1])
    nodes = [
        sampler._sample(key(i), {"n": torch.tensor([0])}).node["n"].tolist() for i in range(9_000)
    ]
    assert all(sorted(found[:3]) == [0, 1, 2] for found in nodes)
    last = np.bincount([found[3] for found in nodes], minlength=6)[3:]
    law = np.array([1 / 3, 1 / 3 + 1 / 3, 1 / 3 + 2 / 3]) ** 2
    assert chi_square(last, law / law.sum() * 9_000) > THRESHOLD
    assert chi_square(last, np.array([1, 2, 3]) / 6 * 9_000) < THRESHOLD


def test_shadow_neighbours_are_drawn_as_uniform_subsets() -> None:
    """Each subset of a root's neighbours is equally likely."""
    data, roots = star(1_000, 9), torch.arange(9, 1_009)
    data.id = torch.arange(data.num_nodes)
    loader = ShaDowKHopSampler(data, 1, 3, roots, batch_size=1_000, seed=0)
    picks = np.concatenate([next(iter(loader)).id.view(-1, 4)[:, :3].numpy() for _ in range(8)])
    assert picks.shape == (8_000, 3)
    assert single_inclusion(picks, 9) > THRESHOLD
    assert pairs(picks, 9) > THRESHOLD
    assert (
        pairs(np.sort(np.stack([picks[:, 0], picks[:, 0] * 2 % 9, picks[:, 2]], 1), 1), 9)
        < THRESHOLD
    )
