"""A few small batches on the GPU through every kernel, compared with the CPU; for sanitizers.

Compared on the host, so that what a sanitizer slows down is our kernels and little else:

    compute-sanitizer --tool memcheck python -m benchmarks.gpu.small_run
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from pyg_direct import quantize
from pyg_direct.core.types import SampledGraph, Table, Traffic
from pyg_direct.ops.backend import Backend
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import table as cuda_table
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.devices import backend_for
from pyg_direct.ops.host.hottest import Candidate
from pyg_direct.tools.doctor.bandwidth import read_all, whole_lines

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "support"))
from conformance import (
    PALETTES,
    Case,
    assert_same,
    check_case,
    homogeneous,
    replace_plan,
    with_seed_times,
    with_times,
    with_weights,
)

LAWS = ({}, {"replace": True}, {"disjoint": True})
ROW_BYTES = (1, 6, 12, 64, 100, 128, 132, 400, 512, 2408)
WIDTHS = (1, 6, 12, 100, 128)
STORED = (
    (torch.int8, "column"),
    (torch.int8, "row"),
    (torch.float16, "column"),
    (torch.bfloat16, "column"),
)


def sample(backend: Backend) -> int:
    """Check batches of every kind of fan-out and table, and return how many."""
    count = 0
    for induced in (False, True):
        for law in LAWS:
            for fanouts in ([5, 3], [20, 100], [-1, 3]):
                check_case(backend, homogeneous(fanouts, plan=law, induced=induced))
                count += 1
    dense_limit = cuda_table.DENSE_LIMIT_BYTES
    cuda_table.DENSE_LIMIT_BYTES = 0
    try:
        check_case(backend, homogeneous([10, 10], num_nodes=3000, num_edges=30_000, seeds=64))
    finally:
        cuda_table.DENSE_LIMIT_BYTES = dense_limit
    return count + 1


def sample_labor(backend: Backend) -> int:
    """Check batches by LABOR on a graph without parallel edges, and return how many."""
    rng = np.random.default_rng(0)
    nodes = 400
    edges = np.sort(rng.choice(nodes * nodes, 8000, replace=False))  # destination * nodes + source
    indptr = np.searchsorted(edges, nodes * np.arange(nodes + 1)).astype(np.int64)
    plans = ({"labor": True}, {"labor": True, "layer_dependency": True})
    for plan in plans:
        case = homogeneous([5, 40, -1], num_nodes=nodes, num_edges=len(edges), plan=plan)
        csc = replace(case.csc, indptr=indptr, indices=(edges % nodes).astype(np.int32))
        check_case(backend, replace(case, csc=csc))
    return len(plans)


def sample_adaptive(backend: Backend) -> int:
    """Check batches whose fan-outs adapt, and return how many."""
    check_case(backend, homogeneous([5, 4], plan={"adaptive": True}))
    return 1


def sample_attributed(backend: Backend) -> int:
    """Check batches by weight and by time, and return how many."""
    rng = np.random.default_rng(0)
    laws = ({}, {"replace": True}, {"recent": True})
    for law in laws:
        case = homogeneous([5, 40], plan=law)
        csc = with_times(rng, with_weights(rng, case.csc, PALETTES[0]), by_edge=True)
        if "recent" not in law:
            weighted = replace(case, csc=with_weights(rng, case.csc, PALETTES[0]))
            check_case(backend, weighted)
        timed = with_seed_times(rng, case, csc)
        check_case(backend, replace(timed, plan=replace_plan(timed.plan, **law)))
    return 2 * len(laws) - 1


def sample_by_steps(backend: Backend) -> int:
    """Check batches that are made hop by hop, and return how many."""
    case = homogeneous([5, 3])
    for skips in (True, False):
        assert_same(_by_steps(backend, case, skips), _by_steps(CpuBackend(), case, skips))
    return 2


def _by_steps(backend: Backend, case: Case, skips: bool) -> SampledGraph:
    """Let every third node draw nothing, or enter the picks that were drawn."""
    work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
    assert work.begin(case.seeds, case.key, case.rules)
    for hop in range(len(case.plan.fanouts)):
        if skips:
            nodes = torch.arange(int(case.csc.num_nodes[0]), device=backend.device)
            work.hop(hop, [nodes % 3 == 0])
        else:
            work.enter(hop, work.draw(hop, work.frontier(hop), case.key, case.rules))
    return work.finish()


def gather(backend: Backend) -> int:
    """Check rows of many lengths, from device and from host memory, and return how many."""
    index = torch.randint(0, 50, (200,))
    for row_bytes in ROW_BYTES:
        memory = torch.randint(0, 256, (50 * row_bytes + 64,), dtype=torch.uint8)
        readable = pinned(backend, memory)
        for base in (0, 64):
            table = memory[base : base + 50 * row_bytes].view(50, row_bytes)
            on_host = readable[base : base + 50 * row_bytes].view(50, row_bytes)
            for source in (table.to(backend.device), on_host):
                got = backend.gather([Table(source)], index.to(backend.device))[0]
                assert torch.equal(got.cpu(), table[index]), row_bytes
    return 4 * len(ROW_BYTES)


def decode(backend: Backend) -> int:
    """Check decoded rows of every kind of storage, from host memory, and return how many."""
    index = torch.randint(0, 50, (200,))
    for width in WIDTHS:
        for dtype, scale in STORED:
            table = quantize(torch.randn(50, width), dtype, scale=scale)
            stored = pinned(backend, table.stored)
            factors = None if table.scale is None else pinned(backend, table.scale)
            wanted = Table(stored, torch.float32, factors)
            (got,) = backend.gather([wanted], index.to(backend.device))
            assert torch.equal(got.cpu(), table.rows_at(index)), (width, dtype, scale)
    return len(WIDTHS) * len(STORED)


def gather_cached(backend: CudaBackend) -> int:
    """Check rows of which a cache holds some, as they are and decoded, and return how many."""
    index = torch.randint(0, 50, (200,))
    plain, narrow = torch.randn(50, 100), quantize(torch.randn(50, 100), torch.int8, scale="row")
    assert narrow.scale is not None
    rows, stored = pinned(backend, plain), pinned(backend, narrow.stored)
    visits = (torch.arange(50) % 3 == 0).double()  # a cache holds rows that are visited
    tables = [Candidate("plain", rows, visits), Candidate("narrow", stored, visits)]
    backend._caches.fill(tables, 1 << 20, backend.gather_bytes)
    wanted = [
        (Table(rows), plain[index]),
        (Table(stored, torch.float32, pinned(backend, narrow.scale)), narrow.rows_at(index)),
    ]
    for table, expected in wanted:
        traffic = Traffic()
        (got,) = backend.gather([table], index.to(backend.device), None, traffic)
        assert torch.equal(got.cpu(), expected)
        found = sum(int(counter) for counter in traffic.found.values())
        assert found == int((visits[index] > 0).sum())
    return len(wanted)


def stream(backend: CudaBackend) -> int:
    """Check the sums of the streaming kernel, and return how many."""
    memory = torch.randint(0, 256, (50_000,), dtype=torch.uint8)
    lines = whole_lines(pinned(backend, memory))
    expected = lines.numpy().view(np.uint32).sum(dtype=np.int64)
    for blocks in (1, 3):
        assert int(read_all(backend, lines, blocks).sum()) == expected
    return 2


def pinned(backend: Backend, memory: torch.Tensor) -> torch.Tensor:
    """Return memory of the host that the device can read."""
    return memory if backend.device.type == "cpu" else memory.pin_memory()


def main(backend: Backend | None = None) -> None:
    """Check everything on the first GPU, or on a given backend."""
    backend = backend or backend_for(torch.device("cuda"))
    assert isinstance(backend, CudaBackend)
    batches = sum(
        check(backend)
        for check in (sample, sample_labor, sample_adaptive, sample_attributed, sample_by_steps)
    )
    gathers = gather(backend) + decode(backend) + gather_cached(backend)
    print(f"{batches} batches, {gathers} gathers and {stream(backend)} sums agree with the CPU")


if __name__ == "__main__":
    main()
