"""The steps of a batch, on both backends: the fused call is their sum, and so is each hop.

A batch that is sampled hop by hop, whose draws are made by another workspace, or whose nodes are
asked of several owners, is the one of `Workspace.sample`, bit for bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import (
    PALETTES,
    PLANS,
    Case,
    assert_same,
    attributed_cases,
    cases,
    homogeneous,
    make_csc,
    make_seeds,
    replace_plan,
    run,
    uniform_plan,
    with_excluded_edges,
    with_seed_times,
    with_times,
    with_weights,
    with_windows,
)
from emulator import EmulatorError, emulated
from hypothesis import given
from hypothesis import strategies as st
from sources import Elsewhere, Exchange, OneByOne, RandomCounts
from torch import Tensor

from pyg_direct.core.types import BatchKey, Frontier, Picks, SampledGraph
from pyg_direct.ops.backend import Backend, Workspace
from pyg_direct.ops.cpu import drawing
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import bounds
from pyg_direct.ops.cuda import drawing as cuda_drawing
from pyg_direct.ops.cuda.arrays import Grids
from pyg_direct.sampling.hops import BatchInput, HopSource, sample_window


@contextmanager
def backend_of(kind: str) -> Iterator[Backend]:
    if kind == "cpu":
        yield CpuBackend(threads=2)
    else:
        with emulated() as backend:
            yield backend


both = pytest.mark.parametrize("kind", ["cpu", "emulated"])


@pytest.fixture
def backend(kind: str) -> Iterator[Backend]:
    with backend_of(kind) as backend:
        yield backend


def workspaces(backend: Backend, case: Case, number: int) -> list[Workspace]:
    placed = backend.memory.place_graph(case.csc)
    return [backend.workspace(placed, case.plan) for _ in range(number)]


def sampled_from(work: Workspace, case: Case, source: HopSource, batch: int = 0) -> SampledGraph:
    key = BatchKey(case.key.low ^ batch, case.key.high)
    hops = len(case.plan.fanouts)
    inputs = BatchInput(case.seeds, key, case.rules)
    (sampled,) = sample_window([work], [inputs], hops, case.induced, source)
    assert sampled is not None
    return sampled


def check_steps(backend: Backend, case: Case, batches: int = 2) -> None:
    """Raise unless all ways of doing the hops give what the fused call does."""
    work, first, second = workspaces(backend, case, 3)
    sources: list[HopSource] = [OneByOne(), Elsewhere(), Elsewhere(first)]
    by_id = not case.induced
    sources.append(Exchange([first, second, work], case.csc, by_id))
    expected = run(CpuBackend(), case, batches)
    for batch, want in enumerate(expected):
        for source in sources:
            assert_same(sampled_from(work, case, source, batch), want)


ANY_CASE = st.one_of(cases(), attributed_cases())


@both
@given(case=ANY_CASE, share=st.sampled_from([0.0, 0.4]), seed=st.integers(0, 99))
def test_any_graph(kind: str, case: Case, share: float, seed: int) -> None:
    """Of one or more types, with times, weights, windows, exclusions, replacement, disjoint."""
    if share > 0:
        case = with_excluded_edges(np.random.default_rng(seed), case, share)
    with backend_of(kind) as backend:
        check_steps(backend, case, batches=1)


def attributed() -> Case:
    """A heterogeneous case with times, a window, weights and excluded edges."""
    rng = np.random.default_rng(3)
    relations = [(0, 1, 300), (1, 0, 200), (0, 0, 150), (2, 1, 0), (1, 0, 90), (3, 0, 50)]
    csc = make_csc(rng, [40, 25, 0, 7], relations, hub=True)
    csc = with_weights(rng, csc, PALETTES[0], [True, False, True, True, False, False])
    csc = with_times(rng, csc, True, [True, True, False, True, False, True])
    fanouts = np.array([[3, -1, 40, 5, 9, 2], [10, 2, -1, 5, 1, 4], [1, 1, 1, 1, 1, 1]])
    case = Case(csc, uniform_plan(fanouts), make_seeds(rng, csc, [6, 9, None, 2]), BatchKey(1, 2))
    case = with_windows(rng, with_seed_times(rng, case, csc))
    return with_excluded_edges(rng, case, 0.3)


@both
@pytest.mark.parametrize("changes", [{}, {"replace": True}, {"recent": True}])
def test_everything_at_once(backend: Backend, changes: dict[str, object]) -> None:
    case = attributed()
    check_steps(backend, replace(case, plan=replace_plan(case.plan, **changes)))


@both
@pytest.mark.parametrize("wide", [np.int32, np.int64])
@pytest.mark.parametrize("plan", PLANS)
def test_every_plan_and_width(backend: Backend, wide: type, plan: dict[str, object]) -> None:
    types = {"id_type": wide, "position_type": wide, "perm_type": wide}
    check_steps(backend, homogeneous([40, -1, 3], plan=plan, **types))


@pytest.mark.parametrize("kind", ["cpu"])
def test_hops_shared_by_threads_draw_the_same(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(drawing, "MIN_ITEMS_PER_THREAD", 10)
    for case in (homogeneous([5, 4, 3], seeds=60), attributed()):
        check_steps(backend, case)


@pytest.mark.parametrize("kind", ["emulated"])
@pytest.mark.parametrize("plan", PLANS)
def test_hops_counted_first_draw_the_same(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, plan: dict[str, object]
) -> None:
    monkeypatch.setattr(bounds, "EDGE_LIMIT", 60)
    check_steps(backend, homogeneous([5, 4, 3], plan=plan))


@pytest.mark.parametrize("kind", ["emulated"])
@pytest.mark.parametrize("name", ["uniform", "induced", "weighted", "labor"])
def test_one_block_in_several_rounds_draws_the_same(
    backend: Backend, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Loops of kernels over nodes, edges and lists take several rounds of 64 threads."""
    monkeypatch.setattr(cuda_drawing, "Grids", lambda threads, _: Grids(threads, 1))
    fanout = 40 if name in ("uniform", "induced") else 3
    case = homogeneous([fanout, -1], num_nodes=100, num_edges=800, seeds=70,
                       induced=name == "induced", plan={"labor": name == "labor"})  # fmt: skip
    if name == "weighted":
        csc = with_weights(np.random.default_rng(1), case.csc, PALETTES[0])
        case = replace(case, csc=csc)
    check_steps(backend, case, batches=1)


