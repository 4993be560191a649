"""Interpreter time of a batch on the CUDA backend, with a driver that launches nothing.

    python -m benchmarks launch_overhead                # writes results/launch_overhead.json

The Python of the CUDA backend runs as on a GPU, up to the call that would launch a kernel: what is
left is the time that a batch holds the interpreter lock, which bounds the batches a second where
graph and features lie on the GPU. The counts that a GPU would have read back are those of the CPU
backend's batch. It is CPU time of the thread: other programs do not count. What CuPy and the
driver take for a launch, and torch for memory of a GPU, comes on top.
"""

from __future__ import annotations

import contextlib
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from benchmarks.result import new_result, parser, write
from pyg_direct.core.types import BatchKey, Csc, SampledGraph, SamplingPlan, Table
from pyg_direct.ops.backend import Workspace
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.launch import BLOCK_THREADS, Grid, Launch, Library, Prepare, raw_arguments
from pyg_direct.ops.cuda.pinning import Registry
from pyg_direct.ops.cuda.source import Declaration
from pyg_direct.ops.streams import NoStreams

WANTED_MS = 0.6


class Case(NamedTuple):
    """One size of graph and batch."""

    name: str
    num_nodes: int
    num_edges: int
    num_features: int
    fanouts: tuple[int, ...]
    batch_size: int


CASES = (
    Case("cora-sized", 2_708, 10_556, 100, (10, 10), 128),
    Case("products-sized", 2_449_029, 61_859_140, 100, (15, 10, 5), 1024),
)


class NoOpDevice:
    """A device whose launches do nothing but to be counted; see `ops.cuda.launch.Compiler`."""

    device, processors, block_threads = torch.device("cpu"), 132, BLOCK_THREADS
    link_bytes_under_way = None
    foreign_allocator = False

    def __init__(self) -> None:
        # Not as `tests.support`: other packages bring a `tests` of their own.
        sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))
        from emulator.runtime import FakeRuntime

        self.copies: Any = weakref.WeakValueDictionary()
        self.registry, self.streams = Registry(FakeRuntime()), NoStreams()
        self.launches = 0
        self.arguments = 0

    def free_bytes(self) -> int:
        return 1 << 40

    def build(
        self, file: str, text: str, types: Mapping[str, str], kernels: Sequence[Declaration]
    ) -> Mapping[str, Prepare]:
        return dict.fromkeys((kernel.name for kernel in kernels), self._prepare)

    def _prepare(self, block: int, arguments: Sequence[Any]) -> Launch:
        raw = raw_arguments(arguments)

        def launch(grid: Grid) -> None:
            self.launches += 1
            self.arguments += len(raw)

        return launch


def random_csc(case: Case) -> Csc:
    """Return a graph whose nodes have about equally many random neighbours."""
    rng = np.random.default_rng(0)
    zero = np.zeros(1, np.int64)
    return Csc(
        indptr=np.linspace(0, case.num_edges, case.num_nodes + 1).astype(np.int64),
        indices=rng.integers(0, case.num_nodes, case.num_edges, np.int32),
        perm=None, src_type=zero, dst_type=zero, indptr_base=zero,
        edge_base=np.array([0, case.num_edges]), num_nodes=np.array([case.num_nodes]),
    )  # fmt: skip


def run_batch(work: Workspace, seeds: Tensor, key: BatchKey) -> SampledGraph:
    """Sample one batch."""
    sampled = work.sample([seeds], key)
    assert sampled is not None
    return sampled


def counts_of(sampled: SampledGraph) -> Tensor:
    """Return what the device would have counted, in the order of `BatchState`."""
    assert sampled.num_sampled_edges is not None
    nodes = np.cumsum(np.array(sampled.num_sampled_nodes).T, 0)  # [hops + 1, T]
    edges = np.array(sampled.num_sampled_edges).T  # [hops, R]
    node_ptr = np.concatenate([np.zeros((1, nodes.shape[1]), np.int64), nodes])
    edge_ptr = np.concatenate([np.zeros((len(edges), 1), np.int64), np.cumsum(edges, 1)], 1)
    others = np.zeros((len(edges) + 2) * edge_ptr.shape[1], np.int64)
    first, last = others[: -edge_ptr.shape[1]], others[-edge_ptr.shape[1] :]
    return torch.from_numpy(np.concatenate([node_ptr.ravel(), first, edge_ptr.ravel(), last]))


def milliseconds(work: Callable[[], object], repeats: int) -> float:
    """Return the median CPU time of the thread over some repetitions."""
    samples = []
    for _ in range(repeats):
        begin = time.thread_time()
        work()
        samples.append(1e3 * (time.thread_time() - begin))
    return median(samples)


def measure(case: Case, repeats: int) -> dict[str, Any]:
    """Measure sampling and gathering of one case."""
    csc = random_csc(case)
    fanouts = np.array(case.fanouts).reshape(-1, 1)
    plan = SamplingPlan(fanouts, False, False, False, torch.int64)
    seeds = torch.randperm(case.num_nodes)[: case.batch_size]
    key = BatchKey(1, 2)
    cpu = CpuBackend()
    sampled = run_batch(cpu.workspace(cpu.memory.place_graph(csc), plan), seeds, key)
    counts = counts_of(sampled)

    replaced = {
        "download": lambda _: counts,
        "upload": lambda source, device: source.clone(),
        "upload_into": lambda target, source: target.copy_(source),
    }
    with contextlib.ExitStack() as stack:
        for name, function in replaced.items():
            stack.callback(setattr, device_memory, name, getattr(device_memory, name))
            setattr(device_memory, name, function)
        device = NoOpDevice()
        backend = CudaBackend(device.device, Library(device))
        work = backend.workspace(backend.memory.place_graph(csc), plan)
        x = torch.empty(case.num_nodes, case.num_features)
        y = torch.empty(case.num_nodes, dtype=torch.int64)
        run_batch(work, seeds, key)  # prepares the launches
        device.launches = device.arguments = 0
        node = run_batch(work, seeds, key).node[0]
        launches, arguments = device.launches, device.arguments
        end = case.num_nodes
        return {
            "nodes": len(node),
            "launches": launches,
            "arguments": arguments,
            "sample_ms": milliseconds(lambda: run_batch(work, seeds, key), repeats),
            "gather_ms": milliseconds(
                lambda: (
                    backend.gather([Table(x)], node, end)[0],
                    backend.gather([Table(y)], node, end)[0],
                ),
                repeats,
            ),
        }


def main(argv: list[str] | None = None) -> None:
    """Measure all cases and write the result."""
    options = parser(__doc__)
    options.add_argument("--repeats", type=int, help="of each measurement; 300 unless --quick")
    options.add_argument("--case", action="append", choices=[case.name for case in CASES])
    args = options.parse_args(argv)
    repeats = args.repeats or (3 if args.quick else 300)
    result = new_result("launch_overhead", args.quick, wanted_ms=WANTED_MS, repeats=repeats)
    cases = {
        case.name: measure(case, repeats)
        for case in CASES
        if not args.case or case.name in args.case
    }
    for name, record in cases.items():
        total = record["sample_ms"] + record["gather_ms"]
        print(f"{name}: {total:.3f} ms of at most {WANTED_MS} ({record})")
    result["cases"] = cases
    print(write(result, args.out))


if __name__ == "__main__":
    main()
