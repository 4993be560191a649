"""Sampling without some edges is sampling from the graph without them."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import (
    Case,
    attributed_cases,
    cases,
    homogeneous,
    run,
    with_excluded_edges,
    with_weights,
)
from few_or_many import examples
from hypothesis import given
from hypothesis import strategies as st

from pyg_direct.core.types import Csc, SampledGraph, TimeTable
from pyg_direct.kernels import exclude
from pyg_direct.ops.cpu.backend import CpuBackend


def without(csc: Csc, position: np.ndarray) -> Csc:
    """Return the graph without some positions; edge ids stay what they were."""
    kept = np.ones(len(csc.indices), np.bool_)
    kept[position] = False
    before = np.concatenate([[0], np.cumsum(kept)])
    first = np.repeat(csc.edge_base[:-1], np.diff(csc.edge_base))
    perm = np.arange(len(kept)) - first if csc.perm is None else csc.perm
    times = csc.times
    if times is not None and len(times.time) == len(kept) and (times.base < 0).all():
        times = TimeTable(times.time[kept], times.base)
    return replace(
        csc, indptr=before[csc.indptr].astype(csc.indptr.dtype), indices=csc.indices[kept],
        perm=perm[kept].astype(np.int64), edge_base=before[csc.edge_base], times=times,
    )  # fmt: skip


def same_draws(got: SampledGraph, expected: SampledGraph) -> None:
    assert got.num_sampled_nodes == expected.num_sampled_nodes
    for name in ("node", "edge_index", "edge"):
        for a, b in zip(getattr(got, name), getattr(expected, name), strict=True):
            assert a.tolist() == b.tolist(), name


@examples(60, 200)
@given(case=cases(), seed=st.integers(0, 999), share=st.sampled_from([0.1, 0.5, 1.0]))
def test_shared_subgraphs(case: Case, seed: int, share: float) -> None:
    """Pick for pick the batch of the graph without the edges, also where all are out."""
    case = replace(case, plan=case.plan._replace(disjoint=False))
    case = with_excluded_edges(np.random.default_rng(seed), case, share)
    assert case.excluded is not None
    cut = replace(case, csc=without(case.csc, case.excluded.position.numpy()), excluded=None)
    for got, expected in zip(run(CpuBackend(), case, 2), run(CpuBackend(), cut, 2), strict=True):
        same_draws(got, expected)


def one_subgraph_only(case: Case) -> Case:
    """Return the case with its first seed alone, so that there is one subgraph."""
    seeds: list[torch.Tensor | None] = [None] * len(case.seeds)
    for t, seed in enumerate(case.seeds):
        if seed is not None and len(seed) > 0:
            seeds[t] = seed[:1]
            break
    size = sum(s is not None for s in seeds)
    time, start = (
        None if part is None else part[:size] for part in (case.seed_time, case.seed_since)
    )
    return replace(case, seeds=seeds, seed_time=time, seed_since=start)


@examples(60, 200)
@given(case=st.one_of(cases(), attributed_cases()), seed=st.integers(0, 999))
def test_one_disjoint_subgraph(case: Case, seed: int) -> None:
    """The same with times, windows and strategies."""
    plan = case.plan._replace(disjoint=True)
    case = one_subgraph_only(replace(case, plan=plan, csc=replace(case.csc, weights=None)))
    case = with_excluded_edges(np.random.default_rng(seed), case)
    assert case.excluded is not None
    cut = replace(case, csc=without(case.csc, case.excluded.position.numpy()), excluded=None)
    same_draws(run(CpuBackend(), case)[0], run(CpuBackend(), cut)[0])


@examples(40, 100)
@given(case=attributed_cases(), seed=st.integers(0, 999))
def test_disjoint_subgraphs_do_without_their_own_edges(case: Case, seed: int) -> None:
    """Every subgraph, with weights too; where all neighbours are taken, all others are there."""
    case = replace(case, plan=case.plan._replace(disjoint=True))
    case = with_excluded_edges(np.random.default_rng(seed), case)
    excluded, csc = case.excluded, case.csc
    assert excluded is not None
    found = run(CpuBackend(), case)[0]
    assert found.seed_of is not None
    for r, dst in enumerate(csc.dst_type.tolist()):
        first, last = csc.edge_base[r], csc.edge_base[r + 1]
        perm = np.arange(last - first) if csc.perm is None else csc.perm[first:last]
        place = np.empty(last - first, np.int64)
        place[perm] = np.arange(first, last)
        group = found.seed_of[dst][found.edge_index[r][1].long()]
        for edge, subgraph in zip(found.edge[r].tolist(), group.tolist(), strict=True):
            begin, end = excluded.bounds[:, subgraph].tolist()
            assert place[edge] not in excluded.position[begin:end].tolist()


@pytest.mark.parametrize("replaced", [False, True])
@pytest.mark.parametrize("fanout", [1, 3, 40, -1])
@pytest.mark.parametrize("palette", [(1.0, 2.0), (0.0, 1.0), (1e30, 1.0, 1e-30)])
def test_weighted_draws_take_no_excluded_edge_and_none_of_weight_zero(
    replaced: bool, fanout: int, palette: tuple[float, ...]
) -> None:
    """No excluded edge, none of weight 0, and as many as there are."""
    rng = np.random.default_rng(3)
    case = homogeneous([fanout, fanout], num_edges=400, plan={"replace": replaced})
    case = replace(case, csc=with_weights(rng, case.csc, palette))
    case = with_excluded_edges(rng, case, 0.5)
    assert case.excluded is not None
    assert case.csc.weights is not None
    found, out = run(CpuBackend(), case)[0], set(case.csc.perm[case.excluded.position].tolist())
    weight = np.empty(len(case.csc.indices))
    weight[case.csc.perm] = case.csc.weights.weight
    edge = found.edge[0].tolist()
    assert not out & set(edge)
    assert fanout < 0 or (weight[edge] > 0).all()
    assert found.num_sampled_edges is not None
    seeds, left = case.seeds[0], np.setdiff1d(np.arange(len(weight)), list(out))
    owner = np.empty(len(weight), np.int64)
    owner[case.csc.perm] = np.repeat(np.arange(60), np.diff(case.csc.indptr))
    usable = left if fanout < 0 else left[weight[left] > 0]
    degree = np.bincount(owner[usable], minlength=60)[seeds]
    if fanout >= 0:
        degree = np.where(degree > 0, fanout, 0) if replaced else np.minimum(degree, fanout)
    assert found.num_sampled_edges[0][0] == degree.sum()


def test_position_of_skips_excluded_entries_of_a_list() -> None:
    excluded = np.array([3, 11, 14, 20])
    assert [exclude.position_of(rank, excluded, 1, 3) for rank in range(10, 14)] == [10, 12, 13, 15]
    assert exclude.position_of(5, excluded, 2, 2) == 5


def test_find_edges_gives_the_positions_of_queried_edges() -> None:
    """With the list [9, 4, 9] of node 0, the queries (0, 4), (0, 9)."""
    ints = np.array
    graph = (ints([0, 3, 3]), 0, ints([9, 4, 9]), ints([0, 0]), ints([4, 9]))
    nothing, query, position = np.empty(0, np.int64), np.zeros(3, int), np.zeros(3, int)
    assert exclude.find_edges(*graph, nothing, nothing, query, position) == 3
    assert (query.tolist(), position.tolist()) == ([1, 0, 1], [0, 1, 2])
    assert exclude.find_edges(*graph, nothing, nothing, query[:1], position[:1]) == 3
    times, wanted = ints([5, 5, 6]), ints([5, 6])
    assert exclude.find_edges(*graph, times, wanted, query, position) == 2
    assert position[:2].tolist() == [1, 2]