@both
def test_a_window_of_several_batches(backend: Backend) -> None:
    """One source does a hop of all batches; one of them has a seed that is not a node."""
    case = homogeneous([3, 2])
    *works, owner = workspaces(backend, case, 4)
    seeds = [torch.tensor([1, 5]), torch.tensor([60]), torch.tensor([4, 4, 9])]
    batches = [BatchInput([seed], BatchKey(i, 3)) for i, seed in enumerate(seeds)]
    source = Exchange([owner, works[0]], case.csc)
    found = sample_window(works, batches, 2, False, source)
    assert found[1] is None
    for batch, sampled in zip(batches, found, strict=True):
        if sampled is not None:
            assert_same(sampled, owner.sample(*batch))
    assert min(sum(source.requests[rank::2]) for rank in (0, 1)) > 0, "each owner was asked"


@both
def test_a_law_with_random_counts(backend: Backend) -> None:
    """The draw says how many edges there are; only their bound is known before."""
    rng = np.random.default_rng(0)
    csc = make_csc(rng, [40, 25], [(0, 1, 300), (1, 0, 200), (0, 0, 150)], hub=True)
    fanouts = np.array([[3, 5, -1], [2, 8, 4]])
    for disjoint in (False, True):
        plan = uniform_plan(fanouts, disjoint=disjoint)
        case = Case(csc, plan, make_seeds(rng, csc, [6, 4]), BatchKey(1, 2))
        (work,) = workspaces(backend, case, 1)
        source = RandomCounts(csc, fanouts)
        sampled = sampled_from(work, case, source)
        for r in range(csc.num_relations):
            drawn = [p for h in range(2) for hop, rel, ps in source.drawn if (hop, rel) == (h, r)
                     for p in ps]  # fmt: skip
            assert sampled.edge[r].tolist() == csc.perm[drawn].tolist()
            src, dst = int(csc.src_type[r]), int(csc.dst_type[r])
            source_id = sampled.node[src].cpu()[sampled.edge_index[r][0].cpu()]
            assert source_id.tolist() == csc.indices[drawn].tolist()
            list_of = np.searchsorted(csc.indptr, drawn, "right") - 1 - csc.indptr_base[r]
            reached = sampled.node[dst].cpu()[sampled.edge_index[r][1].cpu()]
            assert reached.tolist() == list_of.tolist()
        lengths = {len(positions) for _, _, positions in source.drawn}
        assert len(lengths) > 3, "the counts are random"
        assert sampled.num_sampled_nodes == expected_counts(sampled)


def expected_counts(sampled: SampledGraph) -> list[list[int]]:
    """Check that the counts add up, and return them."""
    sums = [sum(counts) for counts in sampled.num_sampled_nodes]
    assert sums == [len(node) for node in sampled.node]
    return list(sampled.num_sampled_nodes)


