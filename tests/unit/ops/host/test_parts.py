"""What a batch sends to the parts of a graph and gets from them, against plain lookups."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyg_direct.ops.host.parts import Drawn, RowNumbers, merged, rows_of_parts, split_by_part

PART = np.array([1, 0, 1, 2, 1, 0, 2, 1], np.int16)
ROW = np.array([0, 0, 1, 0, 2, 1, 1, 3], np.int32)  # of each node in its part
nodes = st.lists(st.integers(0, len(PART) - 1), max_size=12).map(
    lambda ids: np.array(ids, np.int64)
)


@given(node=nodes)
def test_nodes_by_part(node: np.ndarray) -> None:
    found = split_by_part(node, PART, ROW, 3)
    assert found.owner.tolist() == PART[node].tolist()
    for p, (rows, places) in enumerate(zip(*found.of_parts(), strict=True)):
        assert places.tolist() == np.flatnonzero(PART[node] == p).tolist()
        assert rows.tolist() == ROW[node[places]].tolist()


@given(
    windows=st.lists(st.lists(nodes, min_size=1, max_size=3), min_size=1, max_size=3),
    own=st.lists(st.booleans(), min_size=3, max_size=3).map(np.array),
)
def test_a_part_is_asked_for_each_row_once_in_a_window(
    windows: list[list[np.ndarray]], own: np.ndarray
) -> None:
    numbers = RowNumbers(len(PART), ROW, own)
    for window in windows:
        refs, wanted, elsewhere = numbers.of_window([(node, PART[node]) for node in window])
        assert elsewhere == sum(int((~own[PART[node]]).sum()) for node in window)
        assert all(len(set(rows)) == len(rows) for rows in map(np.ndarray.tolist, wanted))
        asked = {ROW[v] + 10 * PART[v] for node in window for v in node if not own[PART[v]]}
        assert asked == {row + 10 * p for p, rows in enumerate(wanted) for row in rows}
        for node, ref in zip(window, refs, strict=True):
            rows = [at if own[p] else wanted[p][at] for p, at in zip(PART[node], ref, strict=True)]
            assert rows == ROW[node].tolist()


def test_edges_come_in_the_order_of_their_items() -> None:
    """Two relations, whose items 0 and 2, 1 belong to the parts 1 and 0."""
    ints = np.array
    drawn = [
        Drawn(ints([2, 1], np.int32), ints([7, 8, 9]), ints([70, 80, 90])),
        Drawn(ints([1, 0], np.int32), ints([5]), ints([50])),
    ]
    picks, origin, ends = merged([ints([1, 0]), ints([0, 1])], drawn, 4)
    assert picks.counts.tolist() == [1, 2, 1, 0]
    assert picks.source.tolist() == [5, 7, 8, 9]
    assert picks.edge is not None
    assert picks.edge.tolist() == [50, 70, 80, 90]
    assert (origin.tolist(), ends) == ([3, 0, 1, 2], [0, 3, 4])


@pytest.mark.parametrize("row_bytes", [0, 1, 2, 32, 70, 700])
def test_rows_of_parts(row_bytes: int) -> None:
    rng = np.random.default_rng(0)
    tables = [torch.from_numpy(rng.integers(0, 256, (n, row_bytes), np.uint8)) for n in (2, 40, 1)]
    owner = np.array([1, 0, 1, 2, 0], np.int16)
    rows = np.array([39, 1, 0, 0, 0])
    found = rows_of_parts(tables, owner, rows)
    assert found.tolist() == [tables[p][row].tolist() for p, row in zip(owner, rows, strict=True)]
    for p, size in enumerate(map(len, tables)):
        for bad in (size, -1) if row_bytes else ():
            with pytest.raises(IndexError, match=f"Row {bad} .* of a part of {size} rows"):
                rows_of_parts(tables, np.array([p], np.int16), np.array([bad]))


def test_stamps_begin_anew_before_they_overflow() -> None:
    """Over an empty table: what was numbered before is not known."""
    numbers, node = RowNumbers(len(PART), ROW, np.array([True, False, False])), np.array([0, 3, 4])
    expected = numbers.of_window([(node, PART[node])])
    numbers._stamp = (1 << 32) - 2
    refs, wanted, elsewhere = numbers.of_window([(node, PART[node])])
    assert numbers._stamp < 10
    assert elsewhere == expected[2] == 3
    for found, before in ((refs, expected[0]), (wanted, expected[1])):
        assert [part.tolist() for part in found] == [part.tolist() for part in before]
