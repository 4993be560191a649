"""The kernels of `cuda/*.cu`, emulated, give the CPU backend's batches bit for bit."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from conformance import (
    PLANS,
    Case,
    assert_same,
    cases,
    check_case,
    fanouts_of,
    homogeneous,
    huge_list,
    make_csc,
    make_seeds,
    replace_plan,
    run,
    uniform_plan,
    with_seeds,
)
from emulator import ORDERS, emulated
from hypothesis import given
from hypothesis import strategies as st

from pyg_direct.core.types import BatchKey, Csc
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import bounds as forecast
from pyg_direct.ops.cuda import table as cuda_table
from pyg_direct.ops.cuda.arrays import BatchState
from pyg_direct.ops.cuda.backend import CudaBackend

PERM_TYPES = (np.int32, np.int64, None)


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    with emulated() as backend:
        yield backend


@given(case=cases(), order=st.sampled_from(ORDERS))
def test_any_graph(case: Case, order: int) -> None:
    with emulated(order=order) as backend:
        check_case(backend, case, batches=2)


@pytest.mark.parametrize("all_fanouts", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("plan", PLANS)
def test_batches_of_every_fan_out_are_those_of_the_cpu(
    plan: dict[str, object], order: int, all_fanouts: bool
) -> None:
    """Of the fan-outs each takes a part, such that each plan and each order meet all of them."""
    with emulated(order=order) as backend:
        for fanout in fanouts_of(PLANS.index(plan) + order, 1 if all_fanouts else 3):
            check_case(backend, homogeneous([fanout, 3], plan=plan))
            check_case(backend, homogeneous([2, fanout], plan=plan))


@pytest.mark.parametrize("fanout", [33, 100, 300, 700])
def test_large_fanouts_of_large_lists(backend: CudaBackend, fanout: int) -> None:
    """Several rounds of 32 slots, with lists little and much longer than the fan-out."""
    for extra in (1, 40, 2000):
        case = homogeneous(
            [fanout], num_nodes=3, num_edges=3 * (fanout + extra), seeds=4, hub=False
        )
        check_case(backend, case, batches=3)


@pytest.mark.parametrize("extra", [1, 2, 5])
def test_lists_a_little_longer_than_the_fanout(backend: CudaBackend, extra: int) -> None:
    """Where most draws collide, and a slot that took its own top is drawn again by later ones."""
    for fanout in (1, 2, 7, 8, 9, 15, 16, 31, 32, 33, 65):
        degree = fanout + extra
        one = np.zeros(1, np.int64)
        csc = Csc(
            np.array([0, degree]), np.zeros(degree, np.int32), None, one, one, one,
            np.array([0, degree]), np.ones(1, np.int64),
        )  # fmt: skip
        plan = uniform_plan(np.array([[fanout]]))
        case = Case(csc, plan, [torch.zeros(100, dtype=torch.int64)], BatchKey(fanout, extra))
        check_case(backend, case)
        picks = run(backend, case)[0].edge[0].view(100, fanout)
        assert all(len(set(row)) == fanout for row in picks.tolist())


WIDTHS = tuple(itertools.product((np.int32, np.int64), (np.int32, np.int64), PERM_TYPES))
# Each pair of values is there; the other half is in the slow set.
PAIRS_OF_WIDTHS = [(i, p, m) for i, p, m in WIDTHS if (i == p) == (m == np.int64)]
OTHER_WIDTHS = [
    pytest.param(*w, marks=pytest.mark.slow) for w in WIDTHS if w not in PAIRS_OF_WIDTHS
]


@pytest.mark.parametrize(("ids", "positions", "perm"), [*PAIRS_OF_WIDTHS, *OTHER_WIDTHS])
def test_every_id_width(
    backend: CudaBackend, ids: type, positions: type, perm: type | None
) -> None:
    types = {"id_type": ids, "position_type": positions, "perm_type": perm}
    for induced in (False, True):
        check_case(backend, homogeneous([5, 3], induced=induced, **types))


@pytest.mark.parametrize("induced", [False, True])
def test_narrow_ids_handed_out(backend: CudaBackend, induced: bool) -> None:
    case = homogeneous([5, 3], plan={"id_dtype": torch.int32}, induced=induced)
    sampled = run(backend, case)[0]
    assert sampled.edge_index[0].dtype == torch.int32
    check_case(backend, case)


@pytest.mark.parametrize("disjoint", [False, True])
def test_heterogeneous_batches_are_those_of_the_cpu(backend: CudaBackend, disjoint: bool) -> None:
    """Relations that share a source type, one from a type to itself, empty ones, an empty type."""
    rng = np.random.default_rng(3)
    relations = [(0, 1, 300), (1, 0, 200), (0, 0, 150), (2, 1, 0), (1, 0, 90), (3, 0, 50)]
    perm_type = None if disjoint else np.int32
    csc = make_csc(rng, [40, 25, 0, 7], relations, hub=True, perm_type=perm_type)
    fanouts = np.array([[3, -1, 40, 5, 9, 0], [10, 2, -1, 5, 1, 4], [1, 1, 1, 1, 1, 1]])
    plan = uniform_plan(fanouts, disjoint=disjoint)
    for induced in (False, True):
        case = Case(csc, plan, make_seeds(rng, csc, [6, 9, None, 2]), BatchKey(1, 2), induced)
        check_case(backend, case, batches=2)


@pytest.mark.parametrize("plan", PLANS)
def test_batches_of_many_blocks_are_those_of_the_cpu(plan: dict[str, object]) -> None:
    """Runs of several blocks in every scan, and lists that are shared by many warps."""
    case = homogeneous([12, -1], num_nodes=700, num_edges=9000, seeds=150, plan=plan)
    for order in ORDERS:
        with emulated(block_threads=32, order=order) as backend:
            check_case(backend, case)


@pytest.mark.parametrize("block_threads", [32, 128, 256])
def test_batches_do_not_depend_on_the_size_of_blocks(block_threads: int) -> None:
    with emulated(block_threads) as backend:
        check_case(backend, homogeneous([40, 9, -1]))


@pytest.mark.parametrize("plan", PLANS)
def test_a_workspace_serves_batches_of_any_size(plan: dict[str, object]) -> None:
    """Lists, tables and windows grow, and keep what they must."""
    case = homogeneous([4, -1, 3], plan=plan)
    with emulated() as backend:
        mine = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        theirs = CpuBackend().workspace(case.csc, case.plan)
        for batch, size in enumerate([1, 30, 0, 2, 60, 5]):
            for work in (mine, theirs):
                work.begin(make_seeds(np.random.default_rng(batch), case.csc, [size]), case.key)
                for hop in range(3):
                    work.hop(hop)
            assert_same(mine.finish(), theirs.finish())


def test_as_many_seeds_of_other_types(backend: CudaBackend) -> None:
    """Two batches of 31 seeds, of which one draws 60 edges and the other 900."""
    csc = make_csc(np.random.default_rng(0), [40, 40], [(1, 0, 2000), (0, 1, 2000)])
    plan = uniform_plan(np.array([[30, 1]]))
    mine = backend.workspace(backend.memory.place_graph(csc), plan)
    for batch, sizes in enumerate(([1, 30], [30, 1])):
        seeds = make_seeds(np.random.default_rng(batch), csc, sizes)
        sampled = mine.sample(seeds, BatchKey(batch, 0))
        assert sampled is not None
        assert_same(sampled, run(CpuBackend(), Case(csc, plan, seeds, BatchKey(batch, 0)))[0])


def test_batches_are_right_whose_seeds_just_fit_the_upload_or_exceed_it(
    backend: CudaBackend,
) -> None:
    """The piece of memory that a batch is uploaded to is used up to its last word."""
    case = homogeneous([2])
    work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
    assert work.sample(case.seeds, case.key) is not None
    room = len(work._state._all) - work._state._fixed
    for size in (room, room + 1):
        given = with_seeds(case, make_seeds(np.random.default_rng(size), case.csc, [size]))
        sampled = work.sample(given.seeds, given.key)
        assert sampled is not None
        assert_same(sampled, run(CpuBackend(), given)[0])


@pytest.mark.parametrize("plan", PLANS)
def test_windows_start_again_at_the_top(backend: CudaBackend, plan: dict[str, object]) -> None:
    case = homogeneous([4, 3], plan=plan)
    work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
    expected = run(CpuBackend(), case)[0]
    for base in (None, 100, 0, 5000):
        if base is not None:
            work._table.base = base  # as after very many batches
        work.begin(case.seeds, case.key)
        for hop in range(2):
            work.hop(hop)
        assert_same(work.finish(), expected)


@pytest.mark.parametrize("induced", [False, True])
def test_hash_table_without_disjoint(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, induced: bool
) -> None:
    """As on graphs whose dense map would be too large."""
    monkeypatch.setattr(cuda_table, "DENSE_LIMIT_BYTES", 0)
    check_case(backend, homogeneous([5, -1, 2], induced=induced), batches=3)


def first_slot(node: int, slots: int) -> int:
    """Return the slot where `enter_hashed` begins to look for a node, without subgraphs."""
    mixed = node * 0x9E3779B97F4A7C15 % (1 << 64)
    return (mixed ^ mixed >> 32) % slots


@pytest.mark.parametrize("induced", [False, True])
def test_a_hash_table_goes_on_at_its_begin(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, induced: bool
) -> None:
    """Three nodes belong into the last of its 16 slots."""
    monkeypatch.setattr(cuda_table, "DENSE_LIMIT_BYTES", 0)
    nodes = [v for v in range(200) if first_slot(v, 16) == 15][:3]
    indptr, indices = np.zeros(201, np.int64), np.array(nodes[1:] + nodes[:1], np.int32)
    for v in nodes:
        indptr[v + 1 :] += 1
    zero = np.zeros(1, np.int64)
    csc = Csc(indptr, indices, None, zero, zero, zero, np.array([0, 3]), np.array([200]))
    case = Case(csc, uniform_plan(np.ones((2, 1), np.int64)), [torch.tensor(nodes[:1])],
                BatchKey(1, 2), induced)  # fmt: skip
    check_case(backend, case)
    work = backend.workspace(backend.memory.place_graph(csc), case.plan)
    sampled = work.sample(case.seeds, case.key)
    assert sampled is not None
    assert sorted(sampled.node[0].tolist()) == nodes
    assert work._table.slots.tolist() == [16]


def test_a_node_counts_once_in_each_of_many_subgraphs(backend: CudaBackend) -> None:
    """Every subgraph has the same 12 nodes, such that searches come by those of others.

    Now and then: six times with the ids of this seed, of which two are seeds.
    """
    ids = np.random.default_rng(3).choice(3000, 12, replace=False).astype(np.int32)
    degree = np.zeros(3000, np.int64)
    degree[ids] = 12
    zero = np.zeros(1, np.int64)
    csc = Csc(
        np.concatenate([zero, np.cumsum(degree)]), np.tile(ids, 12), None, zero, zero, zero,
        np.array([0, 144]), np.array([3000]),
    )  # fmt: skip
    seeds = torch.from_numpy(ids[np.arange(100) * 7 % 12].astype(np.int64))
    check_case(backend, Case(csc, uniform_plan(np.array([[12]]), disjoint=True), [seeds],
                             BatchKey(1, 2)))  # fmt: skip


def test_refused_random_words_are_replaced_as_on_the_cpu(backend: CudaBackend) -> None:
    """Of a list as long as this, about one word in a thousand, and six of all that are drawn."""
    size, zero = (1 << 22) + 1, np.zeros(1, np.int64)
    csc = Csc(
        np.array([0, size]), np.zeros(size, np.int32), None, zero, zero, zero, np.array([0, size]),
        np.ones(1, np.int64),
    )  # fmt: skip
    plan = uniform_plan(np.array([[32]]), replace=True)
    check_case(backend, Case(csc, plan, [torch.zeros(200, dtype=torch.int64)], BatchKey(1, 2)))


@pytest.mark.parametrize("labor", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_ids_above_32_bits(backend: CudaBackend, labor: bool) -> None:
    """Of nodes that are equal in their lower 32 bits, draws and tables tell one from another."""
    zero, ids = np.zeros(1, np.int64), 7 + (np.arange(20) << 32)
    csc = Csc(
        np.array([0, 20]), ids, None, zero, zero + 1, zero, np.array([0, 20]),
        np.array([1 << 37, 1]),
    )  # fmt: skip
    plan = replace_plan(uniform_plan(np.array([[6]]), disjoint=True), labor=labor)
    seeds = [None, torch.zeros(5, dtype=torch.int64)]
    check_case(backend, Case(csc, plan, seeds, BatchKey(1, 2)))


@pytest.mark.parametrize("induced", [False, True])
def test_a_first_relation_without_edges(backend: CudaBackend, induced: bool) -> None:
    rng = np.random.default_rng(0)
    csc = make_csc(rng, [60], [(0, 0, 0), (0, 0, 300), (0, 0, 0)])
    plan = uniform_plan(np.full((2, 3), 4))
    check_case(backend, Case(csc, plan, make_seeds(rng, csc, [20]), BatchKey(1, 2), induced))


def test_more_relations_than_threads() -> None:
    """One block adds up over relations in several rounds: of 32 threads, or of 64."""
    rng = np.random.default_rng(0)
    csc = make_csc(rng, [5, 4], [(r % 2, r // 2 % 2, 6) for r in range(70)])
    plan = uniform_plan(np.tile([[2], [1]], 70))
    with emulated(block_threads=32) as backend:
        check_case(backend, Case(csc, plan, make_seeds(rng, csc, [2, 2]), BatchKey(1, 2)))


@pytest.mark.parametrize("plan", PLANS)
def test_hops_above_the_edge_limit_are_counted_first(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, plan: dict[str, object]
) -> None:
    monkeypatch.setattr(forecast, "EDGE_LIMIT", 60)
    check_case(backend, homogeneous([5, 4, 3], plan=plan), batches=2)


@pytest.mark.parametrize(("fanouts", "reads"), [([5, 4, 3], 1), ([-1, 4], 2), ([], 1)])
def test_the_host_reads_back_once_a_batch(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, fanouts: list[int], reads: int
) -> None:
    count = 0
    original = BatchState.read

    def counted(state: BatchState) -> object:
        nonlocal count
        count += 1
        return original(state)

    monkeypatch.setattr(BatchState, "read", counted)
    run(backend, homogeneous(fanouts))
    assert count == reads


def test_every_byte_of_the_outputs_is_written(backend: CudaBackend) -> None:
    memory = backend.library.compiler.memory
    for induced in (False, True):
        sampled = run(backend, homogeneous([5, 3], induced=induced))[0]
        for name in ("edge_index", "edge"):
            tensor = getattr(sampled, name)[0]
            assert memory.written(tensor) is not None
            memory.assert_written(tensor, name)


def test_repeated_seeds_draw_independently(backend: CudaBackend) -> None:
    case = homogeneous([3])
    check_case(backend, with_seeds(case, [torch.tensor([4, 0, 4, 4, 0])]), batches=2)
    # Many copies of the hub find all other nodes.
    check_case(backend, with_seeds(homogeneous([30]), [torch.zeros(60, dtype=torch.int64)]))


@pytest.mark.parametrize(("nodes", "edges"), [(4, 1 << 31), ((1 << 31) - 9, 9)])
def test_too_many_nodes(nodes: int, edges: int) -> None:
    case = homogeneous([-1], plan={"disjoint": True})
    bound = forecast.Forecast(case.csc, case.plan)
    bound.begin(np.array([4]))
    assert bound.must_ask(0)
    with pytest.raises(ValueError, match="Use a smaller batch_size"):
        bound.learn(0, np.array([nodes]), np.array([edges]))


def test_counts_of_a_hop_replace_its_bound() -> None:
    """Else hops would have room for nodes that are not there, or be refused for want of it."""
    case = homogeneous([3, -1, 2])
    bound = forecast.Forecast(case.csc, case.plan)
    bound.begin(np.array([4]))
    assert (bound.nodes.tolist(), bound.must_ask(1)) == ([4 + 12], True)
    bound.learn(1, np.array([5]), np.array([7]))
    assert bound.nodes.tolist() == [5 + 7 + 2 * 7]


@pytest.mark.slow
def test_refused_words_and_positions_above_32_bits(
    backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    case = huge_list(tmp_path, [5, 40])
    placed = backend.memory.place_graph(case.csc)  # copies 8 GB, so once for all runs
    monkeypatch.setattr(backend.memory, "place_graph", lambda csc: placed)
    for replaced in (False, True):
        case = replace(case, plan=replace_plan(case.plan, replace=replaced))
        check_case(backend, case)
        assert run(CpuBackend(), case)[0].edge[0].max() > 1 << 30
