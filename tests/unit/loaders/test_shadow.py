"""`ShaDowKHopSampler`: PyG's batches, and what is refused."""

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
import torch_geometric.loader
import torch_geometric.typing
from hypothesis import given
from torch_geometric.data import Data, HeteroData
from torch_geometric.typing import SparseTensor

from pyg_direct import NeighborSampler, ShaDowKHopSampler
from pyg_direct.ops.host.induced import SortedLists, ego_graphs, sorted_lists
from pyg_direct.sampling.sampler import keyed

needs_torch_sparse = pytest.mark.skipif(
    not torch_geometric.typing.WITH_TORCH_SPARSE, reason="PyG's own sampler needs torch_sparse"
)


def graph(edges: int, seed: int, num_nodes: int = 25) -> Data:
    generator = torch.Generator().manual_seed(seed)
    return Data(
        edge_index=torch.randint(num_nodes, (2, edges), generator=generator),
        num_nodes=num_nodes,
        x=torch.arange(num_nodes * 2.0).view(num_nodes, 2),
        y=torch.arange(num_nodes),
        edge_attr=torch.arange(edges),
        name="all",
    )


@needs_torch_sparse
@given(st.integers(0, 80), st.integers(0, 2), st.integers(0, 1000), st.integers(1, 9))
def test_full_neighbourhoods_equal_pygs(edges: int, depth: int, seed: int, size: int) -> None:
    if edges == 25:
        edges += 1  # PyG's rule of sizes cannot tell nodes from edges then
    data = graph(edges, seed)
    # PyG sorts parallel edges in no stable order, so each pair of ends comes once.
    data.edge_index = torch.unique(data.edge_index, dim=1)
    data.edge_attr = torch.arange(data.num_edges)
    if data.num_edges == data.num_nodes:
        return
    ours = ShaDowKHopSampler(data, depth, 1000, batch_size=size)
    theirs = torch_geometric.loader.ShaDowKHopSampler(data, depth, 1000, batch_size=size)
    for one, other in zip(ours, theirs, strict=True):
        assert set(one.keys()) == set(other.keys())
        for name in one.keys():  # noqa: SIM118
            same = torch.equal if isinstance(one[name], torch.Tensor) else lambda a, b: a == b
            assert same(one[name], other[name]), name


def test_subgraphs_by_hand() -> None:
    """Of a path 0->1->2->3, depth 1: what leads to each seed, in the order of ids."""
    data = Data(edge_index=torch.tensor([[0, 1, 2], [1, 2, 3]]), num_nodes=4, y=torch.arange(4))
    data.batch, data.ptr = torch.zeros(4), torch.tensor([0, 4])  # as of a batch of graphs
    batch = next(iter(ShaDowKHopSampler(data, 1, 5, torch.tensor([2, 1]), batch_size=2)))
    assert batch.num_graphs == 2
    assert batch.ptr.tolist() == [0, 2, 4]
    assert batch.batch.tolist() == [0, 0, 1, 1]
    assert batch.root_n_id.tolist() == [1, 3]
    assert batch.edge_index.tolist() == [[0, 2], [1, 3]]
    assert batch.y.tolist() == [2, 1]


def test_at_most_so_many_neighbours() -> None:
    ends = torch.stack([torch.arange(1, 31), torch.zeros(30, dtype=int)])
    data = Data(edge_index=ends, num_nodes=31)
    for replace in (False, True):
        loader = ShaDowKHopSampler(data, 1, 4, torch.tensor([0]), replace=replace)
        sizes = {next(iter(loader)).num_nodes for _ in range(50)}
        assert sizes == {5} if not replace else sizes <= {2, 3, 4, 5}
        assert replace is False or len(sizes) > 1


def test_masks_and_ids_mean_the_same() -> None:
    data = graph(60, 1)
    mask = torch.zeros(25, dtype=torch.bool)
    mask[[3, 7]] = True
    one, other = (
        next(iter(ShaDowKHopSampler(data, 2, -1, nodes, batch_size=2)))
        for nodes in (mask, torch.tensor([3, 7]))
    )
    assert torch.equal(one.x, other.x)
    assert len(ShaDowKHopSampler(data, 1, 1)) == 25


