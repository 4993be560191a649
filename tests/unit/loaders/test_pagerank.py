"""`PageRankLoader`: the PageRank of a linear system, and batches that hold what they say."""

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_dense_batch, to_undirected

import pyg_direct
from pyg_direct.kernels.push import FREE, push_contexts
from pyg_direct.kernels.relabel import HASH_MULTIPLIER
from pyg_direct.ops.host.induced import SortedLists
from pyg_direct.ops.host.walks import _most_reached as most_reached

EXACT = 1e-12  # a tolerance at which nothing but rounding is left


def graph(edges: int, seed: int, num_nodes: int = 25) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        edge_index=torch.randint(num_nodes, (2, edges), generator=generator),
        num_nodes=num_nodes,
        x=torch.randn(num_nodes, 3, generator=generator),
        y=torch.arange(num_nodes),
        edge_attr=torch.arange(edges),
        name="all",
    )


def pagerank(data: Data, seed: int, alpha: float) -> torch.Tensor:
    """Solve pi = alpha e + (1 - alpha) pi P, where P leads back from nodes without in-edges."""
    num_nodes = data.num_nodes
    steps = torch.zeros(num_nodes, num_nodes, dtype=torch.float64)
    ones = torch.ones(data.num_edges, dtype=torch.float64)
    steps.index_put_((data.edge_index[1], data.edge_index[0]), ones, accumulate=True)
    steps[steps.sum(1) == 0, seed] = 1
    steps /= steps.sum(1, keepdim=True)
    start = torch.zeros(num_nodes, dtype=torch.float64)
    start[seed] = alpha
    return torch.linalg.solve(torch.eye(num_nodes) - (1 - alpha) * steps.T, start)


def scores_of(batch, i: int, num_nodes: int) -> torch.Tensor:
    """Return what the batch says of the PageRank of all nodes, for its i-th seed."""
    rows = batch.context[i][batch.context_mask[i]]
    out = torch.zeros(num_nodes, dtype=torch.float64)
    out[batch.n_id[rows]] = batch.pagerank[rows].double()
    return out


@given(
    st.integers(0, 80), st.integers(0, 1000), st.sampled_from([0.05, 0.15, 0.5, 0.9]),
    st.integers(1, 30),
)  # fmt: skip
def test_contexts_are_those_of_a_linear_system(edges: int, seed: int, alpha: float, k: int) -> None:
    data = graph(edges, seed)
    loader = pyg_direct.PageRankLoader(data, k, alpha=alpha, tolerance=EXACT, batch_size=25)
    (batch,) = loader
    for node in range(25):
        exact = pagerank(data, node, alpha)
        ids = batch.n_id[batch.context[node][batch.context_mask[node]]]
        assert ids[0] == node
        assert len(ids) == min(k, int((exact > 1e-12).sum()))  # the solution is rounded
        found = scores_of(batch, node, 25)
        torch.testing.assert_close(found[ids], exact[ids], atol=1e-6, rtol=1e-5)
        others = exact.clone()
        others[node] = -1
        best = others.topk(len(ids) - 1).values  # equal values may stand for each other
        torch.testing.assert_close(exact[ids[1:]], best, atol=1e-9, rtol=1e-9)


@given(st.integers(1, 80), st.integers(0, 1000), st.sampled_from([1.0, 0.1, 0.01]))
def test_scores_are_lower_bounds_as_good_as_the_tolerance(
    edges: int, seed: int, tolerance: float
) -> None:
    data = graph(edges, seed)
    data.edge_index, data.edge_attr = to_undirected(data.edge_index), None
    (batch,) = pyg_direct.PageRankLoader(data, 25, tolerance=tolerance, batch_size=25)
    degree = torch.bincount(data.edge_index[1], minlength=25).clamp(min=1)
    for node in range(25):
        missing = pagerank(data, node, 0.15) - scores_of(batch, node, 25)
        assert bool((missing >= -1e-6).all())
        assert bool((missing <= tolerance * degree + 1e-6).all())


def pushed(data: Data, seed: int, alpha: float, tolerance: float) -> list[float]:
    """Push from the nodes whose residual is above their limit, the one that waits longest first."""
    edges = sorted(data.edge_index.t().tolist())
    sources = [[u for u, w in edges if w == v] for v in range(data.num_nodes)]
    settled, residual = [0.0] * data.num_nodes, [0.0] * data.num_nodes
    residual[seed], queue = 1.0, [seed]
    while queue:
        u = queue.pop(0)
        moved, residual[u] = residual[u], 0.0
        settled[u] += moved if u == seed and not sources[u] else alpha * moved
        for w in sources[u] or [seed] * (u != seed):
            residual[w] += (1.0 - alpha) * moved / max(1, len(sources[u]))
            if residual[w] > tolerance * max(1, len(sources[w])) and w not in queue:
                queue.append(w)
    return [s + alpha * r for s, r in zip(settled, residual, strict=True)]


