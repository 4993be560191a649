"""The alias tables of weighted draws, and the picks of one long list, against plain references."""

import numpy as np
import pytest
from conformance import make_csc
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_direct.graph import weights
from pyg_direct.kernels import alias as weight_tables
from pyg_direct.kernels import bounds, gaps, weighted


def alias_tables(weight):
    """Return the running sums of one list, and the two views of its alias table."""
    ptr = np.array([0, len(weight)])
    cumulative, table = np.empty(len(weight)), np.zeros(len(weight), np.int64)
    weight_tables.accumulate(ptr, weight, cumulative, 0, 1)
    keep, other = weight_tables.parts(table)
    weight_tables.fill_alias(ptr, weight, cumulative, keep, other, 0, 1)
    return cumulative, keep, other


def shares_kept(keep):
    return np.where(keep[::2] < 0, 1 + keep[::2].astype(float), keep[::2])


@pytest.mark.parametrize("aliased", [False, True])
@pytest.mark.parametrize("power", [1, 40])
def test_large_lists_equal_a_plain_reference(aliased, power):
    """One by one from the same random numbers: from the whole list, then from what is left."""
    generator = np.random.default_rng(0)
    weight = generator.random(500) ** power
    weight[generator.random(500) < 0.3] = 0
    cumulative, keep, other = alias_tables(weight)
    words = (np.uint64(6), np.uint64(7), np.uint64(8))
    picks, zero, ids = np.empty(60, np.int64), np.zeros(1, np.int64), np.empty((2, 90), np.uint64)
    weighted.draw_block(
        picks, weighted.Draws(np.empty(180), ids[0], ids[1]), 0, 1, False, 5,
        weighted.Items(
            zero, zero + 500, np.array([0, 60]), np.zeros(1), zero, np.empty((2, 0), np.int64), None
        ),
        weighted.Weights(aliased, keep, other, weight, cumulative), gaps.DrawKey(*words),
    )  # fmt: skip

    def pick(weights, slot, attempt):
        draw = gaps.uniform(slot, attempt, np.uint64(5), *words)
        running = np.cumsum(weights)
        return int(np.searchsorted(running, draw * running[-1], side="right"))

    def pick_by_alias(slot):
        scaled = gaps.uniform(slot, 0, np.uint64(5), *words) * 500
        at = int(scaled)
        return at if scaled - at < shares_kept(keep)[at] else int(other[2 * at + 1])

    draws = [pick_by_alias(j) if aliased else pick(weight, j, 0) for j in range(180)]
    expected = list(dict.fromkeys(draws))[:60]
    missing = 60 - len(expected)
    for slot in range(len(expected), 60):
        left = weight.copy()
        left[expected] = 0
        expected.append(pick(left, slot, 1))
    assert (missing > 5) == (power > 1), "both ways are taken"
    assert sorted(picks.tolist()) == sorted(expected)
    assert (weight[picks] > 0).all()


@pytest.mark.parametrize("unit", [1e-300, 1e308])
def test_lists_next_to_nothing_and_infinite_ones_are_rescaled(unit):
    """In a copy, by a power of two for each list; others stay as they are."""
    given = np.array([unit, unit / 2, unit / 2, 1.0, 3.0])
    before = given.copy()
    weight, running = weights.weights_and_sums(np.array([0, 3, 5]), given)
    assert weight_tables.SMALL <= running[2] <= weight_tables.LARGE
    assert (weight[:3] / weight[0]).tolist() == [1.0, 0.5, 0.5]
    assert (running[:3] / running[2]).tolist() == [0.5, 0.75, 1.0]
    assert (weight[3:].tolist(), running[3:].tolist()) == ([1.0, 3.0], [1.0, 4.0])
    assert np.array_equal(given, before)


def test_weights_beside_a_heavy_edge_are_summed_afresh():
    """The running sums round both 2.9 and 1.1 to 2 there."""
    weight, picked = np.array([2.0**53, 2.9, 1.1, 1.1]), np.array([0])
    cumulative = np.cumsum(weight)
    assert (cumulative - weight[0]).tolist() == [0, 2, 4, 6]
    for draw, expected in ((0.1, 1), (0.45, 1), (0.55, 1), (0.7, 2), (0.9, 3)):
        assert expected == gaps.pick_from_gaps(
            picked, 0, 1, 0, 4, weight, cumulative, 0.0, draw
        )  # fmt: skip


@pytest.mark.parametrize("slots", [5, 6, 7])
def test_draws_come_by_counter(slots):
    """Whatever else is drawn in the same group, a slot has the draw of its own counter."""
    words = (np.uint64(6), np.uint64(7), np.uint64(8))
    counter = np.array([0, 1, 2, 3, 0, 1, 2][:slots], np.uint64)
    local = np.array([4, 4, 4, 4, 9, 9, 9][:slots], np.uint64)
    out = np.empty(2 * slots)
    weighted.fill_uniform(out, counter, local, slots, *words)
    expected = [
        gaps.uniform(2 * int(i) + j, 0, owner, *words)
        for i, owner in zip(counter, local, strict=True)
        for j in range(2)
    ]
    assert out.tolist() == expected


WEIGHT = st.sampled_from([0.0, 1.0, 1.0, 0.3, 7.0, 1e9, 1e-9, 1e-40, 1e-200]) | st.floats(1e-6, 1)


