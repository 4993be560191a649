"""Two producers over one backend, of which one is broken off at every line: they share nothing.

They have a workspace each, and the same stream, as in a loader with `num_workers=2`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from conformance import (
    Case,
    assert_same,
    homogeneous,
    with_excluded_edges,
    with_seed_times,
    with_times,
)
from emulator import emulated, pin
from meetings import Meeting
from torch import Tensor

from pyg_direct.core.types import BatchKey, SampledGraph, Table
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.cuda.backend import CudaBackend

# What is uploaded and read back for a batch, and where.
SOME = ("ops/cuda/arrays.py", "ops/cuda/memory.py", "ops/cuda/backend.py")
ALL = (
    *SOME, "ops/cuda/workspace.py", "ops/cuda/drawing.py", "ops/cuda/emit.py", "ops/cuda/table.py",
    "ops/cuda/bounds.py", "ops/cuda/descriptor.py", "ops/cuda/launch.py", "ops/cuda/row_cache.py",
)  # fmt: skip


@pytest.fixture
def backend() -> Iterator[CudaBackend]:
    with emulated(block_threads=32) as backend:
        yield backend


def test_uploads_of_two_threads_at_every_instruction(backend: CudaBackend) -> None:
    mine, theirs = torch.arange(5), torch.arange(100, 109)
    targets = [torch.zeros(len(t), dtype=torch.int64).to(backend.device) for t in (mine, theirs)]

    def upload(number: int, source: Tensor) -> Callable[[], Tensor]:
        def run() -> Tensor:
            device_memory.upload_into(targets[number], source)
            return device_memory.upload(source, backend.device)

        return run

    meeting, met = Meeting(["ops/cuda/memory.py"], by_instruction=True), 0
    for one, other in meeting.all(upload(0, mine), upload(1, theirs)):
        assert torch.equal(one.cpu(), mine)
        assert torch.equal(other.cpu(), theirs)
        assert torch.equal(targets[0].cpu(), mine)
        assert torch.equal(targets[1].cpu(), theirs)
        met += 1
    assert met > 10


def test_downloads_of_two_threads_at_every_instruction(backend: CudaBackend) -> None:
    sources = [torch.arange(n, n + 5).to(backend.device) for n in (5, 9)]
    meeting, met = Meeting(["ops/cuda/memory.py"], by_instruction=True), 0
    for pair in meeting.all(
        lambda: (device_memory.download(sources[0]), device_memory.begin_download(sources[0])),
        lambda: (device_memory.download(sources[1]), device_memory.begin_download(sources[1])),
    ):
        for found, source in zip(pair, sources, strict=True):
            assert all(torch.equal(part, source.cpu()) for part in found)
        met += 1
    assert met > 10


def excluded() -> Case:
    return with_excluded_edges(
        np.random.default_rng(1), homogeneous([3, 2], num_nodes=50, num_edges=90, seeds=3)
    )


def timed() -> Case:
    rng, case = np.random.default_rng(1), homogeneous([3, 2], num_nodes=50, num_edges=90, seeds=3)
    return with_seed_times(rng, case, with_times(rng, case.csc, True))


@pytest.mark.parametrize(
    ("case", "files"),
    [
        (excluded(), SOME),
        pytest.param(excluded(), ALL, marks=pytest.mark.slow),
        pytest.param(timed(), ALL, marks=pytest.mark.slow),
    ],
    ids=["some", "all", "times"],
)
def test_batches_of_two_producers_at_every_line(
    backend: CudaBackend, case: Case, files: Sequence[str]
) -> None:
    other = replace(case, key=BatchKey(3, 4), seeds=[seed.flip(0) for seed in case.seeds])
    if case.seed_time is not None:
        other = replace(other, seed_time=case.seed_time + 3)
    expected = [sampled(CpuBackend(), each) for each in (case, other)]
    csc = backend.memory.place_graph(case.csc)
    works = [backend.workspace(csc, case.plan) for _ in range(2)]
    table = pin(backend, torch.rand(len(case.csc.indptr), 12).half())
    index = [torch.tensor(ids).to(backend.device) for ids in ([3, 1, 40], [5, 48])]

    def batch(number: int) -> Callable[[], tuple[SampledGraph | None, list[Tensor]]]:
        one = (case, other)[number]

        def run() -> tuple[SampledGraph | None, list[Tensor]]:
            graph = works[number].sample(one.seeds, one.key, one.rules)
            tables = [Table(table), Table(table, torch.float32)]
            return graph, backend.gather(tables, index[number], len(table))

        return run

    batch(0)(), batch(1)()
    meeting, met = Meeting(files), 0
    for pair in meeting.all(batch(0), batch(1)):
        for number, (graph, rows) in enumerate(pair):
            assert_same(graph, expected[number])
            assert torch.equal(rows[0].cpu(), table[index[number].cpu()])
            assert torch.equal(rows[1].cpu(), table[index[number].cpu()].float())
        met += 1
    assert met > 50


def sampled(backend: CpuBackend, case: Case) -> SampledGraph:
    work = backend.workspace(backend.memory.place_graph(case.csc), case.plan)
    graph = work.sample(case.seeds, case.key, case.rules)
    assert graph is not None
    return graph
