"""The loader on its streams: what it asks of them for a batch; on a GPU, that nothing is late."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from device_graphs import assert_equal, graph, heterogeneous_graph
from emulator import emulated, pin
from torch import Tensor
from two_gpus import Machine

import pyg_direct.loading.site
import pyg_direct.sampling.sampler
from pyg_direct import GraphSAINTNodeSampler, HGTLoader, LinkNeighborLoader, NeighborLoader
from pyg_direct.core.types import Table, Traffic
from pyg_direct.ops.cuda import streams
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.devices import usable_device
from pyg_direct.ops.host.hottest import Candidate
from pyg_direct.sampling.sampler import keyed


class Recorder:
    """`ops.streams.Streams` that run everything at once and write down what they are asked."""

    in_order = False

    def __init__(self) -> None:
        self.log: list[tuple[Any, ...]] = []
        self._local, self._events = threading.local(), 0

    @property
    def here(self) -> str:
        return getattr(self._local, "stage", "consumer")

    @contextmanager
    def on(self, stage: str) -> Iterator[None]:
        before, self._local.stage = self.here, stage
        yield
        self._local.stage = before

    def record_event(self) -> int:
        self._events += 1
        self.log.append((self.here, "record_event", self._events))
        return self._events

    def wait_event(self, event: int) -> None:
        self.log.append((self.here, "wait_event", event))

    def synchronize(self, event: int) -> None:
        self.log.append((self.here, "synchronize", event))

    def record_stream(self, tensors: Iterable[Tensor]) -> None:
        self.log.append(
            (self.here, "record_stream", {t.data_ptr() for t in tensors if t.numel() > 0})
        )

    def kept(self) -> set[int]:
        """Return the addresses of all tensors that a stream was said to use."""
        return {at for _, what, found in self.log if what == "record_stream" for at in found}

    def stream_id(self) -> int:
        return hash(self.here)

    def start_thread(self) -> None: ...


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    with emulated() as backend:
        compiler = backend.library.compiler
        compiler.streams = recorder = Recorder()
        for module in (pyg_direct.sampling.sampler, pyg_direct.loading.site):
            monkeypatch.setattr(
                module, "backend_for", lambda *_: CudaBackend(compiler.device, backend.library)
            )
        yield recorder


def events(log: list[tuple[Any, ...]], stage: str) -> list[tuple[str, Any]]:
    """Return the orders among streams that one stage gave."""
    return [
        (what, value) for where, what, value in log if where == stage and what != "record_stream"
    ]


@pytest.mark.parametrize("filter_per_worker", [True, False])
def test_a_batch_passes_from_stream_to_stream(recorder: Recorder, filter_per_worker: bool) -> None:
    arguments = {"num_neighbors": [4, 3], "batch_size": 80, "filter_per_worker": filter_per_worker}
    loader = NeighborLoader(graph(), seed=1, **arguments)
    iterator = iter(loader)
    batch = next(iterator)
    with pytest.raises(StopIteration):
        next(iterator)
    (asked,) = (value for what, value in events(recorder.log, "consumer") if what == "record_event")
    # The ids are copied to the host on the stream that sampled them, beside the gather.
    ((_, copied), (_, sampled)) = events(recorder.log, "sample")
    ready, finishes = sampled, "consumer"
    if filter_per_worker:
        (wait, wait_for_ids, (mark, ready)) = events(recorder.log, "gather")
        assert wait == ("wait_event", sampled)
        assert wait_for_ids == ("synchronize", copied)
        assert mark == "record_event"
        finishes = "gather"
    # In whichever thread it ran: the host waited for the consumer and for the ids, and the consumer
    # for the batch.
    assert [entry for entry in recorder.log if entry[1] == "synchronize"] == [
        ("consumer", "synchronize", asked),
        (finishes, "synchronize", copied),
    ]
    waits = [entry for entry in events(recorder.log, "consumer") if entry[0] == "wait_event"]
    assert waits[-1] == ("wait_event", ready)
    kept = {stage: set() for stage in ("sample", "gather", "consumer")}
    for stage, what, pointers in recorder.log:
        if what == "record_stream":
            kept[stage] |= pointers
    assert {t.device.type for t in (batch.n_id, batch.e_id, batch.input_id)} == {"cpu"}
    made = [batch.edge_index]
    if filter_per_worker:
        assert {t.data_ptr() for t in made} <= kept["gather"]
        made += [batch.x, batch.y]
    assert {t.data_ptr() for t in made} <= kept["consumer"]
    assert loader.data.edge_index.data_ptr() not in kept["consumer"]


class Tracker:
    """As a user's logger: it refers to the modules that it works with."""

    modules = sys.modules

    def __init__(self, tensor: Tensor) -> None:
        self.torch, self.all, self.seen = torch, sys.modules, tensor