@both
@pytest.mark.parametrize("name", ["plain", "weighted", "attributed", "disjoint"])
def test_nodes_draw_the_same_when_others_draw_nothing(backend: Backend, name: str) -> None:
    """A hop without some nodes: those of all others draw what they would have drawn."""
    case = homogeneous([4, 3, 5], plan={"disjoint": name == "disjoint"})
    if name == "weighted":
        weighted = with_weights(np.random.default_rng(1), case.csc, PALETTES[1])
        case = replace(case, csc=weighted)
    if name == "attributed":
        case = attributed()
    rng = np.random.default_rng(5)
    masks = [torch.from_numpy(rng.random(n) < 0.4) for n in case.csc.num_nodes.tolist()]
    device = run(backend, case)[0].node[0].device
    skip = [mask.to(device) if t != 1 else None for t, mask in enumerate(masks)]
    work, other = workspaces(backend, case, 2)
    last = len(case.plan.fanouts) - 1
    for each in (work, other):
        assert each.begin(case.seeds, case.key, case.rules)
        for hop in range(last):
            each.hop(hop)
    items = other.frontier(last)
    picks = other.draw(last, items, case.key, case.rules)
    taken = [[mask is not None and bool(mask[v]) for v in node.tolist()]
             for mask, node in zip(skip, items.node, strict=True)]  # fmt: skip
    gone = torch.tensor([gone for t in case.csc.dst_type for gone in taken[t]], device=device)
    kept = ~torch.repeat_interleave(gone, picks.counts)
    other.enter(
        last,
        Picks(
            torch.where(gone, 0, picks.counts).to(torch.int32),
            picks.source[kept], picks.position[kept],
        ),
    )  # fmt: skip
    assert 0 < int(kept.sum()) < len(kept), "some were left out, and not all"
    work.hop(last, skip)
    assert_same(work.finish(), other.finish())


@both
def test_draws_for_another_batch_in_between_change_nothing(backend: Backend) -> None:
    """A batch goes on as if its workspace had not drawn for another one in between.

    And what was drawn, and for which nodes, stays what it was.
    """
    case = homogeneous([4, 3], plan={"disjoint": True})
    work, other = workspaces(backend, case, 2)
    assert other.begin([torch.arange(9)], BatchKey(9, 9))
    assert work.begin(case.seeds, case.key)
    taken: list[tuple[Tensor, list[int]]] = []
    for hop in range(2):
        other.hop(hop)
        items = other.frontier(hop)
        first = work.draw(hop, items, BatchKey(9, 9))
        taken += [(part, part.tolist()) for part in (*first[:3], items.node[0], items.local[0])]
        work.hop(hop)
        again = work.draw(hop, other.frontier(hop), BatchKey(9, 9))
        assert [a.tolist() for a in first[:3]] == [a.tolist() for a in again[:3]]
        work.draw(hop, items, BatchKey(8, 8))
        assert all(part.tolist() == values for part, values in taken)
    assert_same(work.finish(), run(CpuBackend(), case)[0])
    assert other.begin([torch.arange(9, 18)], BatchKey(9, 9))
    other.hop(0)
    assert all(part.tolist() == values for part, values in taken)


@both
def test_many_copies_of_a_seed_find_most_nodes_as_on_the_cpu(backend: Backend) -> None:
    """As many as there are nodes, and another type's list behind theirs."""
    csc = make_csc(np.random.default_rng(0), [60, 5], [(0, 0, 160), (1, 1, 9)], hub=True)
    seeds = [torch.zeros(60, dtype=torch.int64), torch.arange(5)]
    case = Case(csc, uniform_plan(np.full((1, 2), -1)), seeds, BatchKey(1, 2))
    (expected,) = run(CpuBackend(), case)
    assert len(expected.node[0]) > 60 + 40
    for source in (OneByOne(), Elsewhere()):
        (work,) = workspaces(backend, case, 1)
        assert_same(sampled_from(work, case, source), expected)


@both
@pytest.mark.parametrize("plan", [*PLANS, {"disjoint": True, "excluding": True}])
def test_equal_nodes_of_several_batches_draw_alike(
    backend: Backend, plan: dict[str, object]
) -> None:
    """However many they are: together they may have more edges than the graph."""
    case = homogeneous([4, 40], plan=plan)
    (work,) = workspaces(backend, case, 1)
    work.begin(case.seeds, case.key)
    work.hop(0)
    items, times = work.frontier(1), 9
    alone = work.draw(1, items, case.key)
    repeated = [parts and [part.repeat(times) for part in parts] for parts in items]
    together = work.draw(1, Frontier(*repeated), case.key)
    for one, all_of_them in zip(alone[:3], together[:3], strict=True):
        assert torch.equal(one.repeat(times), all_of_them)
    assert len(together.source) > 1.5 * len(case.csc.indices)


