"""Subgraphs between drawn nodes: the kernels' examples, any number of threads, bad ids."""

import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from hypothesis import given

from pyg_direct.kernels import members
from pyg_direct.ops.host import induced
from pyg_direct.ops.host.induced import InducedSubgraphs, SortedLists

Edges = list[tuple[int, int]]


def set_of(nodes: list[int], num_nodes: int = 128) -> tuple[Any, Any, Any]:
    chosen = induced._ChosenNodes.over(num_nodes)
    assert members.enter_members(np.array(nodes), num_nodes, chosen.words, chosen.nonzero) == -1
    return chosen


def lists_by_source(edges: Edges, num_nodes: int, dtype: Any = np.int32) -> SortedLists:
    """The lists of a graph, and a permutation where the edges are not in their order."""
    order = sorted(range(len(edges)), key=lambda e: (*edges[e], e))
    source = np.array([edges[e][0] for e in order], np.int64)
    counts = np.bincount(source, minlength=num_nodes)
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(dtype)
    perm = None if order == sorted(order) else np.array(order, dtype)
    return SortedLists(indptr, np.array([edges[e][1] for e in order], dtype), perm)


def test_a_set_by_hand() -> None:
    words, nonzero, before = set_of([1, 3, 1, 64])
    assert words.tolist() == [0b1010, 0b1]
    assert nonzero.tolist() == [0b11]
    out = np.empty(4, np.int64)
    assert members.list_members(words, nonzero, before, out) == 3
    assert out[:3].tolist() == [1, 3, 64]
    assert before.tolist() == [0, 2]
    members.remove_members(words, nonzero)
    assert not words.any()
    assert not nonzero.any()
    assert members.enter_members(np.array([5, 128, 6]), 128, words, nonzero) == 1


def test_kernels_by_hand() -> None:
    """The examples of `add_degrees`, `list_inside` and `place_inside`."""
    out = np.empty(4, np.int64)
    members.add_degrees(np.arange(3), np.array([0, 2, 2, 5]), out)
    assert out.tolist() == [0, 2, 2, 5]
    words, nonzero, before = set_of([4, 7])
    members.list_members(words, nonzero, before, np.empty(2, np.int64))
    node, indices = np.array([4, 7]), np.array([4, 4, 9])
    indptr = np.array([0, 0, 0, 0, 0, 1, 1, 1, 3])
    ends, position, place = (np.empty(size, np.int64) for size in (2, 3, 3))
    lists = indptr, indices, words, before
    assert members.list_inside(node, 0, 2, *lists, 0, ends, position, place) == 2
    assert ends.tolist() == [1, 2]
    assert position[:2].tolist() == [0, 1]
    assert place[:2].tolist() == [0, 0]
    edge_index, edge = np.empty((2, 2), np.int64), np.empty(2, np.int64)
    members.place_inside(0, 2, 0, ends, position, place, None, 0, edge_index, edge)
    assert edge_index.tolist() == [[0, 1], [0, 0]]
    assert edge.tolist() == [0, 1]
    edge_index[:] = -1
    members.place_inside(0, 2, 0, ends, position, place, None, 0, edge_index, None)
    assert edge_index.tolist() == [[0, 1], [0, 0]]


@given(
    st.integers(1, 200).flatmap(
        lambda n: st.tuples(
            st.just(n),
            st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)), max_size=80),
            st.lists(st.lists(st.integers(0, n - 1), max_size=40), min_size=1, max_size=3),
        )
    ),
    st.integers(1, 4),
    st.sampled_from([np.int32, np.int64]),
)
def test_edges_between_drawn_nodes(
    case: tuple[int, Edges, list[list[int]]], threads: int, dtype: Any
) -> None:
    """Found by hand, with any number of threads, one batch after the other."""
    num_nodes, edges, draws = case
    subgraphs = InducedSubgraphs(lists_by_source(edges, num_nodes, dtype), torch.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(induced, "MIN_ENTRIES_PER_THREAD", 1)
        for drawn in draws:
            node, edge_index, edge = subgraphs.between(
                torch.tensor(drawn, dtype=torch.int64), threads
            )
            assert node.tolist() == sorted(set(drawn))
            expected = sorted(
                (u, v, e) for e, (u, v) in enumerate(edges) if u in drawn and v in drawn
            )
            assert node[edge_index].t().tolist() == [[u, v] for u, v, _ in expected]
            assert edge is not None
            assert edge.tolist() == [e for _, _, e in expected]
            without = subgraphs.between(torch.tensor(drawn, dtype=torch.int64), threads, False)
            assert torch.equal(without[0], node)
            assert torch.equal(without[1], edge_index)
            assert without[2] is None


def test_large_sets_follow_one_another() -> None:
    """Sets of whole words, and of more words than one word of `nonzero` knows."""
    size = 5000
    following = [(v, (v + 1) % size) for v in range(size)]
    subgraphs = InducedSubgraphs(lists_by_source(following, size), torch.int64)
    for drawn, edges in ((torch.arange(size), size), (torch.arange(4990, size), 9),
                         (torch.arange(0, size, 2), 0)):  # fmt: skip
        node, (source, target), _ = subgraphs.between(drawn, 1)
        assert torch.equal(node, drawn)
        assert len(source) == edges
        assert torch.equal(node[target], (node[source] + 1) % size)


def test_threads_of_a_batch_share_its_edges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(induced, "MIN_ENTRIES_PER_THREAD", 1)
    complete = [(u, v) for u in range(6) for v in range(6)]
    subgraphs = InducedSubgraphs(lists_by_source(complete, 6), torch.int64)
    for threads in (1, 2, 3, 6):
        _, edge_index, edge = subgraphs.between(torch.arange(6), threads)
        assert edge_index.t().tolist() == [list(pair) for pair in complete]
        assert edge is not None
        assert edge.tolist() == list(range(36))


def test_ids_out_of_range_are_refused() -> None:
    subgraphs = InducedSubgraphs(lists_by_source([(0, 1)], 3), torch.int32)
    for bad in (-1, 3, 1 << 40):
        with pytest.raises(IndexError, match=rf"in \[0, 3\), got {bad}"):
            subgraphs.between(torch.tensor([2, bad]), 1)
    node, edge_index, _ = subgraphs.between(torch.tensor([1, 0]), 1)  # nothing of them is left
    assert node.tolist() == [0, 1]
    assert edge_index.tolist() == [[0], [1]]
    assert edge_index.dtype == torch.int32


def test_pickled_without_scratch_memory() -> None:
    subgraphs = InducedSubgraphs(lists_by_source([(0, 1)], 100_000), torch.int64)
    subgraphs.between(torch.tensor([0, 1]), 1)
    again = pickle.loads(pickle.dumps(subgraphs))
    assert not again._idle
    assert again.between(torch.tensor([0, 1]), 1)[1].tolist() == [[0], [1]]
