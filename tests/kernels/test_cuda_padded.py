"""Batches that are padded on the emulated device, by counts that stay there."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import (
    PLANS,
    Case,
    attributed_cases,
    cases,
    homogeneous,
    make_csc,
    make_seeds,
    run,
    uniform_plan,
)
from emulator import ORDERS, emulated
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from pyg_direct.core.types import NO_RULES, BatchKey, SampledGraph, Sizes
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.cuda import tuning
from pyg_direct.ops.cuda.backend import CudaBackend


def counts_of(graph: SampledGraph) -> Sizes:
    return Sizes([len(node) for node in graph.node], [len(edge) for edge in graph.edge])


def row_of(found: Tensor, i: int) -> int:
    """Return which row the i-th node or edge has: its own, or in padding the first one's."""
    return int(found[i if i < len(found) else 0]) if len(found) > 0 else 0


def check_padded(got: SampledGraph, want: SampledGraph, sizes: Sizes, case: Case) -> None:
    """Raise unless `got` is `want` and padding, or of a larger one what there was room for."""
    padded, count = got.padded, counts_of(want)
    assert padded is not None
    assert got.num_sampled_nodes == [[] for _ in want.node]
    assert padded.read() == (want.num_sampled_nodes, want.num_sampled_edges)
    assert [int(n) for n in padded.real_nodes] == count.nodes
    assert [int(n) for n in padded.real_edges] == count.edges
    seeds = sum(len(seed) for seed in case.seeds if seed is not None)
    for t, size in enumerate(sizes.nodes):
        real = min(size, count.nodes[t])
        ids, rows = padded.node_id[t].tolist(), got.node[t].tolist()
        assert ids == want.node[t][:real].tolist() + [-1] * (size - real)
        assert rows == [row_of(want.node[t], i) for i in range(size)]
        assert (got.seed_of is None) == (want.seed_of is None)
        if got.seed_of is not None and want.seed_of is not None:
            assert got.seed_of[t].tolist() == want.seed_of[t][:real].tolist() + [seeds] * (
                size - real
            )
    fits = all(n + 2 * (size > 0) <= size for n, size in zip(count.nodes, sizes.nodes, strict=True))
    for r, size in enumerate(sizes.edges):
        real = min(size, count.edges[r])
        assert got.edge_index[r].dtype == want.edge_index[r].dtype
        assert padded.edge_id[r].tolist() == want.edge[r][:real].tolist() + [-1] * (size - real)
        assert got.edge[r].tolist() == [row_of(want.edge[r], i) for i in range(size)]
        ends = got.edge_index[r].cpu()
        assert torch.equal(ends[:, :real], want.edge_index[r][:, :real])
        if not fits:
            continue
        types = [int(of[r]) for of in (case.csc.src_type, case.csc.dst_type)]
        (first_source, sources), (first, places) = (
            (count.nodes[t], sizes.nodes[t] - count.nodes[t]) for t in types
        )
        for k, (source, target) in enumerate(ends[:, real:].T.tolist()):
            place = k * places // (size - real)
            assert target == first + place
            assert source == first_source + (place + 1) % sources


def check(backend: CudaBackend, case: Case, extra: list[int], few_blocks: bool = False) -> None:
    """Check batches of one workspace with more places than they need, and with fewer."""
    case = replace(case, induced=False)
    expected = run(CpuBackend(), case, len(extra))
    with pytest.MonkeyPatch.context() as patch:
        if few_blocks:
            patch.setattr(tuning, "ONE_BLOCK_ROUNDS", 0)
        work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        for batch, (want, more) in enumerate(zip(expected, extra, strict=True)):
            count = counts_of(want)
            kinds = zip(count.nodes, case.csc.num_nodes.tolist(), strict=True)
            sizes = Sizes(
                [max(0, n + more) if there > 0 else 0 for n, there in kinds],
                [max(0, n + more - 2) for n in count.edges],
            )
            if more >= 2:
                lacking = np.diff(case.csc.edge_base) == 0
                sizes.edges[:] = np.where(lacking, 0, sizes.edges).tolist()
            key = BatchKey(case.key.low ^ batch, case.key.high)
            got = work.sample_padded(case.seeds, key, case.rules, sizes)
            assert got is not None
            check_padded(got, want, sizes, case)


