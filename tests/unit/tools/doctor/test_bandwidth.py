"""The streaming kernel reads every byte once, and the calibration picks the right rung."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from emulator import ORDERS, EmulatorError, emulated, pin
from torch import Tensor

from pyg_direct.ops.cuda import source
from pyg_direct.ops.cuda.backend import LOADS_IN_FLIGHT, CudaBackend
from pyg_direct.ops.devices import backend_for
from pyg_direct.tools.doctor import bandwidth as link
from pyg_direct.tools.doctor.bandwidth import (
    HostBandwidth,
    Rate,
    measure_bandwidth,
    read_all,
    whole_lines,
)

MEMORY = torch.from_numpy(np.random.default_rng(1).integers(0, 256, 80_000, np.uint8))


def expected_sums(memory: Tensor, threads: int) -> np.ndarray:
    """Return what each thread reads: the words thread, thread + threads, ..."""
    words = memory.numpy().view(np.uint32).reshape(-1, 4).astype(np.uint64).sum(axis=1)
    padded = np.zeros(-(-len(words) // threads) * threads, np.uint64)
    padded[: len(words)] = words
    return padded.reshape(-1, threads).sum(axis=0).view(np.int64)


def check(lines: int, blocks: int, order: int = 0, planted: tuple[str, str] = ("", "")) -> None:
    memory = whole_lines(MEMORY)[: 128 * lines]
    with emulated(order=order, planted=[planted] if planted[0] else []) as backend:
        device = backend.library.compiler
        device.recorded = "source"
        sums = read_all(backend, pin(backend, memory), blocks)
        device.memory.assert_written(sums, "sum")
        assert np.array_equal(sums.cpu().numpy(), expected_sums(memory, len(sums)))
        assert device.requests.requests == lines
        assert device.requests.payload_bytes == 128 * lines


@pytest.mark.parametrize("order", ORDERS)
def test_every_line_is_asked_for_once(order: int) -> None:
    for lines in (1, 2, 20, 33, 300):
        for blocks in (1, 2, 5):
            check(lines, blocks, order)


@pytest.mark.parametrize(
    "planted",
    [
        ("u * threads + thread_number()", "thread_number()"),  # the first words only
        ("value[u].x) +", "value[u].y) +"),  # a part of each word left out
        ("step += kReads * threads", "step += threads"),  # words read again
        ("word < words", "word + 1 < words"),  # not to the end
        ("u64 total = 0;", "u32 total = 0;"),  # a sum that overflows
        # The same words to other lanes: each instruction touches four times as many lines.
        ("step + u * threads + thread_number()", "step + u + kReads * thread_number()"),
    ],
)
def test_mistakes_are_caught(planted: tuple[str, str]) -> None:
    assert planted[0] in source.read_source("bandwidth.cu"), "nothing to replace"
    with pytest.raises(AssertionError):
        check(300, 2, planted=planted)


def test_a_read_behind_the_end_is_caught() -> None:
    with pytest.raises(EmulatorError, match="out-of-range read of read_stream: source"):
        check(33, 2, planted=("word < words", "true"))


def test_whole_lines_start_aligned_and_need_128_bytes() -> None:
    for skip in (0, 1, 16, 64, 127):
        lines = whole_lines(MEMORY[skip : skip + 1000])
        assert lines.data_ptr() % 128 == 0
        assert len(lines) % 128 == 0
        assert len(lines) >= 1000 - 2 * 127
    aligned = whole_lines(MEMORY)
    with pytest.raises(ValueError, match="No whole line of 128 bytes is in 200 bytes"):
        whole_lines(aligned[1:201])


def test_as_many_reads_in_flight_as_the_gather() -> None:
    """Otherwise the number of threads that fills the link would not carry over."""
    assert f"constexpr i32 kReads = {LOADS_IN_FLIGHT};" in source.read_source("bandwidth.cu")
    assert f"constexpr i32 kInFlight = {LOADS_IN_FLIGHT};" in source.read_source("gather.cu")


class Clock:
    """Takes what is asked for from a list, and runs the work."""

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.seconds, self.calls = seconds, 0

    def __call__(self, work: Callable[[], object]) -> float:
        work()
        self.calls += 1
        return self.seconds(self.calls - 1)


def measure(backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> HostBandwidth:
    monkeypatch.setattr(link, "LADDER_BLOCKS", (1, 2, 4, 8))
    return measure_bandwidth(backend, pin(backend, MEMORY[:5000]), clock, repeats=3)


def test_the_ladder_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rungs of 1, 2, 4 and 8 blocks, and the copy: 8, 4, 2, 2.02 and 1 us; one sample is an outlier.
    clock = Clock(lambda call: 9e-3 if call == 4 else (8e-6, 4e-6, 2e-6, 2.02e-6, 1e-6)[call // 3])
    with emulated() as backend:
        speed = measure(backend, monkeypatch, clock)
        assert clock.calls == 15
        assert backend.library.compiler.launches == 16  # once more each, not timed
    assert [rate.threads for rate in speed.ladder] == [64, 128, 256, 512]
    assert speed.copy.threads == 0
    num_bytes = speed.copy.num_bytes
    assert num_bytes % 128 == 0
    assert 4700 < num_bytes <= 5000
    assert speed.ladder[1].bytes_per_second == pytest.approx(num_bytes / 4e-6)
    assert speed.copy.bytes_per_second == pytest.approx(num_bytes / 1e-6)
    assert speed.best.threads == speed.enough.threads == 256


def rates(*values: float) -> HostBandwidth:
    ladder = tuple(Rate(64 << i, 1000, (1000 / value,)) for i, value in enumerate(values))
    return HostBandwidth(ladder, Rate(0, 1000, (1.0,)), tolerance=0.03)


def test_enough_threads_are_the_fewest_near_the_best_rate() -> None:
    assert rates(10, 20, 49, 50, 49.9).enough.threads == 64 << 2
    assert rates(10, 20, 48, 50, 49.9).enough.threads == 64 << 3
    assert rates(50, 50, 50).enough.threads == 64
    assert rates(10, 20, 30).enough.threads == rates(10, 20, 30).best.threads == 64 << 2


def test_the_ladder_fits_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated() as backend:
        assert link.ladder(backend) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
        monkeypatch.setattr(backend.library.compiler, "processors", 40)
        found = link.ladder(backend)
        assert found[-3:] == [64, 80, 96]
        assert 40 in found


@pytest.mark.gpu
def test_on_a_device() -> None:
    backend = backend_for(torch.device("cuda"))
    assert isinstance(backend, CudaBackend)
    memory = torch.randint(0, 256, (10 << 20,), dtype=torch.uint8)
    for place in (memory.pin_memory(), memory.cuda()):
        lines = whole_lines(place)
        sums = read_all(backend, lines, 7)
        assert np.array_equal(sums.cpu().numpy(), expected_sums(lines.cpu(), len(sums)))
    speed = measure_bandwidth(backend, memory.pin_memory(), repeats=3)
    assert 1e8 < speed.enough.bytes_per_second < 1e12
    assert 1e8 < speed.copy.bytes_per_second < 1e12
