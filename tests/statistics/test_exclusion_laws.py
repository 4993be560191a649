"""Draws without the seed edges follow the law of the lists that are left."""

from typing import Any

import numpy as np
import pytest
import torch
from laws import THRESHOLD, chi_square, pairs, single_inclusion, star
from torch_geometric.sampler import EdgeSamplerInput

from pyg_direct import NeighborSampler

HUBS, DEGREE, LEAF = 6_000, 9, 4  # every hub has the neighbours 0 to 8; the links come from 4


def drawn(k: int, mode: Any, **options: Any) -> list[np.ndarray]:
    """Return the neighbours that each hub drew, as the link from LEAF to it was predicted."""
    data = star(HUBS, DEGREE)
    data.weight = 1.0 + (data.edge_index[0] % 4)
    data.time = data.edge_index[0].clone()
    time = torch.full((HUBS,), LEAF) if "time_attr" in options else None
    sampler = NeighborSampler(data, [k], exclude_seed_edges=mode, seed=2, **options)
    hubs = DEGREE + torch.arange(HUBS)
    links = EdgeSamplerInput(None, torch.full((HUBS,), LEAF), hubs, time=time)
    out: Any = sampler.sample_from_edges(links)
    source, hub = out.node[out.row].numpy(), out.node[out.col].numpy()
    order = np.argsort(hub, kind="stable")
    return np.split(source[order], np.cumsum(np.bincount(hub - DEGREE, minlength=HUBS))[:-1])


def renumbered(picks: list[np.ndarray]) -> np.ndarray:
    """Return the picks as places in the list without LEAF."""
    table = np.stack(picks)
    assert (table != LEAF).all()
    return table - (table > LEAF)


@pytest.mark.parametrize("disjoint", [False, True])
@pytest.mark.parametrize("k", [1, 3, 7])
def test_every_subset_of_what_is_left_is_equally_likely(k: int, disjoint: bool) -> None:
    picks = renumbered(drawn(k, "self", disjoint=disjoint))
    assert picks.shape == (HUBS, k)
    assert single_inclusion(picks, DEGREE - 1) > THRESHOLD
    assert pairs(picks, DEGREE - 1) > THRESHOLD


def test_drawing_first_and_dropping_then_is_noticed() -> None:
    """As other libraries do: hubs that drew the link are left with fewer neighbours."""
    whole = drawn(3, None)
    left = [picks[picks != LEAF] for picks in whole]
    sizes = np.bincount([len(picks) for picks in left], minlength=4)
    assert chi_square(sizes[2:], HUBS * np.array([1 / 3, 2 / 3])) > THRESHOLD
    kept = drawn(3, "self")
    assert all(len(picks) == 3 for picks in kept)
    # Another wrong law: what is out is replaced by its neighbour in the list.
    moved = np.stack([np.where(picks == LEAF, LEAF + 1, picks) for picks in whole])
    assert single_inclusion(moved - (moved > LEAF), DEGREE - 1) < THRESHOLD


def weights_left() -> np.ndarray:
    return np.delete(1.0 + np.arange(DEGREE) % 4, LEAF)


@pytest.mark.parametrize("replace", [False, True])
def test_draws_by_weight(replace: bool) -> None:
    """One draw of each hub goes by the weights that are left."""
    picks = renumbered(drawn(1, "self", weight_attr="weight", replace=replace)).ravel()
    weight = weights_left()
    seen = np.bincount(picks, minlength=DEGREE - 1)
    assert chi_square(seen, weight / weight.sum() * HUBS) > THRESHOLD
    # Negative control: the weight of what is out went to the next edge of the list.
    wrong = weight.copy()
    wrong[LEAF] += 1.0 + LEAF % 4
    assert chi_square(seen, wrong / wrong.sum() * HUBS) < THRESHOLD


def test_successive_draws_by_weight() -> None:
    """The last of two picks, given the first: by what is left. Inclusion of both together."""
    picks = renumbered(drawn(2, "self", weight_attr="weight"))
    w = weights_left() / weights_left().sum()
    together = np.zeros((DEGREE - 1, DEGREE - 1))
    np.add.at(together, (picks.min(1), picks.max(1)), 1)
    law = w[:, None] * w[None] * (1 / (1 - w[:, None]) + 1 / (1 - w[None]))
    above = np.triu_indices(DEGREE - 1, 1)
    assert law[above].sum() == pytest.approx(1)
    assert chi_square(together[above], law[above] * HUBS) > THRESHOLD
    even = np.full(len(above[0]), HUBS / len(above[0]))
    assert chi_square(together[above], even) < THRESHOLD


@pytest.mark.parametrize("window", [None, 2])
def test_draws_from_the_past(window: int | None) -> None:
    """Neighbour i has time i; the link's edge is the latest one: 0 to 3 are left, or 2 and 3."""
    options = {"time_attr": "time", "time_window": window}
    picks = np.stack(drawn(1, "self", **options)).ravel()
    first = 0 if window is None else LEAF - window
    seen = np.bincount(picks, minlength=LEAF)
    assert seen[:first].sum() == 0
    assert len(seen) == LEAF
    assert chi_square(seen[first:], np.full(LEAF - first, HUBS / (LEAF - first))) > THRESHOLD
    assert np.bincount(np.stack(drawn(1, None, **options)).ravel())[LEAF] > 0
