"""Negative controls: the tests of `laws.py` fail on samplers with known faults."""

import itertools

import numpy as np
import pytest
import torch
import torch_geometric.typing
from laws import (
    THRESHOLD,
    chi_square,
    independence,
    lag_one,
    mean_of_features,
    overlap,
    pairs,
    same_counts,
    same_distribution,
    single_inclusion,
    single_inclusion_with_replacement,
    star,
)

R = 20_000
NO_ALARM = THRESHOLD


def fair(d: int, k: int, seed: int = 0, r: int = R) -> np.ndarray:
    """Return an exact sample, by sorting random numbers."""
    return np.random.default_rng(seed).random((r, d)).argsort(1)[:, :k]


def floyd(words: np.ndarray, d: int) -> np.ndarray:
    """Floyd's algorithm over given random numbers [R, k], by modulo."""
    r, k = words.shape
    picks = np.full((r, k), -1)
    for j in range(k):
        top = d - k + j
        pick = words[:, j] % (top + 1)
        picks[:, j] = np.where((picks == pick[:, None]).any(1), top, pick)
    return picks


@pytest.mark.parametrize(("d", "k"), [(7, 3), (50, 15), (200, 80)])
def test_no_alarm_for_a_fair_sampler(d: int, k: int) -> None:
    one, other = fair(d, k), fair(d, k, 1)
    for law in (single_inclusion, pairs, mean_of_features):
        assert law(one, d) > NO_ALARM
    assert overlap(one, other, d) > NO_ALARM
    wide = np.random.default_rng(0).integers(0, 2**32, (R, k))
    assert single_inclusion(floyd(wide, d), d) > NO_ALARM
    assert single_inclusion_with_replacement(wide % d, d) > NO_ALARM
    assert independence(wide[:, 0] % 7, wide[:, 1] % 7, 7) > NO_ALARM


def test_modulo_of_a_small_range() -> None:
    words = np.random.default_rng(0).integers(0, 256, (R, 15))
    assert single_inclusion(floyd(words, 50), 50) < THRESHOLD
    assert single_inclusion_with_replacement(words % 50, 50) < THRESHOLD


def test_the_same_random_numbers_for_all_seeds() -> None:
    words = np.random.default_rng(0).integers(0, 2**32, (1, 15))
    picks = np.repeat(floyd(words, 50), R, 0)
    assert single_inclusion(picks, 50) < THRESHOLD
    assert overlap(picks[::2], picks[1::2], 50) < THRESHOLD
    # Fair one by one, the same for two neighbours: only the test between seeds can tell.
    twins = np.repeat(fair(50, 15, r=R // 2), 2, 0)
    assert overlap(twins[::2], twins[1::2], 50) < THRESHOLD


def test_two_hops_with_the_same_random_numbers() -> None:
    hop = fair(7, 3)
    assert overlap(hop, hop, 7) < THRESHOLD
    mostly = np.where(np.arange(R)[:, None] % 10 > 0, fair(7, 3, 1), hop)  # one in ten
    assert overlap(hop, mostly, 7) < THRESHOLD


@pytest.mark.parametrize(("d", "k"), [(7, 3), (50, 15), (200, 80)])
def test_first_k_now_and_then(d: int, k: int) -> None:
    picks = fair(d, k)
    picks[: R // 50] = np.arange(k)
    assert single_inclusion(picks, d) < THRESHOLD
    assert mean_of_features(picks, d) < THRESHOLD or pairs(picks, d) < THRESHOLD


def test_windows_are_fair_one_by_one_but_not_in_pairs() -> None:
    start = np.random.default_rng(0).permutation(np.arange(R) % 50)
    picks = (start[:, None] + np.arange(15)) % 50
    assert pairs(picks, 50) < THRESHOLD
    assert mean_of_features(picks, 50) < THRESHOLD


def test_floyd_without_the_collision_rule() -> None:
    """A draw that was picked before takes another free entry instead of the top one."""
    r, d, k = R, 7, 3
    rng = np.random.default_rng(0)
    picks = np.full((r, k), -1)
    for j in range(k):
        pick = rng.integers(0, d - k + j + 1, r)
        for _ in range(d):
            taken = (picks == pick[:, None]).any(1)
            pick = np.where(taken, (pick + 1) % (d - k + j + 1), pick)
        picks[:, j] = pick
    assert single_inclusion(picks, d) < THRESHOLD


def test_too_even_is_wrong_too() -> None:
    """Rotating through the list gives counts that no random draw gives."""
    picks = (np.arange(R)[:, None] * 3 + np.arange(3)) % 7
    assert single_inclusion(picks[: R // 7 * 7], 7) < THRESHOLD


def test_laws_catch_correlated_slots() -> None:
    one = np.random.default_rng(0).integers(0, 7, R)
    other = np.where(np.arange(R) % 20 == 0, one, np.random.default_rng(1).integers(0, 7, R))
    assert single_inclusion_with_replacement(other[:, None], 7) > NO_ALARM
    assert independence(one, other, 7) < THRESHOLD


def test_laws_catch_correlated_batches() -> None:
    d, k = 20, 6
    drawn = fair(d, k, r=4000)
    again = np.random.default_rng(1).random(4000) < 0.05
    for i in itertools.compress(range(1, 4000), again[1:]):
        drawn[i] = drawn[i - 1]
    member = np.zeros((4000, d), bool)
    member[np.arange(4000)[:, None], drawn] = True
    assert lag_one(member, k / d) < THRESHOLD
    assert overlap(drawn[:-1:2], drawn[1::2], d) < THRESHOLD


def test_laws_catch_two_different_samples() -> None:
    rng = np.random.default_rng(0)
    assert same_distribution(rng.integers(0, 9, 1500), rng.integers(0, 10, 1500) + 1) < THRESHOLD
    one = np.bincount(rng.integers(0, 12, 9000), minlength=12)
    other = np.bincount(rng.integers(0, 13, 9000) % 12, minlength=12)
    assert same_counts(one, other) < THRESHOLD
    assert same_counts(one, one) > NO_ALARM
    assert chi_square(other, np.full(12, 750)) < THRESHOLD


@pytest.mark.skipif(
    not torch_geometric.typing.WITH_TORCH_SPARSE or torch_geometric.typing.WITH_PYG_LIB,
    reason="needs PyG's loader to run on torch_sparse",
)
@pytest.mark.parametrize(("d", "k"), [(7, 3), (50, 15)])
def test_torch_sparse_is_biased(pyg_loader: type, d: int, k: int) -> None:
    """Its sampler draws the last neighbours of a list too rarely, and the tests see it."""
    nodes = torch.arange(d, d + R)
    (batch,) = pyg_loader(star(R, d), [k], input_nodes=nodes, batch_size=R)
    picks = (batch.e_id.numpy() % d).reshape(R, k)
    assert single_inclusion(picks, d) < THRESHOLD
    assert (picks >= d - k).mean() < 0.97 * k / d
