"""Launches of different grids, with limits of their own, which are low: small hops meet them.

Kernels that share prefix sums or scratch must have the same grid, whatever the place of the graph.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from conformance import (
    PALETTES,
    Case,
    assert_same,
    make_csc,
    replace_plan,
    run,
    uniform_plan,
    with_excluded_edges,
    with_seed_times,
    with_times,
    with_weights,
)
from emulator import emulated

from pyg_direct.core.types import BatchKey
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import tuning

SEEDS = 900  # of 32 threads and 4 numbers each, prefix sums would have eight blocks
LIMITS = {"HOST_BLOCKS": 2, "MAX_SCAN_BLOCKS": 3, "MAX_BLOCKS": 5, "ONE_BLOCK_ROUNDS": 0}


def case_of(fanouts: Any = ((3, 1), (1, 2)), **plan: Any) -> Case:
    rng = np.random.default_rng(0)
    csc = make_csc(rng, [700, 600], [(0, 0, 3000), (1, 0, 2000)], hub=True)
    law = replace_plan(uniform_plan(np.array(fanouts)), **plan)
    seeds = [torch.from_numpy(rng.integers(0, 700, SEEDS)), None]
    return Case(csc, law, seeds, BatchKey(5, 6))


def dense() -> Case:
    """Return a case in which every warp draws from lists that are longer than a large fan-out."""
    case = case_of([[40, 0]])
    csc = make_csc(np.random.default_rng(0), [60, 1], [(0, 0, 6000), (1, 0, 0)])
    return replace(case, csc=csc, seeds=[torch.arange(180) % 60, None])


def timed(**plan: Any) -> Case:
    rng, case = np.random.default_rng(1), case_of(**plan)
    return with_seed_times(rng, case, with_times(rng, case.csc, True))


def weighted(case: Case) -> Case:
    return replace(case, csc=with_weights(np.random.default_rng(2), case.csc, PALETTES[1]))


CASES = {
    "uniform": case_of(), "with replacement": case_of(replace=True),
    "large fan-outs": case_of([[70, 1], [1, 40]]), "long lists": dense(),
    "all neighbours": case_of([[-1, 1], [1, 1]]),
    "disjoint": case_of(disjoint=True), "labor": case_of(labor=True), "times": timed(),
    "induced": replace(case_of(), induced=True), "weights": weighted(case_of()),
    "weights with replacement": weighted(case_of(replace=True)),
    "excluded": with_excluded_edges(np.random.default_rng(3), case_of()),
}  # fmt: skip


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("name", CASES)
def test_hops_of_more_blocks_than_a_launch_may_have(
    name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (expected,) = run(CpuBackend(), CASES[name])
    for limit, blocks in LIMITS.items():
        monkeypatch.setattr(tuning, limit, blocks)
    with emulated(block_threads=32) as backend:
        whole = backend.memory.place_graph
        monkeypatch.setattr(backend.memory, "place_graph", lambda csc: whole(csc, place))
        (got,) = run(backend, CASES[name])
        assert_same(got, expected)


@pytest.mark.parametrize("place", ["device", "host"])
def test_draws_of_more_blocks_than_a_launch_may_have(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES["uniform"]
    (expected,) = run(CpuBackend(), case)
    for limit, blocks in LIMITS.items():
        monkeypatch.setattr(tuning, limit, blocks)
    with emulated(block_threads=32) as backend:
        csc = backend.memory.place_graph(case.csc, place)
        work, other = backend.workspace(csc, case.plan), backend.workspace(csc, case.plan)
        assert work.begin(case.seeds, case.key)
        for hop in range(2):
            work.enter(hop, other.draw(hop, work.frontier(hop), case.key))
        assert_same(work.finish(), expected)


def test_a_link_that_takes_more_gets_more_blocks() -> None:
    assert tuning.host_blocks(None) == tuning.HOST_BLOCKS == 32
    assert tuning.host_blocks(tuning.LINK_BYTES_UNDER_WAY // 3) == 32
    assert tuning.host_blocks(tuning.LINK_BYTES_UNDER_WAY) == 32
    assert tuning.host_blocks(4 * tuning.LINK_BYTES_UNDER_WAY) == 128


@pytest.mark.parametrize(("measured", "blocks"), [(None, 2), (500_000, 10)])
def test_blocks_that_sample_from_host_memory_rise_with_a_faster_link(
    measured: int | None, blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faster link that was measured raises them, as it does those of a gather."""
    case = CASES["uniform"]
    for limit, most in LIMITS.items():
        monkeypatch.setattr(tuning, limit, most)
    with emulated(block_threads=32) as backend:
        monkeypatch.setattr(backend.library.compiler, "link_bytes_under_way", measured)
        csc = backend.memory.place_graph(case.csc, "host")
        assert backend.workspace(csc, case.plan)._graph_grids.loop(1 << 20) == blocks
