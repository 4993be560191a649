"""Random walks: along edges, whatever the threads, and what is refused."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct import RandomWalker, metapath_walk, random_walk
from pyg_direct.kernels.walk import BACK, NOWHERE, propose


def ring(num_nodes: int) -> Data:
    node = torch.arange(num_nodes)
    return Data(edge_index=torch.stack([node, (node + 1) % num_nodes]), num_nodes=num_nodes)


def random_graph(num_nodes: int = 50, edges: int = 300) -> Data:
    edge_index = torch.randint(num_nodes, (2, edges), generator=torch.Generator().manual_seed(0))
    return Data(edge_index=edge_index, num_nodes=num_nodes)


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0), (4.0, 0.25), (1, 2)])
def test_walks_follow_edges(p: float, q: float) -> None:
    data = random_graph()
    edges = set(map(tuple, data.edge_index.t().tolist()))
    ends = {u for u, _ in edges}
    walks = random_walk(data, torch.arange(50).repeat(10), 7, p, q, seed=0)
    assert walks.shape == (500, 8)
    assert walks.dtype == torch.int64
    assert walks[:, 0].tolist() == list(range(50)) * 10
    for walk in walks.tolist():
        for u, v in pairwise(walk):
            assert (u, v) in edges or (u == v and u not in ends)


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.5, 2.0)])
def test_a_walk_without_choice(p: float, q: float) -> None:
    """Around a ring there is one way on, unless a node is left at which the walk stays."""
    assert random_walk(ring(5), torch.tensor([3]), 4, p, q).tolist() == [[3, 4, 0, 1, 2]]
    path = Data(edge_index=torch.tensor([[0, 1], [1, 2]]), num_nodes=3)
    assert random_walk(path, torch.tensor([0, 2]), 3, p, q).tolist() == [[0, 1, 2, 2], [2] * 4]


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.25, 4.0)])
def test_walks_do_not_depend_on_threads_or_blocks(p: float, q: float) -> None:
    walker = RandomWalker(random_graph(), threads=3)
    start = torch.arange(50).repeat(200)
    walks = walker.walk(start, 20, p, q, seed=1)
    walker.threads = 1
    assert torch.equal(walker.walk(start, 20, p, q, seed=1), walks)
    assert torch.equal(walker.walk(start[:70], 20, p, q, seed=1), walks[:70])
    assert torch.equal(walker.walk(start, 7, p, q, seed=1), walks[:, :8])
    assert not torch.equal(walker.walk(start, 20, p, q, seed=2), walks)


def test_torch_manual_seed_governs() -> None:
    walker, start = RandomWalker(random_graph()), torch.arange(50)
    torch.manual_seed(5)
    one, two = walker.walk(start, 9), walker.walk(start, 9)
    assert not torch.equal(one, two)
    torch.manual_seed(5)
    assert torch.equal(walker.walk(start, 9), one)


@pytest.mark.parametrize(("p", "q"), [(1e6, 1.0), (1.0, 1e6), (1e6, 1e6), (1e-6, 1.0), (1.0, 1e-6)])
def test_extreme_parameters_end(p: float, q: float) -> None:
    """Where nearly every draw is refused, the weights are added up instead."""
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    data = Data(edge_index=edge_index, num_nodes=3)
    walks = random_walk(data, torch.zeros(100, dtype=torch.int64), 50, p, q, seed=0)
    back = float((walks[:, 2] == 0).float().mean())
    assert back == pytest.approx((1 / p) / (1 / p + 1 / q), abs=0.2)


def test_no_walks_and_no_steps() -> None:
    for p in (1.0, 2.0):
        assert random_walk(ring(3), torch.empty(0, dtype=torch.int64), 4, p).shape == (0, 5)
        assert random_walk(ring(3), torch.tensor([2]), 0, p).tolist() == [[2]]


def typed_graph() -> HeteroData:
    """Authors 0 and 1 wrote papers 0 and 1; paper 1 appeared at venue 0."""
    data = HeteroData()
    for kind, count in (("author", 2), ("paper", 2), ("venue", 1)):
        data[kind].num_nodes = count
    data["author", "wrote", "paper"].edge_index = torch.tensor([[0, 1], [0, 1]])
    data["paper", "at", "venue"].edge_index = torch.tensor([[1], [0]])
    data["venue", "has", "paper"].edge_index = torch.tensor([[0], [1]])
    return data


def test_metapath_walks_end_where_no_edge_goes_on() -> None:
    path = [("author", "wrote", "paper"), ("paper", "at", "venue"), ("venue", "has", "paper")]
    walks = metapath_walk(typed_graph(), torch.tensor([0, 1]), path)
    assert walks.tolist() == [[0, 0, -1, -1], [1, 1, 0, 1]], "author 0's paper is at no venue"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ([("author", "wrote", "venue")], "must name edge types"),
        ([("author", "wrote", "paper"), ("venue", "has", "paper")], "another node type"),
        ([], "metapath"),
    ],
)
def test_wrong_metapaths_are_refused(path: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        metapath_walk(typed_graph(), torch.tensor([0]), path)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ((ring(3), torch.tensor([3]), 1), IndexError, "start"),
        ((ring(3), torch.tensor([-1]), 1), IndexError, "start"),
        ((ring(3), torch.tensor([0.5]), 1), ValueError, "start"),
        ((ring(3), torch.tensor([[0]]), 1), ValueError, "start"),
        ((ring(3), [0], 1), ValueError, "start"),
        ((ring(3), torch.tensor([0]), -1), ValueError, "length"),
        ((ring(3), torch.tensor([0]), 1 << 24), ValueError, "length"),
        ((ring(3), torch.tensor([0]), 1, 0.0), ValueError, "p must"),
        ((ring(3), torch.tensor([0]), 1, 1.0, float("inf")), ValueError, "q must"),
        ((ring(3), torch.tensor([0]), 1, float("nan")), ValueError, "p must"),
        ((typed_graph(), torch.tensor([0]), 1), ValueError, "metapath"),
        (("graph", torch.tensor([0]), 1), ValueError, "data"),
    ],
)
def test_wrong_arguments_of_walks_are_refused(arguments: Any, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        random_walk(*arguments)


def test_steps_that_share_a_word_do_not_repeat() -> None:
    """In a complete graph all choices are independent, also those of steps apart by 1 to 8."""
    node = torch.arange(16)
    data = Data(edge_index=torch.cartesian_prod(node, node).t().contiguous(), num_nodes=16)
    walks = random_walk(data, torch.zeros(2000, dtype=torch.int64), 12, seed=0)[:, 1:]
    for apart in range(1, 9):
        equal = (walks[:, apart:] == walks[:, :-apart]).double().mean()
        assert abs(float(equal) - 1 / 16) < 0.02, apart


def test_a_proposal_has_the_height_of_its_random_words_to_the_last_bit() -> None:
    """Of five neighbours under a line of 1 and, after them, a way back that weighs 2.5; of none."""
    indptr, counter = np.array([0, 5, 5]), [np.uint64(n) for n in (2, 3, 4, 5)]
    assert propose(indptr, 0, 0, 1.0, 0.0, np.uint64(1), *counter) == (3, 0.40679133302716525)
    assert propose(indptr, 0, 1, 1.0, 2.5, np.uint64(1), *counter) == (3, 0.610186999540748)
    assert propose(indptr, 0, 1, 1.0, 2.5, np.uint64(2), *counter) == (BACK, 0.0)
    assert propose(indptr, 1, 1, 1.0, 2.5, np.uint64(1), *counter) == (NOWHERE, 0.0)


RECORDED = {  # by p and q: three walks of nine steps
    (1.0, 1.0): [
        [0, 0, 1, 0, 0, 4, 3, 0, 4, 6],
        [1, 3, 0, 7, 5, 2, 0, 1, 0, 4],
        [2, 0, 4, 3, 0, 7, 1, 0, 7, 8],
    ],
    (2.0, 0.5): [
        [0, 0, 7, 5, 5, 2, 3, 3, 6, 2],
        [1, 7, 2, 6, 8, 4, 2, 3, 0, 4],
        [2, 6, 9, 7, 1, 0, 4, 6, 5, 2],
    ],
    (0.3, 2.0): [  # the way back weighs more than the line, by no whole number
        [0, 0, 0, 0, 0, 0, 1, 3, 3, 0],
        [1, 7, 1, 7, 1, 3, 9, 4, 9, 7],
        [2, 6, 2, 6, 2, 0, 4, 6, 5, 2],
    ],
}


@pytest.mark.parametrize(("p", "q"), RECORDED)
def test_walks_of_a_seed_are_the_recorded_ones(p: float, q: float) -> None:
    n = torch.arange(40)
    data = Data(edge_index=torch.stack([(n * 7 + n // 10) % 10, n % 10]), num_nodes=10)
    assert random_walk(data, torch.arange(3), 9, p, q, seed=3).tolist() == RECORDED[p, q]