@both
def test_picks_with_wrong_counts_or_dtypes_are_refused(backend: Backend) -> None:
    case = homogeneous([4, 3])
    (work,) = workspaces(backend, case, 1)
    work.begin(case.seeds, case.key)
    items = work.frontier(0)
    picks = work.draw(0, items, case.key)
    fewer = picks.counts.clone()
    fewer[0] -= 1
    negative = picks.counts.clone()
    negative[0], negative[1] = -1, negative[0] + negative[1] + 1
    for bad, message in (
        (picks._replace(counts=picks.counts[:-1]), r"Picks.counts must be torch.int32 of shape"),
        (picks._replace(counts=picks.counts.long()), r"got torch.int64"),
        (picks._replace(source=picks.source.double()), r"Picks.source must be"),
        (picks._replace(position=None), r"either `position` or `edge`"),
        (picks._replace(edge=picks.source.long()), r"either `position` or `edge`"),
        (picks._replace(counts=fewer), r"edges of each item"),
        (picks._replace(counts=negative), r"least of -1"),
    ):
        with pytest.raises(ValueError, match=message):
            work.enter(0, bad)
    for nodes, message in (
        (items._replace(node=[]), "must have 1 tensors"),
        (items._replace(local=[items.local[0][:-1]]), "Frontier.local must be torch.int32"),
        (items._replace(seed_of=items.local), "Frontier.seed_of must be None"),
    ):
        with pytest.raises(ValueError, match=message):
            work.draw(0, nodes, case.key)
    work.enter(0, picks._replace(position=None, edge=picks.source.long()))
    work.hop(1)
    with pytest.raises(ValueError, match="Ask for the edges that were drawn"):
        work.finish(induced=True)


@pytest.mark.parametrize("kind", ["emulated"])
def test_more_picks_than_the_fan_out_allows(backend: Backend) -> None:
    case = homogeneous([4, 3])
    (work,) = workspaces(backend, case, 1)
    work.begin(case.seeds, case.key)
    picks = work.draw(0, work.frontier(0), case.key)
    parts = [torch.cat([part, part[:20]]) for part in picks[1:3] if part is not None]
    with pytest.raises(ValueError, match="Hop 0 has room for 80 edges at most, got"):
        work.enter(0, Picks(picks.counts + 1, *parts))


@pytest.mark.parametrize("kind", ["cpu"])
def test_a_frontier_node_out_of_range_is_refused(backend: Backend) -> None:
    case = homogeneous([4])
    (work,) = workspaces(backend, case, 1)
    none = torch.zeros(1, dtype=torch.int32)
    for bad in (-1, 60):
        items = Frontier([torch.tensor([bad], dtype=torch.int32)], [none], None)
        with pytest.raises(ValueError, match=r"must be in \[0, 60\)"):
            work.draw(0, items, case.key)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("if (batch.nodes.has_local) item.local", "if (false) item.local"),
        ("if (dst == type && skip", "if (skip"),
        ("items.item_ptr[item] = 0;", ""),
        ("batch->items.item_ptr[item] = count[item];", "batch->items.item_ptr[item] = 1;"),
        ("at.col[edge] = static_cast<i32>(local);", "at.col[edge] = static_cast<i32>(item);"),
        ("batch->edges.group[edge] = nodes.seed_of[nodes.node_start[dst] + local];",
         "batch->edges.group[edge] = nodes.seed_of[nodes.node_start[dst]];"),
        ("at.position[edge] = position[edge];", "at.position[edge] = position[0];"),
    ],
)  # fmt: skip
def test_mistakes_are_caught(old: str, new: str) -> None:
    caught = pytest.raises((AssertionError, EmulatorError))
    with emulated(planted=[(old, new)]) as backend, caught:
        check_with_and_without_skipping(backend)


def check_with_and_without_skipping(backend: Backend) -> None:
    test_nodes_draw_the_same_when_others_draw_nothing(backend, "attributed")
    check_steps(backend, attributed())


@both
@pytest.mark.parametrize("induced", [False, True])
def test_a_workspace_forgets_the_rules_of_the_batch_before(backend: Backend, induced: bool) -> None:
    case = homogeneous([4, 3], induced=induced)
    without = with_excluded_edges(np.random.default_rng(0), case, 0.5)
    (work,) = workspaces(backend, without, 1)
    expected = run(CpuBackend(), case)[0]
    for _ in range(2):
        fewer = work.sample(without.seeds, without.key, without.rules, induced)
        assert len(fewer.edge[0]) < len(expected.edge[0])
        assert_same(work.sample(case.seeds, case.key, induced=induced), expected)
