"""Edges within groups of nodes: the kernels' examples, long lists, many edges, several threads."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from torch_geometric.data import Data

from pyg_direct.graph.from_pyg import graph_of
from pyg_direct.kernels import groups
from pyg_direct.kernels.relabel import HASH_MULTIPLIER
from pyg_direct.ops.host import induced as ordering
from pyg_direct.ops.host.induced import SortedLists, ego_graphs


def scratch(largest: int) -> tuple[Any, ...]:
    slots = groups.slots_for(largest)
    return (
        np.empty(slots, np.int64), np.empty(slots, np.int32),
        np.empty(groups.words_for(slots), np.uint64), np.empty(largest, np.int64),
    )  # fmt: skip


def test_edges_of_one_group_by_hand() -> None:
    """The example of `edges_within`; then with too little room, as the list has four entries."""
    ptr, node = np.array([0, 3]), np.array([2, 5, 7])
    indptr, indices = np.array([0, 0, 0, 0, 0, 0, 4, 4, 4]), np.array([0, 2, 2, 7])
    graph = ptr, node, indptr, indices
    ends, row, position = np.empty(3, np.int64), np.empty(5, np.int32), np.empty(5, np.int64)
    out = ends, row, position
    assert groups.edges_within(*graph, 0, 1, *scratch(3), 0, *out) == (1, 3, 3)
    assert ends.tolist() == [0, 3, 3]
    assert row[:3].tolist() == [0, 0, 2]
    assert position[:3].tolist() == [1, 2, 3]
    short = ends, row[:4], position[:4]
    assert groups.edges_within(*graph, 0, 1, *scratch(3), 0, *short) == (0, 0, 5)


def bit(v: int) -> int:
    """Return which of the 256 bits of a small group is a node's."""
    return v * int(HASH_MULTIPLIER) % 2**64 >> 56


def test_a_hash_table_goes_on_at_its_begin() -> None:
    """All nodes of a complete group belong into the last of 16 slots; behind it are free ones."""
    node = np.array([v for v in range(500) if bit(v) >> 4 == 15][:3])
    indptr = np.zeros(501, np.int64)
    for v in node:
        indptr[v + 1 :] += 3
    keys, *others = scratch(40)
    keys[:] = groups.FREE
    ends, row, position = np.empty(3, np.int64), np.empty(10, np.int32), np.empty(10, np.int64)
    graph = np.array([0, 3]), node, indptr, np.tile(node, 3)
    found = groups.edges_within(*graph, 0, 1, keys, *others, 0, ends, row, position)
    assert found == (1, 9, 9)
    assert row[:9].tolist() == [0, 1, 2] * 3


def test_a_node_with_the_bit_of_a_member_is_none() -> None:
    other = next(v for v in range(8, 5000) if bit(v) == bit(5))
    indptr, indices = np.array([0, 0, 0, 0, 0, 0, 2, 2, 2]), np.array([2, other])
    graph = np.array([0, 3]), np.array([2, 5, 7]), indptr, indices
    ends, row, position = np.empty(3, np.int64), np.empty(5, np.int32), np.empty(5, np.int64)
    out = ends, row, position
    assert groups.edges_within(*graph, 0, 1, *scratch(3), 0, *out) == (1, 1, 1)
    assert (row[0], position[0]) == (0, 0)


def test_edges_are_placed_by_source() -> None:
    """The example of `place_edges`."""
    edge_index, edge = np.empty((2, 2), np.int64), np.empty(2, np.int64)
    found = np.array([1, 2, 2]), np.array([2, 1], np.int32), np.array([10, 11]), None
    groups.place_edges(np.array([0, 3]), 0, 1, *found, np.empty(4, np.int64), 0, edge_index, edge)
    assert edge_index.tolist() == [[1, 2], [1, 0]]
    assert edge.tolist() == [11, 10]


def random_lists(num_nodes: int, num_edges: int, hubs: int, seed: int) -> SortedLists:
    """A graph in which half of the edges lead to a few hubs, so that some lists are long."""
    rng = np.random.default_rng(seed)
    source = rng.integers(num_nodes, size=num_edges)
    target = np.where(
        rng.random(num_edges) < 0.5, rng.integers(hubs, size=num_edges),
        rng.integers(num_nodes, size=num_edges),
    )  # fmt: skip
    order = np.lexsort((source, target))
    counts = np.bincount(target, minlength=num_nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)])
    return SortedLists(indptr, source[order], order)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("size", [1, 12, 150])
def test_hubs_and_growing_lists(threads: int, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists that are read and lists that are searched give the edges that are found by hand.

    Hubs have about 600 in-neighbours: groups of up to 37 nodes search these, larger ones read them.
    """
    assert 14 * groups.READ_THROUGH < 600 < 100 * groups.READ_THROUGH
    monkeypatch.setattr(ordering, "MIN_NODES_PER_THREAD", 1)
    monkeypatch.setattr(ordering, "EXPECTED_EDGES", 1)
    lists = random_lists(200, 6000, 5, seed=size)
    rng = np.random.default_rng(size)
    members = [np.unique(np.append(rng.choice(200, size), [0, 3])) for _ in range(7)]
    seeds = [int(group[0]) for group in members]
    node = np.concatenate([seeds, *(group[1:] for group in members)])
    of = np.concatenate([np.arange(7), *(np.full(len(g) - 1, i) for i, g in enumerate(members))])
    out = ego_graphs(torch.from_numpy(node), torch.from_numpy(of), 7, lists, threads)
    ends = np.repeat(np.arange(200), np.diff(lists.indptr))
    expected = []
    for (first, _), group in zip(pairwise(out.ptr.tolist()), members, strict=True):
        place = {v: first + i for i, v in enumerate(group.tolist())}
        inside = np.isin(lists.indices, group) & np.isin(ends, group)
        expected += sorted(
            (place[int(lists.indices[p])], place[int(ends[p])], int(p)) for p in inside.nonzero()[0]
        )
    assert out.edge_index.t().tolist() == [[u, v] for u, v, _ in expected]
    assert lists.perm is not None
    assert out.edge.tolist() == [int(lists.perm[p]) for _, _, p in expected]


def test_lists_that_are_not_sorted_at_the_end_are_sorted() -> None:
    edge_index = torch.tensor([[0, 2, 1, 2, 0, 2, 1], [0, 0, 1, 1, 2, 2, 2]])
    lists = ordering.sorted_lists(graph_of(Data(num_nodes=3, edge_index=edge_index)).csc)
    assert lists.indices.tolist() == [0, 2, 1, 2, 0, 1, 2]
    assert lists.perm is not None
    assert lists.perm.tolist() == [0, 1, 2, 3, 4, 6, 5]


def test_nodes_are_sorted_by_all_digits_of_their_ids() -> None:
    num_nodes = 10_000  # two digits of 11 bits
    lists = SortedLists(np.zeros(num_nodes + 1, np.int64), np.empty(0, np.int32), None)
    node = torch.tensor([9_000, 1, 4_097, 2_049, 8_192, 3])
    found = ego_graphs(node, torch.zeros(6, dtype=torch.int64), 1, lists)
    assert found.node.tolist() == sorted(node.tolist())
    assert found.root.tolist() == [5]