@given(
    case=st.one_of(cases(), attributed_cases()),
    order=st.sampled_from(ORDERS),
    extra=st.lists(st.sampled_from([2, 3, 9, 40, -1, -30]), min_size=1, max_size=3),
    few_blocks=st.booleans(),
)
def test_any_graph(case: Case, order: int, extra: list[int], few_blocks: bool) -> None:
    with emulated(order=order) as backend:
        check(backend, case, extra, few_blocks)


@pytest.mark.parametrize("plan", PLANS)
def test_padded_batches_of_every_plan_are_those_of_the_cpu(plan: dict[str, object]) -> None:
    """Of which some have hops of all neighbours, which are waited for."""
    with emulated(block_threads=32) as backend:
        for fanouts in ([5, 3], [3], [4, -1], []):
            check(backend, homogeneous(fanouts, plan=plan), [2, 7, -3, 50])


def test_types_without_nodes_and_relations_without_edges() -> None:
    rng = np.random.default_rng(3)
    csc = make_csc(rng, [40, 25, 0, 7], [(0, 1, 300), (1, 0, 200), (2, 1, 0), (3, 0, 50)], hub=True)
    plan = uniform_plan(np.array([[3, 4, 1, 5], [2, 2, 1, 1]]))
    with emulated() as backend:
        seeds = make_seeds(rng, csc, [6, 9, None, None])
        check(backend, Case(csc, plan, seeds, BatchKey(1, 2)), [2, 30, -2])


def test_the_example_of_the_kernel() -> None:
    """Worked out above `pad_edges`: 3 real nodes of 5, and 2 edges of 5."""
    csc = make_csc(np.random.default_rng(0), [3], [(0, 0, 2)], hub=False)
    csc = replace(
        csc, indptr=np.array([0, 2, 2, 2]), indices=np.array([1, 2], np.int32),
        perm=None, edge_base=np.array([0, 2]),
    )  # fmt: skip
    plan, seeds = uniform_plan(np.array([[2]])), [torch.tensor([0])]
    with emulated() as backend:
        work = backend.workspace(backend.memory.place_graph(csc), plan)
        got = work.sample_padded(seeds, BatchKey(1, 2), NO_RULES, Sizes([5], [5]))
    assert got is not None
    assert got.padded is not None
    assert sorted(got.edge_index[0][:, :2].T.tolist()) == [[1, 0], [2, 0]]
    assert got.edge_index[0][:, 2:].T.tolist() == [[4, 3], [4, 3], [3, 4]]
    assert got.padded.edge_id[0][2:].tolist() == [-1, -1, -1]
    assert got.edge[0].tolist()[2:] == got.edge[0].tolist()[:1] * 3


def test_a_seed_out_of_range_is_not_sampled() -> None:
    case = homogeneous([3])
    with emulated() as backend:
        work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        seeds = [torch.tensor([1, 1000])]
        assert work.sample_padded(seeds, case.key, case.rules, Sizes([9], [9])) is None


def test_nothing_is_waited_for_but_by_read(monkeypatch: pytest.MonkeyPatch) -> None:
    case = homogeneous([4, 3])
    with emulated() as backend:
        work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
        monkeypatch.setattr(device_memory, "download", None)  # a call of it would fail
        for number in range(3):
            key = BatchKey(number, 1)
            assert work.sample_padded(case.seeds, key, case.rules, Sizes([90], [300])) is not None
        with pytest.raises(TypeError, match="not callable"):
            work.sample(case.seeds, case.key)


def test_the_cpu_backend_pads_nothing() -> None:
    case, backend = homogeneous([4, 3]), CpuBackend()
    assert not backend.waits_for_counts
    work = backend.workspace(case.csc, case.plan)
    with pytest.raises(NotImplementedError):
        work.sample_padded(case.seeds, case.key, case.rules, Sizes([90], [300]))
