"""`CudaStreams` over the emulated device's streams: what waits for what, and what is kept."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from device_graphs import assert_equal, graph
from emulator import emulated, give_to_loaders, on_device, torch_device

from pyg_direct import NeighborLoader
from pyg_direct.loading.producing import start_producer
from pyg_direct.ops.cuda import streams as cuda_streams
from pyg_direct.ops.cuda.streams import CudaStreams


@pytest.fixture(params=[0, 1])
def device(request: pytest.FixtureRequest) -> torch.device:
    torch_device.load()
    return torch.device(torch_device.TYPE, request.param)


@pytest.fixture
def module(device: torch.device) -> Any:
    return torch.get_device_module(device)


def test_each_stage_has_a_stream_for_the_whole_process(device: torch.device, module: Any) -> None:
    streams, others = CudaStreams(device), CudaStreams(device)
    before, seen = streams.stream_id(), {}
    for stage in ("sample", "gather"):
        with streams.on(stage):
            seen[stage] = streams.stream_id()
            assert module.current_stream(device).device == device
            with others.on(stage):
                assert others.stream_id() == seen[stage]
        assert streams.stream_id() == before
    assert len({before, *seen.values()}) == 3


def test_a_stream_waits_for_an_event_of_another(device: torch.device, module: Any) -> None:
    streams = CudaStreams(device)
    with streams.on("sample"):
        event = streams.record_event()
    assert event.blocking, "else the host would spin on a core"
    with streams.on("gather"):
        assert not event.comes_before(module.current_stream(device))
        streams.wait_event(event)
        assert event.comes_before(module.current_stream(device))
    assert not event.comes_before(module.current_stream(device))
    assert event.waited_on == [], "the host did not wait"


def test_an_exception_leaves_the_stream(device: torch.device) -> None:
    streams = CudaStreams(device)
    before = streams.stream_id()
    with pytest.raises(KeyError), streams.on("sample"):
        raise KeyError
    assert streams.stream_id() == before


def test_an_event_is_of_the_current_stream(device: torch.device, module: Any) -> None:
    streams = CudaStreams(device)
    with streams.on("sample"):
        here = module.current_stream(device)
        event = streams.record_event()
        assert event.comes_before(here)
    with streams.on("gather"):
        assert not event.comes_before(module.current_stream(device))


def test_all_tensors_are_recorded(device: torch.device, module: Any) -> None:
    streams = CudaStreams(device)
    other = torch.device(torch_device.TYPE, 1 - device.index)
    tensors = [torch.zeros(3, device=device) for _ in range(3)]
    elsewhere = [torch.zeros(3), torch.zeros(3, device=other)]
    with streams.on("gather"):
        here = module.current_stream(device)
        streams.record_stream([elsewhere[0], *tensors, elsewhere[1]])
    assert all(module.was_recorded(tensor, here) for tensor in tensors)
    assert not module.was_recorded(elsewhere[1], here)
    assert not any(module.was_recorded(t, module.current_stream(device)) for t in tensors)


def test_producers_choose_their_device_once(device: torch.device, module: Any) -> None:
    """Before anything of the user's runs, so that no thread opens a context on GPU 0."""
    found: list[tuple[int, int]] = []
    arguments = CudaStreams(device), lambda number: found.append((number, module.current_device()))
    thread = threading.Thread(target=start_producer, args=(*arguments, (), 4))
    thread.start()
    thread.join()
    assert found == [(4, device.index)]
    assert module.current_device() == 0


class Nvtx:
    """`torch.cuda.nvtx`; `broken` as in a torch that was built without NVTX."""

    def __init__(self, broken: bool) -> None:
        self.broken, self.log = broken, []

    def range_push(self, name: str) -> None:
        if self.broken:
            raise RuntimeError("NVTX functions not installed. Are you sure you have a CUDA build?")
        self.log.append(name)

    def range_pop(self) -> None:
        self.log.append("pop")


@pytest.mark.parametrize("broken", [False, True])
def test_profiler_ranges_are_pushed_and_popped_also_after_errors(
    monkeypatch: pytest.MonkeyPatch, module: Any, broken: bool
) -> None:
    nvtx = Nvtx(broken)
    monkeypatch.setattr(module, "nvtx", nvtx, raising=False)
    streams = CudaStreams(torch.device(torch_device.TYPE, 0))
    del nvtx.log[:]
    with streams.on("sample"):
        pass
    with pytest.raises(KeyError), streams.on("gather"):
        raise KeyError
    expected = ["pyg_direct.sample", "pop", "pyg_direct.gather", "pop"]
    assert nvtx.log == ([] if broken else expected)


