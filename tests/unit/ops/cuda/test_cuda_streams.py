"""`CudaStreams` over a fake `torch.cuda`: every call goes to the stream that is current."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from pyg_direct.ops.cuda import streams
from pyg_direct.ops.cuda.streams import CudaStreams

DEVICE = torch.device("cuda", 1)


class FakeStream:
    """Notes what it is told."""

    def __init__(self, device: Any = None) -> None:
        self.device, self.waits = device, []
        self.cuda_stream = id(self)

    def wait_event(self, event: Any) -> None:
        self.waits.append(event)


class FakeEvent:
    """Knows on which stream it was recorded, and whether it was waited for, and where."""

    def __init__(self, cuda: FakeCuda, blocking: bool = False) -> None:
        self._cuda, self.blocking = cuda, blocking
        self.stream: Any = None
        self.waited_on: list[Any] = []

    def record(self, stream: Any) -> None:
        self.stream = stream

    def synchronize(self) -> None:
        self.waited_on.append(self._cuda.current_device)


class FakeCuda:
    """In place of `torch.cuda`."""

    def __init__(self) -> None:
        self.main = FakeStream()
        self.current: Any = self.main
        self.current_device: Any = torch.device("cuda", 0)
        self.ranges: list[str] = []
        self.nvtx = SimpleNamespace(range_push=self.ranges.append, range_pop=self.ranges.pop)
        self.Stream = FakeStream

    def Event(self, blocking: bool = False) -> FakeEvent:  # noqa: N802
        return FakeEvent(self, blocking)

    def current_stream(self, device: Any) -> Any:
        assert device == DEVICE, "the stream of another device"
        return self.current

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    @contextmanager
    def device(self, device: Any) -> Iterator[None]:
        before, self.current_device = self.current_device, device
        try:
            yield
        finally:
            self.current_device = before


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    fake = FakeCuda()
    monkeypatch.setattr(streams, "torch", SimpleNamespace(cuda=fake))
    streams._side_stream.cache_clear()
    yield fake
    streams._side_stream.cache_clear()


def test_each_stage_has_a_stream_and_all_backends_share_it(cuda: FakeCuda) -> None:
    seen = {}
    for _ in range(2):
        mine = CudaStreams(DEVICE)
        for stage in ("sample", "gather"):
            with mine.on(stage):
                seen.setdefault(stage, set()).add(mine.stream_id())
                assert cuda.current.device == DEVICE
                assert cuda.ranges == [f"pyg_direct.{stage}"]
        assert cuda.current is cuda.main
        assert mine.stream_id() == cuda.main.cuda_stream
    assert len(seen["sample"] | seen["gather"]) == 2
    assert cuda.ranges == []


def test_an_exception_leaves_the_stream_and_the_range(cuda: FakeCuda) -> None:
    mine = CudaStreams(DEVICE)
    with pytest.raises(KeyError), mine.on("sample"):
        raise KeyError
    assert cuda.current is cuda.main
    assert cuda.ranges == []


def test_events_are_recorded_on_and_waited_for_by_the_current_stream(cuda: FakeCuda) -> None:
    mine = CudaStreams(DEVICE)
    with mine.on("sample"):
        sampler, event = cuda.current, mine.record_event()
    assert event.stream is sampler
    assert event.blocking, "else the host burns a core while it waits"
    with mine.on("gather"):
        mine.wait_event(event)
        assert cuda.current.waits == [event]
    assert cuda.main.waits == sampler.waits == []
    mine.wait_event(event)
    assert cuda.main.waits == [event]
    assert event.waited_on == [], "the host did not wait"


def test_the_host_waits_on_the_device_of_the_streams(cuda: FakeCuda) -> None:
    mine = CudaStreams(DEVICE)
    event = mine.record_event()
    mine.synchronize(event)
    assert event.waited_on == [DEVICE]
    assert cuda.current_device.index == 0


def test_every_tensor_on_the_device_is_recorded(cuda: FakeCuda) -> None:
    def tensor(device: Any) -> Any:
        users: list[Any] = []
        return SimpleNamespace(device=device, users=users, record_stream=users.append)

    mine = CudaStreams(DEVICE)
    tensors = [tensor(device) for device in (DEVICE, torch.device("cpu"), DEVICE, DEVICE)]
    with mine.on("gather"):
        stream = cuda.current
        mine.record_stream(iter(tensors))
    assert [t.users for t in tensors] == [[stream], [], [stream], [stream]]
