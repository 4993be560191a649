"""Simulated caches against brute force, and against the rows that kernels find."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from emulator import emulated, give_to_loaders
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.data import Data

from benchmarks.cache_policies import belady_misses, static_misses
from pyg_direct import NeighborLoader


def least_misses(trace: list[np.ndarray], held: int) -> int:
    """Return the fewest misses of any cache that may keep what it or the last batch had."""
    states = {frozenset[int](): 0}
    for ids in trace:
        batch, after = frozenset(ids.tolist()), dict[frozenset[int], int]()
        for cached, misses in states.items():
            there = sorted(cached | batch)
            for kept in itertools.combinations(there, min(held, len(there))):
                total = misses + len(batch - cached)
                key = frozenset(kept)
                after[key] = min(after.get(key, total), total)
        states = after
    return min(states.values())


@settings(max_examples=80, deadline=None)
@given(
    trace=st.lists(st.sets(st.integers(0, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    held=st.integers(0, 4),
)  # fmt: skip
def test_belady_is_the_best(trace: list[set[int]], held: int) -> None:
    ids = [np.array(sorted(batch)) for batch in trace]
    assert belady_misses(ids, 6, held) == least_misses(ids, held)


def test_belady_misses_of_the_worked_example() -> None:
    assert belady_misses([np.array([0, 1]), np.array([2]), np.array([0])], 3, 1) == 3


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_simulated_hits_are_those_of_the_kernels(
    share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = Data(x=torch.randn(300, 40), edge_index=torch.randint(300, (2, 2000)))
    visits = torch.rand(300)
    slots, row_bytes, held = 4 * 300, 160, int(share * 300)
    with emulated() as backend:
        give_to_loaders(backend, monkeypatch, to_host=True)
        given: dict[str, Any] = {"features": "host", "cache": slots + held * row_bytes}
        loader = NeighborLoader(data, [4, 3], batch_size=40, seed=0, cache_policy=visits, **given)
        trace = [batch.n_id.numpy() for batch in loader]
        stats = loader.stats()
    missed = static_misses(trace, visits.numpy(), held)
    assert stats.cache_hits == sum(map(len, trace)) - missed