@pytest.fixture(params=[0, 1])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A device with real `CudaStreams`, which loaders use."""
    with emulated() as first:
        backend = on_device(first, request.param)
        compiler = backend.library.compiler
        compiler.streams = CudaStreams(compiler.device)
        give_to_loaders(backend, monkeypatch)
        yield backend


def epoch_errors(backend: Any, num_workers: int = 0) -> list[str]:
    """Run an epoch, and say what a consumer on another stream could not rely on."""
    module, found, taken = torch.get_device_module(backend.device), [], []
    take = cuda_streams.CudaStreams.wait_event

    def watched(self: CudaStreams, event: Any) -> None:
        take(self, event)
        if not event.comes_before(module.current_stream(self._device)):
            found.append("the consumer does not wait for its batch")
        taken.append(event)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cuda_streams.CudaStreams, "wait_event", watched)
        consumer = module.Stream(backend.device)
        with module.stream(consumer):
            for batch in NeighborLoader(
                graph(), [4, 3], batch_size=20, seed=1, num_workers=num_workers
            ):
                for name, value in batch.to_dict().items():
                    ours = isinstance(value, torch.Tensor) and value.device == backend.device
                    if ours and not module.was_recorded(value, consumer):
                        found.append(f"{name} may be freed while it is read")
    assert len(taken) == 8, "two stages of four batches"
    return found


def test_a_batch_waits_and_is_kept(backend: Any) -> None:
    assert epoch_errors(backend) == []
    assert epoch_errors(backend, num_workers=2) == []


def test_streams_that_do_not_wait_or_keep_are_noticed(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = CudaStreams.record_stream
    with monkeypatch.context() as patch:
        patch.setattr(CudaStreams, "record_stream", lambda s, t: record(s, list(t)[:1]))
        assert any("may be freed" in error for error in epoch_errors(backend))
    with monkeypatch.context() as patch:
        patch.setattr(CudaStreams, "wait_event", lambda self, event: None)
        assert any("does not wait" in error for error in epoch_errors(backend))


def test_producers_of_a_loader_run_on_its_device(backend: Any) -> None:
    module, found = torch.get_device_module(backend.device), []

    def transform(batch: Any) -> Any:
        found.append(module.current_device())
        return batch

    for workers in (0, 2):
        loader = NeighborLoader(graph(), [2], batch_size=40, num_workers=workers)
        loader.transform = transform
        list(loader)
    assert found == [backend.device.index] * 4


def test_producers_are_capped_on_a_gpu(backend: Any) -> None:
    started: list[int] = []
    loader = NeighborLoader(
        graph(), [2], batch_size=4, num_workers=8, worker_init_fn=started.append
    )
    iterator = iter(loader)
    next(iterator)
    assert len(iterator._results._threads) == backend.most_producers == 2
    assert iterator._producers.depth_batches == 4
    iterator._results.close()
    assert sorted(started) == [0, 1]


def test_batches_beside_a_foreign_allocator_are_made_and_finished_on_the_consumers_stream(
    backend: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An allocator such as RMM's does not know which streams read its memory."""
    expected = [batch.to_dict() for batch in NeighborLoader(graph(), [2], batch_size=9, seed=1)]
    monkeypatch.setattr(backend.library.compiler, "foreign_allocator", True, raising=False)
    module, waited, used = torch.get_device_module(backend.device), [], set()
    stream_id = CudaStreams.stream_id
    monkeypatch.setattr(
        CudaStreams, "stream_id", lambda self: used.add(stream_id(self)) or stream_id(self)
    )
    monkeypatch.setattr(module.Stream, "synchronize", lambda self: waited.append(self))
    consumer = module.Stream(backend.device)
    loader = NeighborLoader(graph(), [2], batch_size=9, seed=1, num_workers=2)
    with module.stream(consumer):
        found = [batch.to_dict() for batch in loader]
    assert used == {consumer.stream_id}
    assert waited == [consumer] * len(found)
    for batch, other in zip(found, expected, strict=True):
        assert_equal(batch, other)