@given(
    st.integers(0, 40), st.integers(0, 1000), st.sampled_from([0.15, 0.5]),
    st.sampled_from([0.2, 0.05, 0.01]),
)  # fmt: skip
def test_nodes_above_their_limit_alone_are_pushed_from(
    edges: int, seed: int, alpha: float, tolerance: float
) -> None:
    data = graph(edges, seed, num_nodes=12)
    (batch,) = pyg_direct.PageRankLoader(data, 12, alpha=alpha, tolerance=tolerance, batch_size=12)
    for node in range(12):
        expected = torch.tensor(pushed(data, node, alpha, tolerance), dtype=torch.float64)
        torch.testing.assert_close(scores_of(batch, node, 12), expected, atol=1e-6, rtol=1e-6)


def test_a_batch_by_hand() -> None:
    """1 -> 0 <- 2, 3 -> 2: of the seed 0, half settles there, 0.25 goes to 1 and to 2, ..."""
    data = Data(
        edge_index=torch.tensor([[1, 2, 3], [0, 0, 2]]), num_nodes=4, y=torch.arange(4),
        x=torch.arange(4.0)[:, None], edge_attr=torch.tensor([7, 8, 9]),
    )  # fmt: skip
    seeds = torch.tensor([2, 0])
    loader = pyg_direct.PageRankLoader(data, 3, seeds, alpha=0.5, tolerance=0.4, batch_size=2)
    batch = next(iter(loader))
    assert batch.num_graphs == 2
    assert batch.n_id.tolist() == [2, 3, 0, 1, 2]
    assert batch.batch.tolist() == [0, 0, 1, 1, 1]
    assert batch.root_n_id.tolist() == [0, 2]
    assert batch.context.tolist() == [[0, 1, 0], [2, 3, 4]]
    assert batch.context_mask.tolist() == [[True, True, False], [True, True, True]]
    # Of 2: 0.5 settles, 0.5 goes to 3, of which 0.25 settles and 0.25 comes back, below the limit.
    assert batch.pagerank.tolist() == [0.625, 0.25, 0.5, 0.125, 0.125]
    assert batch.edge_index.tolist() == [[1, 3, 4], [0, 2, 2]]
    assert batch.edge_attr.tolist() == [9, 7, 8]
    assert batch.y.tolist() == [2, 0]


def test_the_example_of_the_kernel() -> None:
    indptr, indices = np.array([0, 2, 2, 2]), np.array([1, 2])
    number, context, score = np.zeros(1, int), np.zeros((1, 3), int), np.zeros((1, 3))
    keys = np.full(16, FREE)
    push_contexts(
        indptr, indices, np.array([0]), 0.5, 0.4, keys, np.zeros(16, int), 60,
        np.zeros(3, int), np.zeros(3, int), np.zeros((3, 4)), number, context, score,
    )  # fmt: skip
    assert (number.tolist(), context.tolist()) == ([3], [[0, 1, 2]])
    assert score.tolist() == [[0.5, 0.125, 0.125]]
    assert (keys == FREE).all()


def test_a_hash_table_goes_on_at_its_begin_and_is_left_empty() -> None:
    """A seed and its two neighbours belong into the last of 16 slots; behind it are free ones."""
    last = [v for v in range(500) if v * int(HASH_MULTIPLIER) % 2**64 >> 60 == 15][:3]
    indptr = np.zeros(501, int)
    indptr[last[0] + 1 :] = 2
    number, context, score = np.zeros(2, int), np.zeros((2, 3), int), np.zeros((2, 3))
    keys = np.full(64, FREE)
    push_contexts(
        indptr, np.array(last[1:]), np.array(last[:2]), 0.5, 0.4, keys[:16], np.zeros(16, int), 60,
        np.zeros(3, int), np.zeros(3, int), np.zeros((3, 4)), number, context, score,
    )  # fmt: skip
    assert number.tolist() == [3, 1]
    assert context[0].tolist() == last
    assert context[1, 0] == last[1]
    assert (keys == FREE).all()


