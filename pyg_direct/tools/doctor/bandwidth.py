"""How fast the device can read host memory, and how many of its threads that takes.

Two limits of the same PCIe connection: a kernel that streams over pinned memory, which is what a
gather can reach at most, and the copy engine. More threads than needed only take multiprocessors
from training, so a gather gets the smallest number that reaches the full bandwidth; see
`HostBandwidth.bytes_under_way`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor

from ...ops.cuda import memory as device_memory
from ...ops.cuda.backend import LINE_BYTES, LOADS_IN_FLIGHT, MAX_THREADS_PER_PROCESSOR, CudaBackend

WORD_BYTES = 16  # what a lane of `read_stream` reads at once
LADDER_BLOCKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
NUM_BYTES = 256 << 20  # several times the L2 cache
REPEATS = 5
TOLERANCE = 0.03

Timer = Callable[[Callable[[], object]], float]
"""Runs some work and returns the seconds that the device was busy with it."""


@dataclass(frozen=True)
class Rate:
    """The measured rate of one way to read."""

    threads: int  # 0: the copy engine
    num_bytes: int
    seconds: tuple[float, ...]  # of each repetition

    @property
    def samples(self) -> list[float]:
        """Bytes per second of each repetition."""
        return [self.num_bytes / seconds for seconds in self.seconds]

    @property
    def bytes_per_second(self) -> float:
        """The median."""
        return median(self.samples)


@dataclass(frozen=True)
class HostBandwidth:
    """The results of `measure_bandwidth`."""

    ladder: tuple[Rate, ...]  # by growing number of threads
    copy: Rate
    tolerance: float

    @property
    def best(self) -> Rate:
        """The fastest number of threads."""
        return max(self.ladder, key=lambda rate: rate.bytes_per_second)

    @property
    def bytes_under_way(self) -> int:
        """What `enough` threads had under way: LOADS_IN_FLIGHT words each."""
        return self.enough.threads * LOADS_IN_FLIGHT * WORD_BYTES

    @property
    def enough(self) -> Rate:
        """The smallest number of threads that comes within `tolerance` of the best."""
        wanted = (1 - self.tolerance) * self.best.bytes_per_second
        return next(rate for rate in self.ladder if rate.bytes_per_second >= wanted)


def measure_bandwidth(
    backend: CudaBackend,
    source: Tensor,
    timer: Timer | None = None,
    repeats: int = REPEATS,
    tolerance: float = TOLERANCE,
) -> HostBandwidth:
    """Measure how fast the device reads `source`.

    Args:
        backend: of the device.
        source: uint8 [n] in pinned memory, or on the device; see `host_bytes`. The lines of 128
            bytes that lie wholly in it are read.
        timer: None takes `event_timer`.
        repeats: how often each number of threads is measured, after once that is not.
        tolerance: see `HostBandwidth.enough`.

    Raises:
        ValueError: `source` has no whole line.
    """
    source = whole_lines(source)
    timer = timer or event_timer(backend.device)
    target = device_memory.empty(len(source), torch.uint8, backend.device)

    def rate(threads: int, work: Callable[[], object]) -> Rate:
        work()
        return Rate(threads, len(source), tuple(timer(work) for _ in range(repeats)))

    return HostBandwidth(
        tuple(
            rate(blocks * backend.block_threads, partial(read_all, backend, source, blocks))
            for blocks in ladder(backend)
        ),
        rate(0, lambda: target.copy_(source, non_blocking=True)),
        tolerance,
    )


def ladder(backend: CudaBackend) -> Sequence[int]:
    """Return the numbers of blocks to measure, up to what runs at once on the device."""
    processors = backend.library.compiler.processors
    most = processors * MAX_THREADS_PER_PROCESSOR // backend.block_threads
    steps = {*LADDER_BLOCKS, processors, 2 * processors}
    return sorted(blocks for blocks in steps if blocks <= most)


def read_all(backend: CudaBackend, source: Tensor, blocks: int) -> Tensor:
    """Read `source`, whole lines, and return int64 [threads]: the sums of what each thread read.

    Together they are the sum of the memory's 32-bit numbers modulo 2^64.
    """
    sums = device_memory.empty(blocks * backend.block_threads, torch.int64, backend.device)
    kernel = backend.library.load("bandwidth.cu")["read_stream"]
    kernel(blocks, source=source, words=len(source) // WORD_BYTES, sum=sums)
    return sums


def whole_lines(memory: Tensor) -> Tensor:
    """Return the part of uint8 [n] that begins and ends at lines of 128 bytes.

    Raises:
        ValueError: it is empty.
    """
    skip = -memory.data_ptr() % LINE_BYTES
    size = (len(memory) - skip) // LINE_BYTES * LINE_BYTES
    if size <= 0:
        raise ValueError(
            f"No whole line of {LINE_BYTES} bytes is in {len(memory)} bytes that begin {skip} "
            f"bytes before one: pass more of them."
        )
    return memory[skip : skip + size]


def host_bytes(num_bytes: int = NUM_BYTES) -> Tensor:
    """Return uint8 [num_bytes] of written, pinned host memory."""
    return torch.ones(num_bytes, dtype=torch.uint8).pin_memory()


def event_timer(device: torch.device) -> Timer:
    """Return a timer that lets the device take the time, on torch's current stream."""

    new_event: Any = torch.cuda.Event

    def seconds(work: Callable[[], object]) -> float:
        with torch.cuda.device(device):
            begin, end = new_event(enable_timing=True), new_event(enable_timing=True)
            begin.record()
            work()
            end.record()
            end.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    return seconds