def test_labels_of_edges_stay_those_of_edges() -> None:
    data = graph(60, 1)
    data.y = torch.arange(60) * 3
    batch = next(iter(ShaDowKHopSampler(data, 2, -1, torch.tensor([3, 7]), batch_size=2)))
    assert torch.equal(batch.y, 3 * batch.edge_attr)
    data.y = torch.tensor(5)  # of the graph
    batch = next(iter(ShaDowKHopSampler(data, 2, -1, torch.tensor([3, 7]), batch_size=2)))
    assert batch.y is data.y


@needs_torch_sparse
def test_values_of_a_sparse_tensor_follow_their_edges() -> None:
    data = graph(60, 1)
    row, col = data.edge_index
    value = row * 100.0 + col
    adj_t = SparseTensor(row=col, col=row, value=value, sparse_sizes=(25, 25))
    data = Data(adj_t=adj_t, x=torch.arange(25), num_nodes=25)
    batch = next(iter(ShaDowKHopSampler(data, 2, -1, torch.tensor([9, 7]), batch_size=2)))
    target, source, found = batch.adj_t.coo()
    assert found.numel() > 2
    assert torch.equal(found, batch.x[source] * 100.0 + batch.x[target])


def lists_of(edges: list[tuple[int, int]], num_nodes: int) -> SortedLists:
    ends = torch.tensor(edges, dtype=torch.int64).view(-1, 2).t()
    sampler = NeighborSampler(Data(edge_index=ends, num_nodes=num_nodes), [])
    return sorted_lists(keyed(sampler).graph.csc)


def test_the_order_of_subgraphs() -> None:
    """The example of `ego_graphs`, with an edge in each subgraph and parallel ones."""
    lists = lists_of([(5, 7), (5, 4), (7, 5), (5, 7), (4, 7)], 8)
    out = ego_graphs(torch.tensor([7, 4, 5, 5]), torch.tensor([0, 1, 0, 1]), 2, lists)
    assert out.node.tolist() == [5, 7, 4, 5]
    assert out.ptr.tolist() == [0, 2, 4]
    assert out.root.tolist() == [1, 2]
    assert out.edge_index.tolist() == [[0, 0, 1, 3], [1, 1, 0, 2]]
    assert out.edge.tolist() == [0, 3, 2, 1]


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=80),
    st.lists(st.sets(st.integers(0, 9), min_size=1), min_size=1, max_size=4),
)
def test_edges_within_groups(edges: list[tuple[int, int]], groups: list[set[int]]) -> None:
    """All edges between the nodes of a group, found by hand."""
    members = [(node, g) for g, group in enumerate(groups) for node in group]
    members = [(min(group), g) for g, group in enumerate(groups)] + [
        (node, g) for node, g in members if node != min(groups[g])
    ]
    node, group_of = (torch.tensor(part) for part in zip(*members, strict=True))
    out = ego_graphs(node, group_of, len(groups), lists_of(edges, 10))
    assert out.node[out.root].tolist() == [min(group) for group in groups]
    assert out.node.tolist() == [node for group in groups for node in sorted(group)]
    place = {(g, node): i for i, (g, node) in enumerate(
        (g, node) for g, group in enumerate(groups) for node in sorted(group)
    )}  # fmt: skip
    expected = sorted(
        (place[g, u], place[g, v], e)
        for g, group in enumerate(groups)
        for e, (u, v) in enumerate(edges)
        if {u, v} <= group
    )
    assert out.edge_index.t().tolist() == [[u, v] for u, v, _ in expected]
    assert out.edge.tolist() == [e for _, _, e in expected]


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        ({"depth": -1}, ValueError, "depth"),
        ({"num_neighbors": 1.5}, ValueError, "num_neighbors"),
        ({"replace": "yes"}, TypeError, "replace"),
        ({"node_idx": torch.tensor([25])}, IndexError, "node_idx"),
        ({"node_idx": torch.ones(3, dtype=torch.bool)}, ValueError, "25 entries"),
        ({"data": HeteroData()}, ValueError, "homogeneous"),
        ({"data": Data(num_nodes=3)}, ValueError, "edges"),
    ],
)
def test_wrong_arguments_of_shadow_are_refused(
    wrong: dict[str, Any], error: type, message: str
) -> None:
    arguments = {"data": graph(60, 0), "depth": 1, "num_neighbors": 2, **wrong}
    with pytest.raises(error, match=message):
        ShaDowKHopSampler(**arguments)