@given(st.integers(0, 90), st.integers(0, 1000), st.integers(1, 12))
def test_batches_hold_the_graph_between_the_nodes(edges: int, seed: int, k: int) -> None:
    data = graph(edges, seed)
    seeds = torch.tensor([3, 3, 24, 0, 11, 8])  # also one twice in a batch
    for batch in pyg_direct.PageRankLoader(data, k, seeds, batch_size=4):
        assert torch.equal(batch.x, data.x[batch.n_id])
        assert torch.equal(batch.y, batch.n_id[batch.root_n_id])
        assert torch.equal(batch.n_id[batch.edge_index], data.edge_index[:, batch.edge_attr])
        assert int(batch.ptr.diff().max()) <= k
        for i, first, last in zip(
            range(batch.num_graphs), batch.ptr[:-1].tolist(), batch.ptr[1:].tolist(), strict=True
        ):
            ids = batch.n_id[first:last]
            inside = torch.isin(data.edge_index, ids).all(0).nonzero().view(-1)
            of_graph = batch.batch[batch.edge_index[0]] == i
            assert batch.edge_attr[of_graph].sort().values.tolist() == inside.tolist()
            rows = batch.context[i][batch.context_mask[i]]
            assert sorted(rows.tolist()) == list(range(first, last))
            values = batch.pagerank[rows[1:]]
            assert bool((values[1:] <= values[:-1]).all())
        dense, mask = to_dense_batch(batch.x, batch.batch, max_num_nodes=k)
        assert mask.sum(1).tolist() == batch.context_mask.sum(1).tolist()
        assert batch.x[batch.context].shape == dense.shape


def test_an_n_id_of_the_user_stays() -> None:
    data = graph(60, 0)
    data.n_id = 100 + torch.arange(25)
    batch = next(iter(pyg_direct.PageRankLoader(data, 5, batch_size=25)))
    assert torch.equal(batch.n_id - 100, data.x.eq(batch.x[:, None]).all(2).int().argmax(1))


def test_contexts_depend_on_the_graph_alone() -> None:
    data = graph(200, 0)
    other = data.clone()
    order = torch.randperm(200)
    other.edge_index, other.edge_attr = data.edge_index[:, order], None
    expected = list(pyg_direct.PageRankLoader(data, 6, batch_size=5, device="cpu"))
    for options in ({}, {"num_workers": 2}, {"batch_size": 25}):
        loader = pyg_direct.PageRankLoader(other, 6, **{"batch_size": 5, **options})
        found = torch.cat([batch.n_id[batch.context[:, :]] for batch in loader])
        masks = torch.cat([batch.context_mask for batch in loader])
        wanted = torch.cat([batch.n_id[batch.context] for batch in expected])
        assert torch.equal(found[masks], wanted[masks])


def test_there_is_room_for_all_that_a_seed_may_reach() -> None:
    """A hub's 50 neighbours and, at 1 / (alpha * tolerance), those of four edges."""
    for num_nodes, expected in ((3, 3), (1000, 1 + 50 + 4 + 1)):
        indptr = np.repeat([0, 50], [num_nodes, 1])
        assert most_reached(SortedLists(indptr, np.zeros(50, int), None), 0.5, 0.5) == expected


def test_a_hub_is_read_once_and_ties_go_to_lower_ids() -> None:
    ends = torch.stack([torch.arange(1, 5001), torch.zeros(5000, dtype=torch.int64)])
    data = Data(edge_index=ends.flip(1), num_nodes=5001)
    batch = next(iter(pyg_direct.PageRankLoader(data, 4, torch.tensor([0]), tolerance=1.0)))
    assert batch.n_id[batch.context[0]].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"k": 0}, ValueError, "k must be an int of 1 or more"),
        ({"alpha": 1.0}, ValueError, r"alpha must be in \[0.001, 1\), got 1.0"),
        ({"alpha": 1e-9}, ValueError, r"alpha must be in \[0.001, 1\), got 1e-09"),
        ({"alpha": 0}, ValueError, r"alpha must be a number in \(0, 1\]"),
        ({"tolerance": -1.0}, ValueError, "tolerance must be a number"),
        ({"tolerance": 1e-16}, ValueError, "tolerance must be 1e-15 or more, got 1e-16"),
        ({"tolerance": float("nan")}, ValueError, "tolerance must be a number"),
        ({"node_idx": torch.tensor([25])}, IndexError, "node_idx"),
        ({"data": HeteroData()}, ValueError, "PageRankLoader needs a homogeneous graph"),
        ({"data": Data(num_nodes=3)}, ValueError, "needs a graph with edges"),
        ({"num_neighbors": [3]}, TypeError, "num_neighbors"),
    ],
)
def test_wrong_arguments_of_pagerank_are_refused(change, error, text) -> None:
    with pytest.raises(error, match=text):
        pyg_direct.PageRankLoader(**{"data": graph(40, 0), "k": 4, **change})
