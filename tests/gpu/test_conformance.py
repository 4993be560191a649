"""The conformance suite on a real GPU: the CPU backend's batches, bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import (
    FANOUTS,
    PALETTES,
    PLANS,
    Case,
    attributed_cases,
    cases,
    check_case,
    homogeneous,
    make_csc,
    make_seeds,
    replace_plan,
    uniform_plan,
    with_seed_times,
    with_times,
    with_weights,
)
from hypothesis import HealthCheck, given, settings
from tables import BASES

from pyg_direct.core.types import BatchKey, Table
from pyg_direct.ops.cuda import bounds as forecast
from pyg_direct.ops.cuda import table as cuda_table
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.devices import backend_for

pytestmark = pytest.mark.gpu


def device_backend() -> CudaBackend:
    backend = backend_for(torch.device("cuda"))
    assert isinstance(backend, CudaBackend)
    return backend


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=cases())
def test_any_graph(case: Case) -> None:
    check_case(device_backend(), case, batches=2)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(case=attributed_cases())
def test_any_graph_with_times_or_weights(case: Case) -> None:
    check_case(device_backend(), case, batches=2)


@pytest.mark.parametrize("plan", [{}, {"replace": True}, {"recent": True}])
@pytest.mark.parametrize("palette", PALETTES)
def test_a_large_batch_by_time_and_by_weight(
    palette: tuple[float, ...], plan: dict[str, object]
) -> None:
    """Bits of doubles that a merged product would change show in so many draws."""
    rng = np.random.default_rng(4)
    case = homogeneous([40, 10], num_nodes=50_000, num_edges=4_000_000, seeds=1024, plan=plan)
    csc = with_weights(rng, case.csc, palette)
    check_case(device_backend(), replace(case, csc=csc), batches=2)
    csc = with_times(rng, csc, by_edge=False)
    case = with_seed_times(rng, case, csc)
    check_case(device_backend(), replace(case, plan=replace_plan(case.plan, **plan)), batches=2)


@pytest.mark.parametrize("plan", PLANS)
def test_batches_of_every_fan_out_are_those_of_the_cpu(plan: dict[str, object]) -> None:
    for fanout in FANOUTS:
        for fanouts in ([fanout, 3], [2, fanout]):
            check_case(device_backend(), homogeneous(fanouts, plan=plan), batches=2)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("induced", [False, True])
def test_a_large_batch(plan: dict[str, object], induced: bool) -> None:
    """Many blocks in every kernel, where a race would show."""
    case = homogeneous(
        [15, 10, 5], num_nodes=200_000, num_edges=4_000_000, seeds=1024, plan=plan, induced=induced
    )
    check_case(device_backend(), case, batches=3)


@pytest.mark.parametrize("plan", PLANS)
def test_all_neighbours_of_a_hub(plan: dict[str, object]) -> None:
    case = homogeneous([-1, 10], num_nodes=100_000, num_edges=1_000_000, seeds=300, plan=plan)
    check_case(device_backend(), case, batches=2)


def test_a_large_hash_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_table, "DENSE_LIMIT_BYTES", 0)
    case = homogeneous([15, 10, 5], num_nodes=200_000, num_edges=4_000_000, seeds=1024)
    check_case(device_backend(), case, batches=3)


def test_hops_above_the_edge_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forecast, "EDGE_LIMIT", 60)
    check_case(device_backend(), homogeneous([5, 4, 3]), batches=2)


@pytest.mark.parametrize("disjoint", [False, True])
def test_heterogeneous_batches_are_those_of_the_cpu(disjoint: bool) -> None:
    rng = np.random.default_rng(3)
    relations = [(0, 1, 90_000), (1, 0, 80_000), (0, 0, 50_000), (2, 1, 0), (1, 0, 9_000)]
    csc = make_csc(rng, [4000, 2500, 0], relations, hub=True)
    fanouts = np.array([[3, -1, 40, 5, 9], [10, 2, -1, 5, 1], [1, 1, 1, 1, 1]])
    plan = uniform_plan(fanouts, disjoint=disjoint)
    for induced in (False, True):
        case = Case(csc, plan, make_seeds(rng, csc, [60, 90, None]), BatchKey(1, 2), induced)
        check_case(device_backend(), case)


def test_on_a_side_stream() -> None:
    """Kernels run on torch's current stream, behind and before torch's own work there."""
    backend, table = device_backend(), torch.randn(50_000, 64, device="cuda")
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(20):
            index = torch.randint(0, 50_000, (20_000,), device="cuda")
            assert torch.equal(backend.gather([Table(table)], index)[0], table[index])


@pytest.mark.parametrize("place", ["device", "pinned"])
@pytest.mark.parametrize("base", BASES)
def test_rows_of_every_size_and_base_are_gathered_exactly(place: str, base: int) -> None:
    backend = device_backend()
    for row_bytes in (1, 2, 3, 4, 12, 64, 100, 128, 130, 132, 200, 400, 512, 1000, 2408):
        memory = torch.randint(0, 256, (500 * row_bytes + 256,), dtype=torch.uint8)
        memory = memory.pin_memory() if place == "pinned" else memory.cuda()
        skip = (base - memory.data_ptr()) % 128
        table = memory[skip : skip + 500 * row_bytes].view(500, row_bytes)
        index = torch.randint(0, 500, (3000,))
        got = backend.gather([Table(table)], index.cuda())[0]
        assert got.is_cuda
        assert torch.equal(got.cpu(), table.cpu()[index])


def test_pageable_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="must be on cuda:0 or in pinned memory, got cpu"):
        device_backend().gather(
            [Table(torch.randn(4, 4))], torch.zeros(1, dtype=torch.int64).cuda()
        )[0]