@settings(max_examples=300, deadline=None)
@given(weights=st.lists(WEIGHT, min_size=1, max_size=40).filter(any))
def test_alias_tables_hold_the_law(weights):
    weight = np.array(weights)
    _, keep, other = alias_tables(weight)
    kept, law = shares_kept(keep), weight / weight.sum()
    chance = kept.copy()
    np.add.at(chance, other[1::2].astype(int), 1 - kept)
    chance /= len(weight)
    assert (chance[weight == 0] == 0).all()
    assert (chance[weight > 0] > 0).all()
    # Below 2^-53 a share is less than one of the draws that there are.
    assert (np.abs(chance - law) <= law * 2.0**-23.9 + 2.0**-52).all()


def test_alias_tables_do_not_add_up_roundings():
    """A million slots each give a little to one edge: their roundings all go the same way."""
    weight = np.ones(1_000_001)
    weight[5] = 2
    _, keep, other = alias_tables(weight)
    given = (1 - shares_kept(keep))[other[1::2] == 5].sum()
    assert abs((1 + given) / len(weight) * weight.sum() / 2 - 1) < 2.0**-23


def test_alias_tables_of_many_lists():
    """Every list for itself, however the lists are shared out; lists without weight are left."""
    weight = np.array([1.0, 5.0, 2.0, 0.0, 0.0, 3.0, 1.0, 1.0])
    ptr = np.array([0, 3, 3, 5, 7, 8])
    cumulative, table = np.empty(8), np.full(8, -1)
    weight_tables.accumulate(ptr, weight, cumulative, 0, 5)
    for first, last in ((3, 5), (0, 3)):
        weight_tables.fill_alias(ptr, weight, cumulative, *weight_tables.parts(table), first, last)
    keep, other = weight_tables.parts(table)
    assert keep[[0, 2, 4]].tolist() == [0.375, 1.0, -0.25]
    assert other[[1, 5]].tolist() == [1, 1]
    assert table[3:5].tolist() == [-1, -1]
    assert (keep[10], keep[12], other[13], keep[14]) == (1.0, 0.5, 0, 1.0)


@pytest.mark.parametrize("threads", [1, 3])
def test_threads_share_the_lists(monkeypatch, threads):
    """Relations 0 and 2 have weights, so their lists have tables, and those of 1 have none."""
    csc = make_csc(np.random.default_rng(1), [30, 20], [(1, 0, 300), (0, 1, 200), (1, 1, 100)])
    weight = np.random.default_rng(2).random(600)
    cumulative, table, lists = np.empty(600), np.zeros(600, np.int64), len(csc.indptr) - 1
    weight_tables.accumulate(csc.indptr, weight, cumulative, 0, lists)
    weight_tables.fill_alias(csc.indptr, weight, cumulative, *weight_tables.parts(table), 0, lists)
    assert (table[[0, 299, 300, 499, 500, 599]] != 0).all()
    table[300:500] = 0
    monkeypatch.setattr(weights, "MIN_EDGES_PER_THREAD", 1)
    monkeypatch.setattr(weights, "available_cores", lambda: threads)
    found = weights.with_weights(csc, weight, np.array([True, False, True]))
    assert found.weights.alias.tolist() == table.tolist()
    assert found.weights.cumulative.tolist() == cumulative.tolist()


@given(
    st.lists(
        st.lists(st.sampled_from([0.0, 1e-320, 1e-30, 0.1, 1.0, 3.0, 7e5, 1e300]), max_size=40),
        max_size=8,
    )
)
@settings(max_examples=100, deadline=None)
def test_all_tables_that_are_made_are_found_right(lists):
    ptr = np.cumsum([0, *map(len, lists)])
    weight, cumulative = weights.weights_and_sums(ptr, np.concatenate([[], *lists]))
    table = np.zeros(len(weight), np.int64)
    weights.fill_alias_tables(ptr, weight, cumulative, table)
    tables = (ptr, weight, cumulative)
    assert bounds.first_bad_weights(*tables, 0, len(lists)) == -1
    assert bounds.first_bad_alias(*tables, *weight_tables.parts(table), 0, len(lists)) == -1
    for v, given_weights in enumerate(lists):
        if not sum(given_weights[1:]) > 1e-3 * sum(given_weights):
            continue  # the first edge gets next to all in any case
        wrong = (
            table.copy()
        )  # all slots give to the first edge, as a table that was never filled in
        wrong[ptr[v] : ptr[v + 1]] = 0
        assert bounds.first_bad_alias(*tables, *weight_tables.parts(wrong), 0, len(lists)) == v


def test_the_example_of_a_right_alias_table():
    ptr, weight = np.array([0, 2]), np.array([1.0, 3.0])
    keep, other = np.array([0.5, 0, 1, 0], np.float32), np.array([0, 1, 0, 9], np.uint32)
    assert bounds.first_bad_alias(ptr, weight, np.cumsum(weight), keep, other, 0, 1) == -1
    keep[0] = 0.49
    assert bounds.first_bad_alias(ptr, weight, np.cumsum(weight), keep, other, 0, 1) == 0


@pytest.mark.parametrize("power", [1, 30])
def test_the_table_of_a_long_list_is_found_right(power):
    generator = np.random.default_rng(0)
    given_weights = generator.random(300_000) ** power * (generator.random(300_000) > 0.3)
    ptr = np.array([0, len(given_weights)])
    weight, cumulative = weights.weights_and_sums(ptr, given_weights)
    parts = weight_tables.parts(weights.alias_table_of(given_weights))
    assert bounds.first_bad_alias(ptr, weight, cumulative, *parts, 0, 1) == -1
