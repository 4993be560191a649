"""Sampling by time and by weight: the kernels, emulated, give the CPU backend's batches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import (
    EPOCH,
    PALETTES,
    PLANS,
    SPAN,
    Case,
    attributed_cases,
    check_case,
    fanouts_of,
    homogeneous,
    make_csc,
    make_seeds,
    replace_plan,
    run,
    uniform_plan,
    with_seed_times,
    with_times,
    with_weights,
    with_windows,
)
from emulator import ORDERS, EmulatorError, emulated
from hypothesis import given, settings
from hypothesis import strategies as st

from pyg_direct.core.types import EDGE_TIME, BatchKey, Csc, Rules, TimeTable
from pyg_direct.graph.weights import with_weights as weigh
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda.source import read_source


def timed(fanouts: Sequence[int], by_edge: bool, **plan: object) -> Case:
    rng = np.random.default_rng(1)
    case = homogeneous(fanouts, plan=plan)
    return with_seed_times(rng, case, with_times(rng, case.csc, by_edge))


def weighted(fanouts: Sequence[int], palette: Sequence[float], **plan: object) -> Case:
    case = homogeneous(fanouts, plan=plan)
    return replace(case, csc=with_weights(np.random.default_rng(2), case.csc, palette))


def both(fanouts: Sequence[int], palette: Sequence[float], **plan: object) -> Case:
    case = timed(fanouts, by_edge=True, **plan)
    return replace(case, csc=with_weights(np.random.default_rng(2), case.csc, palette))


# Of the fan-outs each test takes a part, such that each value of its arguments meets all of them.
ALL = pytest.mark.parametrize("all_fanouts", [False, pytest.param(True, marks=pytest.mark.slow)])


@given(case=attributed_cases(), order=st.sampled_from(ORDERS))
@settings(max_examples=settings().max_examples // 2)
def test_any_graph(case: Case, order: int) -> None:
    with emulated(order=order) as backend:
        check_case(backend, case, batches=2)


@ALL
@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("recent", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_every_fanout_by_time(
    by_edge: bool, recent: bool, replace: bool, all_fanouts: bool
) -> None:
    with emulated() as backend:
        for fanout in fanouts_of(by_edge + recent + replace, 1 if all_fanouts else 2):
            check_case(backend, timed([fanout, 3], by_edge, recent=recent, replace=replace))


@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("recent", [False, True])
@pytest.mark.parametrize("replace", [False, True])
def test_windows_of_single_seeds(by_edge: bool, recent: bool, replace: bool) -> None:
    case = both([3, -1, 2], PALETTES[0], recent=recent, replace=replace)
    case = timed([3, -1, 2], by_edge, recent=recent, replace=replace) if not by_edge else case
    rng = np.random.default_rng(5)
    with emulated() as backend:
        for induced in (False, True):
            check_case(backend, with_windows(rng, dataclasses.replace(case, induced=induced)))


def test_times_cut_the_lists() -> None:
    """The cases above would show nothing if all or no neighbours were in the past."""
    sizes = []
    for seed_time in (-1, SPAN // 2, SPAN):
        case = timed([-1], by_edge=True)
        case = replace(case, seed_time=torch.full_like(case.seed_time, EPOCH + seed_time))
        with emulated() as backend:
            check_case(backend, case)
            sizes.append(len(run(backend, case)[0].edge[0]))
    assert sizes[0] == 0
    assert 0.4 * sizes[2] < sizes[1] < 0.6 * sizes[2]


@ALL
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("palette", PALETTES)
def test_every_fanout_by_weight(
    palette: Sequence[float], plan: dict[str, object], all_fanouts: bool
) -> None:
    number = PALETTES.index(palette) + PLANS.index(plan)
    with emulated() as backend:
        for fanout in fanouts_of(number, 1 if all_fanouts else 4):
            check_case(backend, weighted([fanout, 3], palette, **plan))


@ALL
@pytest.mark.parametrize("palette", PALETTES)
@pytest.mark.parametrize("replace", [False, True])
def test_the_latest_by_weight(palette: Sequence[float], replace: bool, all_fanouts: bool) -> None:
    """Items that begin inside a list draw from the weights behind their beginning."""
    number = PALETTES.index(palette) + replace
    with emulated() as backend:
        for fanout in fanouts_of(number, 1 if all_fanouts else 2):
            case = both([fanout, 3], palette, recent=True, replace=replace)
            check_case(backend, case, batches=2)


def test_lists_of_many_weights() -> None:
    """Long lists, whose last bits depend on the order of the sums."""
    rng = np.random.default_rng(5)
    case = homogeneous([60, 7], num_nodes=6, num_edges=6000, seeds=6)
    weight = rng.random(6000) ** 9
    csc = weigh(case.csc, weight, np.ones(1, np.bool_))
    for changes in PLANS:
        with emulated() as backend:
            plan = replace_plan(case.plan, **changes)
            check_case(backend, replace(case, csc=csc, plan=plan), batches=3)


def test_the_last_bits_of_a_draw() -> None:
    """A list so long, and no power of two, that some draws depend on the second of two words."""
    size, one = 3_000_001, np.zeros(1, np.int64)
    weight = np.ones(size)
    csc = Csc(
        np.array([0, size]), np.zeros(size, np.int32), None, one, one, one, np.array([0, size]),
        np.ones(1, np.int64),
    )  # fmt: skip
    csc = weigh(csc, weight, np.ones(1, np.bool_))
    plan = uniform_plan(np.array([[32]]), replace=True)
    case = Case(csc, plan, [torch.zeros(80, dtype=torch.int64)], BatchKey(1, 2))
    with emulated() as backend:
        check_case(backend, case)
    mistake = ("high >> 5) << 26 | low >> 6", "high >> 5) << 26")
    with emulated(planted=[mistake]) as backend, pytest.raises(AssertionError):
        check_case(backend, case)


@pytest.mark.parametrize("replace", [False, True])
def test_a_part_of_a_list_with_next_to_no_weight(replace: bool) -> None:
    """Half of the draws are rounded past its one weight, behind which stands a 0."""
    zero = np.zeros(1, np.int64)
    csc = Csc(
        np.array([0, 3]), np.zeros(3, np.int32), None, zero, zero, zero, np.array([0, 3]),
        np.ones(1, np.int64), times=TimeTable(np.array([1, 1, 5]), zero + EDGE_TIME),
    )  # fmt: skip
    csc = weigh(csc, np.array([5e-324, 0.0, 1.0]), np.ones(1, np.bool_))
    seeds, plan = torch.zeros(9, dtype=torch.int64), uniform_plan(np.array([[2]]), disjoint=True)
    case = Case(csc, plan._replace(replace=replace), [seeds], BatchKey(1, 2), seed_time=seeds + 2)
    with emulated() as backend:
        check_case(backend, case)
        picks = run(backend, case)[0].edge[0].tolist()
    assert picks == [0] * (18 if replace else 9)


@pytest.mark.parametrize("by_edge", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_heterogeneous_batches_with_times_and_weights_are_those_of_the_cpu(
    by_edge: bool, order: int
) -> None:
    """Relations bound by time or not, with weights or not, in every combination."""
    rng = np.random.default_rng(3)
    relations = [(0, 1, 300), (1, 0, 200), (0, 0, 150), (2, 1, 0), (1, 0, 90), (3, 0, 50)]
    csc = make_csc(rng, [40, 25, 0, 7], relations, hub=True)
    csc = with_weights(rng, csc, PALETTES[0], [True, False, True, True, False, False])
    csc = with_times(rng, csc, by_edge, [True, True, False, True, False, True])
    fanouts = np.array([[3, -1, 40, 5, 9, 2], [10, 2, -1, 5, 1, 4], [1, 1, 1, 1, 1, 1]])
    for changes in ({}, {"replace": True}, {"recent": True}):
        plan = replace_plan(uniform_plan(fanouts), **changes)
        case = Case(csc, plan, make_seeds(rng, csc, [6, 9, None, 2]), BatchKey(1, 2))
        with emulated(order=order) as backend:
            check_case(backend, with_seed_times(rng, case, csc), batches=2)


def test_timed_and_weighted_batches_of_several_blocks_are_those_of_the_cpu() -> None:
    rng = np.random.default_rng(6)
    case = homogeneous([12, 4], num_nodes=700, num_edges=9000, seeds=150)
    timed = with_seed_times(rng, case, with_times(rng, case.csc, by_edge=False))
    timed = replace(timed, csc=with_weights(rng, timed.csc, PALETTES[0]))
    for order in ORDERS:
        with emulated(block_threads=32, order=order) as backend:
            check_case(backend, timed)


def test_a_workspace_forgets_the_times_of_the_batch_before() -> None:
    case = timed([4, 3], by_edge=False)
    with emulated() as backend:
        mine = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        theirs = CpuBackend().workspace(case.csc, case.plan)
        for size in (20, 3, 0, 20):
            sampled = []
            for work in (mine, theirs):
                work.begin([case.seeds[0][:size]], case.key, Rules(case.seed_time[-size:][:size]))
                for hop in range(2):
                    work.hop(hop)
                sampled.append(work.finish())
            assert [e.tolist() for e in sampled[0].edge] == [e.tolist() for e in sampled[1].edge]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("time[at] <= latest", "time[at] < latest"),
        ("base + static_cast<i64>(graph.indices", "static_cast<i64>(graph.indices"),
        ("rank = span.start + span.degree - k;", "rank = span.start;"),
        ("seed_time[subgraph]", "seed_time[0]"),
        ("seed_since[subgraph] - 1", "seed_since[subgraph]"),
        ("seed_since[subgraph] > kLeast", "seed_since[0] > kLeast"),
        ("span.start += early;", ""),
        ("span.start > list ? static_cast<f64>(graph.cumulative[span.start - 1]) : 0.0;", "0.0;"),
        ("if (weights.low > 0.0)", "if (weights.low < 0.0)"),
        ("found += batch.graph.weight[p] > 0.0;", "++found;"),
        ("if (left > tiny)", "if (true)"),
        ("if (cumulative[middle] > target)", "if (cumulative[middle] > target + target)"),
        ("slot & 1 ? words.word[2] : words.word[0]", "words.word[0]"),
        ("if (!batch->graph.weighted[r] || at.fanout[r] < 0)", "if (at.fanout[r] < 0)"),
        ("position[at - 1] > chosen", "false"),
        ("is_new = position[first + i] != chosen", "is_new = true"),
        ("if (degree > kSeenBits && !is_new)", "if (false)"),
        ("seen |= bit;", ""),
        ("(from_all ? kDrawsPerPick * k : 0)", "(kDrawsPerPick * k)"),
        ("static_cast<i64>(entry >> 32)", "static_cast<i64>(entry >> 33)"),
        ("stored < 0.0 ? stored + 1.0 : stored", "stored"),
        ("graph.time_base[item.relation] == kNoTime,", "true,"),
        ("kDrawsPerPick = 3", "kDrawsPerPick = 2"),
        ("draw_unit(stream, static_cast<u32>(j), 1)", "draw_unit(stream, static_cast<u32>(j), 0)"),
    ],
)  # fmt: skip
def test_mistakes_are_caught(old: str, new: str) -> None:
    assert any(old in read_source(file) for file in ("sample.cu", "weighted.cu")), "nothing to do"
    rng = np.random.default_rng(8)
    csc = make_csc(rng, [30, 20], [(1, 0, 300), (0, 1, 300), (1, 1, 200)], hub=True)
    csc = with_times(rng, csc, by_edge=False, bound=[True, False, True])
    seeds = make_seeds(rng, csc, [10, 10])

    def check_all() -> None:
        with emulated(planted=[(old, new)]) as backend:
            for palette in (PALETTES[0], PALETTES[2], PALETTES[3]):
                graph = with_weights(rng, csc, palette, [True, True, False])
                for changes in ({}, {"recent": True}, {"recent": True, "replace": True}):
                    plan = replace_plan(uniform_plan(np.array([[3, 5, 2], [40, 2, 2]])), **changes)
                    case = with_seed_times(rng, Case(graph, plan, seeds, BatchKey(5, 6)), graph)
                    case = with_windows(rng, case)
                    check_case(backend, case, batches=2)

    with pytest.raises((AssertionError, EmulatorError)):
        check_all()
