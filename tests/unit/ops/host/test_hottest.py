"""Which rows a cache holds."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_direct.ops.host.hottest import SLOT_BYTES, Candidate, hottest_rows


def candidate(visits: list[float], columns: int = 32) -> Candidate:
    return Candidate("x", torch.zeros(len(visits), columns), torch.tensor(visits).double())


def test_hottest_rows_of_the_worked_example_fit_the_budget() -> None:
    table = candidate([3, 0, 9, 1])
    (rows,) = hottest_rows([table], 2 * 128 + 4 * SLOT_BYTES)
    assert rows.tolist() == [0, 2]
    assert hottest_rows([table], 1 << 20)[0].tolist() == [0, 2, 3]


def test_the_slots_must_fit_too() -> None:
    table = candidate([3, 0, 9, 1])
    assert len(hottest_rows([table], 128 + 4 * SLOT_BYTES)[0]) == 1
    assert len(hottest_rows([table], 128 + 4 * SLOT_BYTES - 1)[0]) == 0
    assert len(hottest_rows([table], 0)[0]) == 0


def test_rows_of_several_tables_compete() -> None:
    """Rows of 128 bytes cost a read, and rows of 32 bytes as well: for a quarter of the room."""
    wide, narrow = candidate([4, 1], 32), candidate([3, 2], 8)
    slots = 4 * SLOT_BYTES
    assert [r.tolist() for r in hottest_rows([wide, narrow], 64 + slots)] == [[], [0, 1]]
    assert [r.tolist() for r in hottest_rows([wide, narrow], 192 + slots)] == [[0], [0, 1]]


def test_a_table_without_cached_rows_takes_no_slots() -> None:
    never, often = candidate([0.0] * 1000), candidate([1, 5])
    room = 128 + 2 * SLOT_BYTES
    assert [r.tolist() for r in hottest_rows([never, often], room)] == [[], [1]]


@settings(max_examples=60, deadline=None)
@given(
    tables=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=9), max_size=3),
    columns=st.lists(st.integers(1, 40), min_size=3, max_size=3), room=st.integers(0, 2000),
)  # fmt: skip
def test_the_room_is_kept(tables: list[list[int]], columns: list[int], room: int) -> None:
    given = [candidate(v, c) for v, c in zip(tables, columns, strict=False)]
    picked = hottest_rows(given, room)
    used = 0
    for (_, table, visits), rows in zip(given, picked, strict=True):
        assert bool((visits[rows] > 0).all())
        if len(rows) > 0:
            used += len(rows) * table[0].nbytes + SLOT_BYTES * len(table)
            left = torch.ones(len(table), dtype=torch.bool)
            left[rows] = False
            if left.any():
                assert visits[rows].min() >= visits[left].max()
    assert used <= room