def tracked(batch: Any) -> Any:
    stored = next(store for store in batch.stores if "x" in store)
    batch.tracker = Tracker(stored.x + 1)
    return batch


@pytest.mark.parametrize("kind", ["node", "link", "hgt", "saint"])
def test_a_batch_is_looked_through_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """The runtime refers to a module, which fails the test if the walk gets there."""
    with emulated() as backend:
        machine = Machine(backend, monkeypatch)
        machine.streams = recorder = Recorder()
        machine.used = machine.gpu(0)
        made, kept = list(loader_of(kind)), recorder.kept()
    assert len(made) > 0
    for batch in made:
        x = batch["paper"].x if kind == "hgt" else batch.x
        assert x.device == machine.gpu(0)
        assert x.data_ptr() in kept
        assert kind == "saint" or batch.tracker.seen.data_ptr() in kept


def loader_of(kind: str) -> Any:
    if kind == "hgt":
        return HGTLoader(heterogeneous_graph(), [4], "paper", batch_size=9, transform=tracked)
    if kind == "link":
        return LinkNeighborLoader(graph(), [4, 3], batch_size=99, transform=tracked)
    if kind == "saint":
        return GraphSAINTNodeSampler(graph(), batch_size=9)
    return NeighborLoader(graph(), [4, 3], batch_size=9, transform=tracked)


def test_memory_read_by_a_gather_is_kept() -> None:
    """Rows, their factors, ids out of range, what is cached, and the count of cached rows."""
    with emulated() as backend:
        backend.library.compiler.streams = recorder = Recorder()
        backend = CudaBackend(backend.device, backend.library)
        index = torch.tensor([3, 0, 19]).to(backend.device)
        table = torch.ones(20, 40, dtype=torch.int8).to(backend.device)
        factors = torch.rand(20, 1).to(backend.device)
        wrong = torch.zeros(1, dtype=torch.int64).to(backend.device)
        backend.gather([Table(table, torch.float32, factors)], index, wrong=wrong)
        assert {table.data_ptr(), factors.data_ptr(), wrong.data_ptr()} <= recorder.kept()
        on_host, traffic = pin(backend, torch.rand(20, 40)), Traffic()
        backend.memory.open_budget(0)
        hot = Candidate("x", on_host, torch.ones(20).double())
        backend._caches.fill([hot], 1 << 12, backend.gather_bytes)
        cache = backend._caches.of(on_host, backend.gather_bytes)
        assert cache is not None
        backend.gather([Table(on_host)], index, traffic=traffic)
        (counter,) = traffic.found.values()
        kept = recorder.kept()
        assert {t.data_ptr() for t in (cache.slots, cache.held, counter)} <= kept


def test_without_prefetching_there_are_no_streams(recorder: Recorder) -> None:
    before = threading.active_count()
    for _ in NeighborLoader(graph(), [4, 3], batch_size=80, prefetch=0):
        assert threading.active_count() == before
    assert {(stage, what) for stage, what, _ in recorder.log} == {
        ("consumer", "record_stream"),  # of the graph, the tables and the ids
        ("consumer", "record_event"),  # behind the copies of the ids
        ("consumer", "synchronize"),
    }


def test_one_producer_by_default_on_a_gpu(recorder: Recorder) -> None:
    for workers, expected in ((0, 1), (2, 2)):
        iterator = iter(NeighborLoader(graph(), [4, 3], batch_size=8, num_workers=workers))
        next(iterator)
        assert len(iterator._results._threads) == expected
        iterator._results.close()


def test_the_users_start_function_is_for_workers_alone(recorder: Recorder) -> None:
    started: list[int] = []
    for workers in (0, 2):
        data, arguments = graph(), {"batch_size": 40, "worker_init_fn": started.append}
        list(NeighborLoader(data, [2], num_workers=workers, **arguments))
    assert sorted(started) == [0, 1]


def test_a_workspace_belongs_to_a_stream(recorder: Recorder) -> None:
    """A call of the loader and its producers run on different streams, and share no scratch."""
    loader = NeighborLoader(graph(), [4, 3], batch_size=40)
    list(loader)
    loader([1, 2, 3])
    lanes = {lane for _, lane in keyed(loader.node_sampler).shared.workspaces._idle}
    assert lanes == {hash("sample"), hash("consumer")}


