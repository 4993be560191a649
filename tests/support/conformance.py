"""One body of checks for every backend: the same batches as the CPU backend's, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from pyg_direct.core.types import (
    EDGE_TIME,
    NO_TIME,
    BatchKey,
    Csc,
    ExcludedEdges,
    Rules,
    SampledGraph,
    SamplingPlan,
    TimeTable,
)
from pyg_direct.graph.weights import with_weights as weigh
from pyg_direct.ops.backend import Backend
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import tuning

EPOCH, SPAN = 1 << 40, 20  # times are in [EPOCH, EPOCH + SPAN], so that many are equal
PALETTES = (  # what the weights of a graph are taken from
    (0.1, 0.7, 1.0, 2.5, 9.0),
    (0.0, 0.0, 0.3, 1.0),
    (1e30, 1.0, 2.0, 0.0),
    (1e30, 1e15, 1.0, 1e-15, 1e-30),
    (1e-300, 1e-310, 5e-324, 0.0),
    (0.0,),
    (3.0,),
)
PLANS = ({}, {"replace": True}, {"disjoint": True}, {"replace": True, "disjoint": True})
FANOUTS = (0, 1, 2, 8, 9, 16, 17, 32, 33, 64, 100, -1)


def fanouts_of(number: int, parts: int) -> Sequence[int]:
    """Return a part of `FANOUTS`; any `parts` numbers in a row take all of them.

    With the sum of two arguments' positions as the number, each value of either argument meets
    every fan-out, as in a Latin square.
    """
    return FANOUTS[number % parts :: parts]


@dataclass(frozen=True)
class Case:
    """One batch to sample."""

    csc: Csc  # of NumPy arrays
    plan: SamplingPlan
    seeds: Sequence[Tensor | None]
    key: BatchKey
    induced: bool = False
    seed_time: Tensor | None = None
    excluded: ExcludedEdges | None = None
    seed_since: Tensor | None = None

    @property
    def rules(self) -> Rules:
        """What the batch may take of the graph."""
        return Rules(self.seed_time, self.excluded, seed_since=self.seed_since)


def make_csc(
    rng: np.random.Generator,
    num_nodes: Sequence[int],
    relations: Sequence[tuple[int, int, int]],
    id_type: type[np.signedinteger] = np.int32,
    position_type: type[np.signedinteger] = np.int64,
    perm_type: type[np.signedinteger] | None = np.int32,
    hub: bool = False,
) -> Csc:
    """Return a random graph: relations are (source type, destination type, number of edges).

    With `hub`, half of each relation's edges lead to node 0.
    """
    indptr, indices, perm = [], [], []
    indptr_base, edge_base = [0], [0]
    for src, dst, size in relations:
        size = size if num_nodes[src] > 0 and num_nodes[dst] > 0 else 0
        col = rng.integers(0, max(num_nodes[dst], 1), size)
        if hub:
            col[: size // 2] = 0
        degree = np.bincount(col, minlength=num_nodes[dst])
        indptr.append(edge_base[-1] + np.concatenate([[0], np.cumsum(degree)]))
        indices.append(rng.integers(0, max(num_nodes[src], 1), size))
        perm.append(rng.permutation(size))
        indptr_base.append(indptr_base[-1] + num_nodes[dst] + 1)
        edge_base.append(edge_base[-1] + size)
    return Csc(
        indptr=np.concatenate([*indptr, []]).astype(position_type),
        indices=np.concatenate([*indices, []]).astype(id_type),
        perm=None if perm_type is None else np.concatenate([*perm, []]).astype(perm_type),
        src_type=np.array([r[0] for r in relations], np.int64),
        dst_type=np.array([r[1] for r in relations], np.int64),
        indptr_base=np.array(indptr_base[:-1], np.int64),
        edge_base=np.array(edge_base, np.int64),
        num_nodes=np.array(num_nodes, np.int64),
    )


def with_times(
    rng: np.random.Generator, csc: Csc, by_edge: bool, bound: Sequence[bool] | None = None
) -> Csc:
    """Return `csc` with random times, its lists sorted by them.

    `bound` [R] tells which relations have times; None means all.
    """
    owner = np.repeat(np.arange(len(csc.indptr) - 1), np.diff(csc.indptr))
    base, indices = csc.node_base[csc.src_type], csc.indices
    if by_edge:
        time = EPOCH + rng.integers(0, SPAN + 1, len(indices))
        time = time[np.lexsort((time, owner))]
        base = np.full_like(base, EDGE_TIME)
    else:
        time = EPOCH + rng.integers(0, SPAN + 1, csc.node_base[-1])
        first = np.repeat(base, np.diff(csc.edge_base))
        indices = indices[np.lexsort((time[first + indices], owner))]
    base = np.where(True if bound is None else bound, base, NO_TIME).astype(np.int64)
    return replace(csc, indices=indices, times=TimeTable(time, base))


def with_weights(
    rng: np.random.Generator,
    csc: Csc,
    palette: Sequence[float],
    weighted: Sequence[bool] | None = None,
) -> Csc:
    """Return `csc` with random weights from `palette`; a tenth of the lists have none but zeros.

    `weighted` [R] tells which relations have weights; None means all.
    """
    empty = rng.random(len(csc.indptr) - 1) < 0.1
    weight = np.where(
        np.repeat(empty, np.diff(csc.indptr)), 0.0, rng.choice(palette, len(csc.indices))
    )
    mask = np.ones(csc.num_relations, np.bool_) if weighted is None else np.array(weighted)
    return weigh(csc, weight, mask)


def with_seed_times(rng: np.random.Generator, case: Case, csc: Csc) -> Case:
    """Return a disjoint case on `csc`, which has times, with random times of the seeds."""
    size = sum(len(seed) for seed in case.seeds if seed is not None)
    time = torch.from_numpy(EPOCH + rng.integers(-1, SPAN + 2, size))
    return replace(case, csc=csc, plan=replace_plan(case.plan, disjoint=True), seed_time=time)


def with_windows(rng: np.random.Generator, case: Case, longest: int = SPAN) -> Case:
    """Return a case with times in which the seeds have windows of random widths.

    Some are empty, and some begin at the least time there is, or end at the largest.
    """
    start = case.seed_time - torch.from_numpy(rng.integers(-2, longest + 1, len(case.seed_time)))
    bounds = torch.tensor([torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max])
    extreme = torch.from_numpy(rng.integers(0, 8, len(start)))
    return replace(case, seed_since=torch.where(extreme < 2, bounds[extreme % 2], start))


def uniform_plan(
    fanouts: np.ndarray, *, replace: bool = False, disjoint: bool = False
) -> SamplingPlan:
    """Return a plan without times and weights; fan-outs are [hops, R]."""
    return SamplingPlan(
        fanouts, replace=replace, disjoint=disjoint, recent=False, id_dtype=torch.int64
    )


def make_seeds(
    rng: np.random.Generator, csc: Csc, sizes: Sequence[int | None]
) -> list[Tensor | None]:
    """Return random seeds, duplicates among them; None for a type means None."""
    return [
        None
        if size is None or n == 0
        else torch.from_numpy(rng.integers(0, n, size).astype(np.int64))
        for size, n in zip(sizes, csc.num_nodes.tolist(), strict=True)
    ]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Graphs of one or more node types and relations, with every kind of plan."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    num_types = draw(st.integers(1, 3))
    num_nodes = draw(st.lists(st.integers(0, 30), min_size=num_types, max_size=num_types))
    types = st.integers(0, num_types - 1)
    relation = st.tuples(types, types, st.integers(0, 150))
    relations = draw(st.lists(relation, min_size=1, max_size=4))
    ids, positions = draw(st.sampled_from([(np.int32, np.int32), (np.int64, np.int64)]))
    csc = make_csc(
        rng, num_nodes, relations, ids, positions,
        perm_type=draw(st.sampled_from([ids, None])), hub=draw(st.booleans()),
    )  # fmt: skip
    hops = draw(st.integers(0, 3))
    fanout = st.sampled_from(FANOUTS)
    size = hops * len(relations)
    fanouts = draw(st.lists(fanout, min_size=size, max_size=size))
    plan = uniform_plan(
        np.array(fanouts, np.int64).reshape(hops, len(relations)),
        replace=draw(st.booleans()),
        disjoint=draw(st.booleans()),
    )
    sizes = draw(st.lists(st.none() | st.integers(0, 12), min_size=num_types, max_size=num_types))
    key = BatchKey(draw(st.integers(0, 2**32 - 1)), draw(st.integers(0, 2**32 - 1)))
    return Case(csc, plan, make_seeds(rng, csc, sizes), key, induced=draw(st.booleans()))


@st.composite
def attributed_cases(draw: st.DrawFn) -> Case:
    """Cases with times, with weights, or with both, which some relations may lack."""
    case = draw(cases())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    relations = case.csc.num_relations
    masks = st.lists(st.sampled_from([True, True, False]), min_size=relations, max_size=relations)
    kind = draw(st.sampled_from(["times", "weights", "both"]))
    if kind != "weights":
        csc = with_times(rng, case.csc, draw(st.booleans()), draw(masks))
        case = with_seed_times(rng, case, csc)
        plan = replace_plan(case.plan, recent=draw(st.booleans()))
        case = replace(case, plan=plan)
        case = draw(st.sampled_from([case, with_windows(rng, case)]))
    if kind != "times":
        csc = with_weights(rng, case.csc, draw(st.sampled_from(PALETTES)), draw(masks))
        case = replace(case, csc=csc)
    return case


def with_excluded_edges(rng: np.random.Generator, case: Case, share: float = 0.3) -> Case:
    """Return a case that does without a share of the edges that lead to its seeds.

    Disjoint subgraphs do without some of any edges, each without others.
    """
    csc, groups = case.csc, 1
    of_seeds = np.zeros(len(csc.indices), np.bool_)
    if case.plan.disjoint:
        groups = sum(len(seed) for seed in case.seeds if seed is not None)
        of_seeds[:] = True
    for r, dst in enumerate(csc.dst_type.tolist()):
        seed = case.seeds[dst]
        for v in () if seed is None else (csc.indptr_base[r] + seed).tolist():
            of_seeds[csc.indptr[v] : csc.indptr[v + 1]] = True
    out = (rng.random((groups, len(of_seeds))) < share) & of_seeds
    positions = [np.flatnonzero(of_group) for of_group in out]
    ends = np.cumsum([0, *map(len, positions)])
    position = torch.from_numpy(np.concatenate([*positions, np.empty(0, np.int64)])).long()
    bounds = torch.from_numpy(np.stack([ends[:-1], ends[1:]]))
    plan = replace_plan(case.plan, excluding=True)
    return replace(case, plan=plan, excluded=ExcludedEdges(position, bounds))


def run(backend: Backend, case: Case, batches: int = 1) -> list[SampledGraph]:
    """Sample some batches of a case, which differ in their keys, in one workspace."""
    csc = backend.memory.place_graph(case.csc)
    work = backend.workspace(csc, case.plan)
    sampled = []
    for batch in range(batches):
        key = BatchKey(case.key.low ^ batch, case.key.high)
        graph = work.sample(case.seeds, key, case.rules, case.induced)
        assert graph is not None
        sampled.append(graph)
    return sampled


def assert_same(got: SampledGraph, expected: SampledGraph) -> None:
    """Raise unless two sampled graphs are equal in every tensor, dtype and count."""
    assert got.num_sampled_nodes == expected.num_sampled_nodes
    assert got.num_sampled_edges == expected.num_sampled_edges
    for name in ("node", "seed_of", "edge_index", "edge"):
        mine, theirs = getattr(got, name), getattr(expected, name)
        assert (mine is None) == (theirs is None), name
        for a, b in zip(mine or [], theirs or [], strict=True):
            assert a.dtype == torch.int64 if name != "edge_index" else a.dtype == b.dtype
            assert a.shape == b.shape, name
            assert torch.equal(a.cpu(), b.cpu().to(a.dtype)), name


def check_case(
    backend: Backend, case: Case, batches: int = 1, one_block: tuple[bool, ...] = (True, False)
) -> None:
    """Raise unless `backend` samples what the CPU backend does, by one block and by many."""
    expected = run(CpuBackend(), case, batches)
    for wanted in one_block:
        with pytest.MonkeyPatch.context() as patch:
            if not wanted:
                patch.setattr(tuning, "ONE_BLOCK_ROUNDS", 0)
            for got, want in zip(run(backend, case, batches), expected, strict=True):
                assert_same(got, want)


def homogeneous(
    fanouts: Sequence[int],
    *,
    num_nodes: int = 60,
    num_edges: int = 900,
    seeds: int = 20,
    hub: bool = True,
    induced: bool = False,
    plan: dict[str, object] | None = None,
    **types: object,
) -> Case:
    """Return a case on one random graph of one relation."""
    rng = np.random.default_rng(0)
    csc = make_csc(rng, [num_nodes], [(0, 0, num_edges)], hub=hub, **types)
    law = uniform_plan(np.array(fanouts, np.int64).reshape(-1, 1))
    law = replace_plan(law, **(plan or {}))
    return Case(csc, law, make_seeds(rng, csc, [seeds]), BatchKey(7, 11), induced)


def huge_list(folder: Path, fanouts: Sequence[int], **plan: object) -> Case:
    """Return a case with one list of 2^31 + 1 entries, in a sparse file.

    On so long a list every other random word is refused, and positions need 64 bits.
    """
    size = (1 << 31) + 1
    indices = np.memmap(folder / "indices", np.int32, "w+", shape=(size,))
    one = np.zeros(1, np.int64)
    csc = Csc(
        np.array([0, size]), indices, None, one, one, one, np.array([0, size]), np.ones(1, np.int64)
    )
    law = uniform_plan(np.array(fanouts, np.int64).reshape(-1, 1))
    seeds = torch.zeros(9, dtype=torch.int64)
    return Case(csc, replace_plan(law, **plan), [seeds], BatchKey(3, 5))


def replace_plan(plan: SamplingPlan, **changes: object) -> SamplingPlan:
    """Return a plan with some fields changed."""
    return plan._replace(**changes)


def with_seeds(case: Case, seeds: Sequence[Tensor | None]) -> Case:
    """Return a case with other seeds."""
    return replace(case, seeds=seeds)
