"""Windows and excluded edges: the kernels, emulated, give the CPU backend's batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from conformance import (
    FANOUTS,
    PALETTES,
    Case,
    assert_same,
    attributed_cases,
    cases,
    check_case,
    homogeneous,
    run,
    with_excluded_edges,
    with_seed_times,
    with_times,
    with_weights,
)
from emulator import ORDERS, emulated
from hypothesis import given
from hypothesis import strategies as st

from pyg_direct.ops.cpu.backend import CpuBackend


@given(
    case=st.one_of(cases(), attributed_cases()), order=st.sampled_from(ORDERS),
    seed=st.integers(0, 999), share=st.sampled_from([0.0, 0.2, 0.6, 1.0]),
)  # fmt: skip
def test_any_graph(case: Case, order: int, seed: int, share: float) -> None:
    case = with_excluded_edges(np.random.default_rng(seed), case, share)
    with emulated(order=order) as backend:
        check_case(backend, case, batches=2)


def attributed(fanout: int, kind: str, **plan: object) -> Case:
    rng = np.random.default_rng(4)
    case = homogeneous([fanout, 3], plan=plan)
    if "times" in kind:
        case = with_seed_times(rng, case, with_times(rng, case.csc, by_edge=True))
        case = replace(case, seed_since=case.seed_time - 8)
    if "weights" in kind:
        case = replace(case, csc=with_weights(rng, case.csc, PALETTES[len(kind) % 4]))
    return with_excluded_edges(rng, case, 0.4)


@pytest.mark.parametrize("kind", ["", "times", "weights", "times, weights"])
@pytest.mark.parametrize("recent", [False, True])
@pytest.mark.parametrize("replaced", [False, True])
def test_excluded_edges_of_every_fan_out_give_the_batches_of_the_cpu(
    kind: str, recent: bool, replaced: bool
) -> None:
    with emulated() as backend:
        for fanout in FANOUTS:
            check_case(backend, attributed(fanout, kind, recent=recent, replace=replaced))


def test_windows_and_exclusion_cut_the_lists() -> None:
    """The cases above would show nothing if they left all edges or none."""
    with emulated() as backend:
        case = attributed(-1, "times")
        all_ages = replace(case, seed_since=None)
        all_edges = replace(all_ages, excluded=None)
        sizes = [len(run(backend, c)[0].edge[0]) for c in (case, all_ages, all_edges)]
    assert 0 < sizes[0] < sizes[1] < sizes[2]


def test_batches_with_and_without_excluded_edges_share_a_workspace() -> None:
    """What is excluded, and how much of it, may change from batch to batch."""
    case = homogeneous([4, -1])
    rng = np.random.default_rng(5)
    variants = [with_excluded_edges(rng, case, share) for share in (0.5, 0.0, 0.9)]
    variants.append(replace(variants[0], excluded=None))
    with emulated() as backend:
        work = backend.workspace(backend.memory.place_graph(case.csc), variants[0].plan)
        for variant in variants:
            work.begin(variant.seeds, variant.key, variant.rules)
            for hop in range(2):
                work.hop(hop)
            assert work.finish().edge[0].tolist() == run(backend, variant)[0].edge[0].tolist()


def test_batches_are_right_after_excluded_edges_outgrow_the_state() -> None:
    """The state moves to longer memory while all sizes that launches depend on stay."""
    case = homogeneous([4, 3])
    rng = np.random.default_rng(5)
    variants = [with_excluded_edges(rng, case, share) for share in (0.0, 1.0)]
    rooms = set()
    with emulated() as backend:
        work = backend.workspace(backend.memory.place_graph(case.csc), variants[0].plan)
        for variant in variants:
            sampled = work.sample(variant.seeds, variant.key, variant.rules)
            assert sampled is not None
            assert_same(sampled, run(CpuBackend(), variant)[0])
            rooms.add(len(work._state._all))
    assert len(rooms) == 2, "the second state needs more room"
