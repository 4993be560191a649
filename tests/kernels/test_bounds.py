"""Checks of graphs that nobody has read before, against the rules in plain Python."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyg_direct.kernels import bounds

END = 6
# Positions and ids as they may stand in a damaged file.
anything = st.one_of(st.integers(-2, END + 2), st.sampled_from([-(2**63), 2**63 - 1]))
some = st.lists(anything, max_size=5).map(lambda values: np.array(values, np.int64))


def first(bad: list[bool]) -> int:
    return bad.index(True) if True in bad else -1


@given(ids=some)
def test_ids(ids: np.ndarray) -> None:
    expected = first([not 0 <= v < END for v in ids.tolist()])
    assert bounds.first_bad_id(ids, 0, len(ids), END) == expected


@given(lists=st.lists(st.tuples(anything, anything), max_size=5), begin=st.integers(0, 2))
def test_lists(lists: list[tuple[int, int]], begin: int) -> None:
    start, degree = np.array(lists, np.int64).reshape(-1, 2).T.copy()
    expected = first([s < begin or d < 0 or s + d > END for s, d in lists])
    assert bounds.first_bad_list(start, degree, 0, len(lists), begin, END) == expected


@given(indptr=some)
def test_lists_that_end_before_they_begin(indptr: np.ndarray) -> None:
    expected = first((indptr[1:] < indptr[:-1]).tolist())
    assert bounds.first_decrease(indptr, 0, max(0, len(indptr) - 1)) == expected


@pytest.mark.parametrize("wrong", [np.inf, np.nan, -1.0])
def test_the_first_list_with_bad_weights_is_found(wrong: float) -> None:
    weight, indptr = np.array([1.0, 2.0, wrong]), np.array([0, 2, 3])
    cumulative = np.array([1.0, 3.0, wrong])
    assert bounds.first_bad_weights(indptr, weight, cumulative, 0, 1) == -1
    assert bounds.first_bad_weights(indptr, weight, cumulative, 0, 2) == 1


def first_bad_alias(keep: list[float], other: list[int]) -> int:
    """Check a table of two edges with the weights 1 and 0."""
    table = np.zeros(2, np.int64)
    table.view(np.float32)[::2], table.view(np.uint32)[1::2] = keep, other
    weight = np.array([1.0, 0.0])
    keeps, others = table.view(np.float32), table.view(np.uint32)
    return int(
        bounds.first_bad_alias(np.array([0, 2]), weight, np.cumsum(weight), keeps, others, 0, 1)
    )


@pytest.mark.parametrize(
    ("keep", "other", "expected"),
    [
        ([1, 0], [0, 0], -1),
        ([0.5, 0], [0, 0], -1),
        ([0.5, 0], [1, 0], 0),
        ([1, 0.5], [0, 0], 0),
        ([1, 0], [0, 1], 0),
        ([1, 0], [0, 2], 0),
        ([-(2.0**-51), 0], [0, 0], -1),
        # So little that the sums do not show it: an edge without weight once in 2^52 draws.
        ([-(2.0**-51), 0], [1, 0], 0),
    ],
)
def test_the_first_bad_entry_of_an_alias_table_is_found(
    keep: list[float], other: list[int], expected: int
) -> None:
    assert first_bad_alias(keep, other) == expected


def test_the_first_parallel_edge_is_found_within_its_list() -> None:
    indptr, indices = np.array([0, 2, 5]), np.array([4, 9, 9, 4, 9])
    for last, expected in ((5, 4), (4, -1)):
        indptr[-1] = last
        assert bounds.first_parallel(indptr, indices, np.full(10, -1)) == expected
