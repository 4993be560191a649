"""Numbers of the nodes that a rank has of a batch that ranks make together."""

from __future__ import annotations

import numpy as np
import pytest

from pyg_direct.kernels import parts as kernels
from pyg_direct.ops.host.in_common import RankNodes, field_of_bits

OWNER = np.array([0, 1, 0, 1, 0, 1, 0, 1], np.int16)  # odd nodes are another rank's


def ints(*values: int, dtype: type = np.int64) -> np.ndarray:
    return np.array(values, dtype)


def test_sources_are_met_with_the_keys_of_the_first_edges_that_find_them() -> None:
    table, count = np.full(8, kernels.UNKNOWN, np.int32), np.zeros(2, np.int64)
    own, other = np.zeros((2, 2, 4), np.int64)
    source, counts = ints(5, 6, 5, dtype=np.int32), ints(1, 2, dtype=np.int32)
    kernels.find_sources(source, counts, ints(1, 2), 2, 0, OWNER, 0, table, 0, count, own, other)
    assert count.tolist() == [1, 1]
    assert own[:, :1].tolist() == [[6], [4]]
    assert other[:, :1].tolist() == [[5], [2]]


def test_the_least_key_of_all_ranks_counts() -> None:
    table, count = np.full(8, kernels.UNKNOWN, np.int32), ints(1, 0)
    table[6] = -2
    own = np.array([[6, 0], [4, 0]])
    kernels.merge_asked(ints(6, 7), ints(3, 5), table, count, own)
    assert count.tolist() == [2, 0]
    assert own.tolist() == [[6, 7], [3, 5]]


def test_sources_get_the_rows_of_own_nodes_or_of_others() -> None:
    table, row = np.full(8, kernels.UNKNOWN, np.int32), np.zeros(2, np.int64)
    table[6], table[7] = 1, 0
    kernels.number_sources(ints(6, 7), OWNER, 0, table, 2, 5, row)
    assert row.tolist() == [3, 5]


def test_a_batch_numbers_own_nodes_by_their_keys_and_forgets_the_one_before() -> None:
    nodes = RankNodes(OWNER, 0)
    for _ in range(2):
        nodes.begin(ints(4, 2, 4))
        nodes.begin_hop(3)
        nodes.find(ints(6, 3, 4), ints(2, 1, dtype=np.int32), ints(1, 2), 2, 0)
        (_, _, _), (ids, keys, numbers) = nodes.asked_of(2)
        assert (ids.tolist(), keys.tolist(), numbers.tolist()) == ([3], [3], [0])
        nodes.merge(ints(0, 6), ints(1, 5))
        assert nodes.number(in_order=True).tolist() == [1, 2]
        assert [ids.tolist() for ids in nodes.own] == [[4, 2, 4], [0, 6]]
        assert nodes.numbers_of(ints(4, 2, 0, 6)).tolist() == [0, 1, 3, 4]  # the first of two
        rows = np.zeros(4, np.int64)
        nodes.write_rows(ints(4, 6, 3, 0), 2, 7, rows)
        assert rows.tolist() == [2, 6, 7, 5]
        nodes.begin_hop(2)
        nodes.find(ints(1, 5), ints(2, dtype=np.int32), ints(0), 2, 0)
        _, (ids, _, numbers) = nodes.asked_of(2)
        assert (ids.tolist(), numbers.tolist()) == ([1, 5], [1, 2])  # node 3 is number 0


def test_nodes_that_others_find_have_room() -> None:
    nodes = RankNodes(OWNER, 0)
    nodes.begin(ints())
    nodes.begin_hop(1)
    nodes.find(ints(2), ints(1, dtype=np.int32), ints(0), 1, 0)
    nodes.asked_of(2)
    nodes.merge(ints(6, 0), ints(7, 4))
    nodes.merge(ints(4, 6, 0), ints(5, 3, 9))
    assert nodes.number(in_order=True).tolist() == [0, 3, 4, 5]
    assert nodes.own[1].tolist() == [2, 6, 0, 4]


@pytest.mark.parametrize("ids", [ints(3), ints(8), ints(-2)])
def test_a_rank_is_asked_for_own_nodes_only(ids: np.ndarray) -> None:
    nodes = RankNodes(OWNER, 0)
    nodes.begin(ints())
    nodes.begin_hop(0)
    with pytest.raises(ValueError, match="asks for nodes that this one does not own"):
        nodes.merge(ids, ids)


def test_bits_of_keys() -> None:
    assert field_of_bits([ints(0, 9), ints(7)], 10).tolist() == [0b10000001, 0b01000000]
