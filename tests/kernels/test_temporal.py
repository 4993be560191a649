"""The CPU's search for the part of a list that is not too late, and for the latest of it."""

import re

import numpy as np
import pytest

from pyg_direct.core import types
from pyg_direct.core.types import EDGE_TIME
from pyg_direct.kernels import temporal
from pyg_direct.ops.cuda.source import source_folder


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize("by_edge", [False, True])
def test_count_until_counts_entries_not_later_than_the_seed(by_edge: bool) -> None:
    """Times 3, 5, 5, 9 and a seed of time 5 leave 3; so for lists of all lengths and times."""
    random = np.random.default_rng(3)
    lengths = np.concatenate([[4], np.arange(3 * temporal.LANES + 5), [5000, 0, 1, 0]])
    start = np.cumsum(lengths) - lengths
    lists = [np.sort(random.integers(0, 40, n)) for n in lengths]
    lists[0] = ints(3, 5, 5, 9)
    times = np.concatenate(lists)
    until = np.concatenate([[5], random.integers(-1, 42, len(lengths) - 1)])
    expected = [np.searchsorted(t, u, "right") for t, u in zip(lists, until, strict=True)]
    # What lies behind the last list is early: an empty list that is looked at grows.
    time, indices = np.concatenate([times, [-9]]), np.arange(len(times) + 1)
    base = EDGE_TIME
    if not by_edge:
        order = random.permutation(len(time))
        base, indices, time = 2, np.argsort(order), np.concatenate([[0, 0], time[order]])
    groups = random.permutation(len(until))  # the subgraph of each list
    seed_time = np.empty_like(until)
    seed_time[groups] = until
    degree = np.concatenate([[-7], lengths, [-7]])
    temporal.count_until(
        np.concatenate([[0], start]), degree, 1, 1 + len(lengths), np.concatenate([[0, 0], groups]),
        2, seed_time, indices, time, base,
    )  # fmt: skip
    assert degree.tolist() == [-7, *expected, -7]
    assert expected[0] == 3


def test_the_latest_neighbours_are_counted_without_excluded_ones() -> None:
    """Positions 0 to 3 without position 1: the latest is 3, before which lies a weight of 3."""
    excluded, span = ints(1), np.array([[0], [1]])
    start, degree, low = ints(0), ints(3), np.zeros(1)
    temporal.keep_latest(
        ints(1), ints(EDGE_TIME), np.ones(1, np.bool_), True, np.ones(4), np.arange(1.0, 5.0),
        excluded, span, ints(0, 1), start, degree, low,
    )  # fmt: skip
    assert (start.tolist(), degree.tolist(), low.tolist()) == ([3], [1], [3.0])
    assert span.tolist() == [[1], [1]], "none of those that are left is excluded"


def test_sentinels_are_the_same_everywhere() -> None:
    source = (source_folder() / "times.cuh").read_text()
    edge_time, no_time = map(int, re.findall(r"kEdgeTime = (-?\d+), kNoTime = (-?\d+);", source)[0])
    assert edge_time == types.EDGE_TIME
    assert no_time == types.NO_TIME == temporal.NO_TIME