def test_the_default_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYG_DIRECT_DEVICE")
    monkeypatch.setattr(torch.version, "cuda", None)
    assert usable_device() == torch.device("cpu")
    assert next(iter(NeighborLoader(graph(), [2]))).x.device == torch.device("cpu")
    # A GPU without CuPy is said, and costs nothing but time.
    monkeypatch.setattr(torch.version, "cuda", "12.9")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.warns(RuntimeWarning, match=r"There is a GPU, but .*cupy-cuda12x>=13.*'cpu'"):
        assert usable_device() == torch.device("cpu")
    monkeypatch.setattr("pyg_direct.ops.cuda.compiler.require_cuda", lambda device: None)
    monkeypatch.setattr("pyg_direct.ops.devices.self_check", lambda device: "passed")
    assert usable_device() == torch.device("cuda", 0)


# Below, a real GPU.


def delayed(monkeypatch: pytest.MonkeyPatch, stage: str | None) -> None:
    """Put a kernel that takes some tenths of a millisecond before everything that a stage does."""
    on = streams.CudaStreams.on

    @contextmanager
    def slow(self: streams.CudaStreams, name: str) -> Iterator[None]:
        with on(self, name):
            if name == stage:
                torch.cuda._sleep(600_000)
            yield

    monkeypatch.setattr(streams.CudaStreams, "on", slow)


def on_gpu(loader_class: type = NeighborLoader, **arguments: Any) -> Any:
    data = graph(num_nodes=20_000, num_edges=300_000)
    arguments = {"num_neighbors": [10, 5], "batch_size": 20, "seed": 3, **arguments}
    return loader_class(data, device="cuda", **arguments)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("stage", "where", "num_workers"),
    [
        (None, "host", 2),
        ("sample", "host", 0),
        ("sample", "device", 2),
        ("gather", "host", 2),
        ("gather", "device", 0),
        ("consumer", "host", 0),
        ("consumer", "device", 2),
    ],
)
def test_overlapped_is_as_in_order(
    monkeypatch: pytest.MonkeyPatch, stage: str | None, where: str, num_workers: int
) -> None:
    """1,000 batches, read by a slow or a fast consumer and dropped at once."""
    places = {"topology": where, "features": where}
    delayed(monkeypatch, stage)
    sums: list[list[Tensor]] = []
    for prefetch in (0, 2):
        loader = on_gpu(prefetch=prefetch, num_workers=num_workers, **places)
        sums.append([])
        for batch in loader:
            if stage == "consumer":
                torch.cuda._sleep(500_000)
            sums[-1].append(
                torch.stack([
                    batch.x.double().sum(), batch.n_id.double().sum(), batch.e_id.double().sum(),
                    batch.edge_index.double().sum(), batch.half.double().sum(),
                ])
            )  # fmt: skip
            del batch
    assert len(sums[0]) == 1000
    assert torch.equal(torch.stack(sums[0]), torch.stack(sums[1]))


@pytest.mark.gpu
def test_batches_that_are_kept_stay_as_they_are() -> None:
    kept = list(on_gpu(num_workers=2))
    for got, expected in zip(kept, on_gpu(prefetch=0), strict=True):
        assert_equal(
            {k: v.cpu() if isinstance(v, Tensor) else v for k, v in got.to_dict().items()},
            {k: v.cpu() if isinstance(v, Tensor) else v for k, v in expected.to_dict().items()},
        )


@pytest.mark.gpu
def test_the_consumer_may_use_another_stream() -> None:
    expected = [batch.x.sum().item() for batch in on_gpu(prefetch=0)]
    with torch.cuda.stream(torch.cuda.Stream()):
        got = [batch.x.sum() for batch in on_gpu()]
        assert [value.item() for value in got] == expected


@pytest.mark.gpu
def test_every_tensor_is_on_the_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYG_DIRECT_DEVICE")
    for loader in (
        NeighborLoader(graph(), [4, 3], batch_size=20),
        NeighborLoader(graph(), [4, 3], batch_size=20, prefetch=0, disjoint=True),
        LinkNeighborLoader(graph(), [4, 3], batch_size=20, neg_sampling="triplet"),
    ):
        batch = next(iter(loader))
        found = {k: v.device.type for k, v in batch.to_dict().items() if isinstance(v, Tensor)}
        assert len(found) > 5
        on_host = {"n_id", "e_id", "input_id"} & found.keys()  # unless ids="device"
        assert {found.pop(name) for name in on_host} == {"cpu"}
        assert set(found.values()) == {"cuda"}, found


@pytest.mark.gpu
def test_memory_does_not_grow() -> None:
    """Neither on the device nor on the host, where the consumer is slower than the loader."""
    loader = on_gpu(num_workers=2)
    peaks = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        for _ in loader:
            torch.cuda._sleep(300_000)
        torch.cuda.synchronize()
        peaks.append(torch.cuda.max_memory_reserved())
    assert peaks[2] <= 1.1 * peaks[1]
