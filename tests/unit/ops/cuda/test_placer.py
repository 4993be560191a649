"""Where graph and features lie for a GPU: what 'auto' decides, what fails, and what that costs."""

from __future__ import annotations

import copy
import gc
import io
import logging
import pickle
import unittest
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from device_graphs import assert_equal as assert_same
from device_graphs import attributed_graph, graph, heterogeneous_graph
from emulator import emulated
from emulator.runtime import FakeRuntime
from torch import Tensor

import pyg_direct.loading.site
import pyg_direct.sampling.sampler
from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.ops.cuda import backend as cuda
from pyg_direct.ops.cuda import placer
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.pinning import MEMORY_ALLOCATION, CudaError, Registry
from pyg_direct.ops.placement import ON_DEVICE, PINNED_COPY, REGISTERED, STAGED
from pyg_direct.sampling.sampler import keyed

REFUSED = CudaError(MEMORY_ALLOCATION, "cudaErrorMemoryAllocation")


class Gpu:
    """An emulated GPU, its runtime, and what its gathers read."""

    def __init__(self, backend: CudaBackend) -> None:
        self.device = backend.library.compiler
        self.runtime: FakeRuntime = self.device.registry.runtime
        self.read: list[Tensor] = []
        self.backends: list[CudaBackend] = []

    def backend_for(self, device: torch.device, threads: int = 1) -> CudaBackend:
        """Give every loader a backend of its own over the one device, as on a real one."""
        self.backends.append(CudaBackend(self.device.device, self.library))
        return self.backends[-1]

    def assert_readable(self, tensor: Tensor) -> None:
        """Raise unless every byte is pinned, or in memory that the backend made itself."""
        first, last = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes
        for source in self.sources:
            start = source.untyped_storage().data_ptr()
            if start < last and first < start + source.untyped_storage().nbytes():
                for address in (*range(first, last, 4096), last - 1):
                    assert self.runtime.is_pinned(address), "a kernel reads pageable memory"

    def read_by(self, loader: NeighborLoader, name: str) -> Iterator[Tensor]:
        """Yield what a loader reads for an attribute."""
        yield loader._backend.memory.readable(loader.data[name])

    sources: list[Tensor]  # the user's tensors


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gpu]:
    # Even the smallest and the narrowest tensor is registered; what those get is tested elsewhere.
    monkeypatch.setattr(placer, "MIN_REGISTER_BYTES", 1)
    monkeypatch.setattr(placer, "NARROW_ROW_BYTES", 0)
    with emulated() as backend:
        gpu = Gpu(backend)
        gpu.library = backend.library
        gpu.sources = []
        gather_bytes = CudaBackend.gather_bytes

        def watched(self: CudaBackend, table: Tensor, *arguments: Any) -> None:
            gpu.assert_readable(table)
            gpu.read.append(table)
            gather_bytes(self, table, *arguments)

        monkeypatch.setattr(cuda.CudaBackend, "gather_bytes", watched)
        for module in (pyg_direct.sampling.sampler, pyg_direct.loading.site):
            monkeypatch.setattr(module, "backend_for", gpu.backend_for)
        yield gpu


def loader_of(gpu: Gpu, data: Any, **arguments: Any) -> NeighborLoader:
    gpu.sources = [
        v for s in data.stores for v in s.values() if isinstance(v, Tensor) and not v.is_sparse
    ]
    arguments = {"num_neighbors": [4, 3], "batch_size": 20, "seed": 5, **arguments}
    return NeighborLoader(data, **arguments)


def places(loader: NeighborLoader) -> dict[str, str]:
    return {row.name: row.place for row in loader.placement.rows}


def batches(loader: NeighborLoader) -> list[dict[str, Any]]:
    return [batch.to_dict() for batch in loader]


def assert_equal(got: list[dict[str, Any]], expected: list[dict[str, Any]]) -> None:
    for mine, theirs in zip(got, expected, strict=True):
        assert_same(mine, theirs)


@pytest.fixture(scope="module")  # so that it comes before `gpu`, on the CPU backend
def expected() -> list[dict[str, Any]]:
    data = graph()
    return batches(NeighborLoader(data, num_neighbors=[4, 3], batch_size=20, seed=5, device="cpu"))


FEATURES = {"data.x", "data.y", "data.half", "data.edge_attr"}
TOPOLOGY = {"indptr", "indices", "perm"}


@pytest.mark.parametrize("topology", ["host", "device", "auto"])
@pytest.mark.parametrize("features", ["host", "device", "auto"])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_the_batches_do_not_depend_on_it(
    gpu: Gpu, expected: list[dict[str, Any]], topology: str, features: str, prefetch: int
) -> None:
    loader = loader_of(gpu, graph(), topology=topology, features=features, prefetch=prefetch)
    assert_equal(batches(loader), expected)
    found = places(loader)
    assert found.keys() == FEATURES | TOPOLOGY
    want = {"host": REGISTERED, "device": ON_DEVICE, "auto": ON_DEVICE}
    assert {found[name] for name in TOPOLOGY} == {want[topology]}
    assert {found[name] for name in FEATURES} == {want[features]}
    assert len(gpu.read) == 16
    user = {tensor.data_ptr() for tensor in gpu.sources}
    assert all((table.data_ptr() in user) == (features == "host") for table in gpu.read)


def test_the_budget_takes_the_graph_first_then_small_features(gpu: Gpu) -> None:
    """The graph comes first and then the small features; what does not fit stays on the host."""
    data = graph()
    sizes = {row.name: row.nbytes for row in loader_of(gpu, data).placement.rows}
    assert sizes["indptr"] == 81 * 4
    assert sizes["data.x"] == 80 * 33 * 4
    names = ["indptr", "indices", "perm", "data.half", "data.y", "data.edge_attr", "data.x"]
    assert set(names) == sizes.keys()
    for count in range(len(names) + 1):
        budget = sum(sizes[name] for name in names[:count])
        for spare in (0, 3):
            loader = loader_of(gpu, graph(), device_bytes=budget + spare)  # its own tensors
            on_device = [row.name for row in loader.placement.rows if row.place == ON_DEVICE]
            assert on_device == names[:count]
            assert loader.placement.budget_bytes == budget + spare


def test_nothing_is_left_of_a_budget_that_is_used_up(gpu: Gpu) -> None:
    memory = gpu.backend_for(torch.device("cpu")).memory
    memory.open_budget(0)
    assert memory.left_bytes() == 0


def test_no_more_is_left_than_half_of_what_is_free_now(gpu: Gpu) -> None:
    memory = gpu.backend_for(torch.device("cpu")).memory
    memory.open_budget(1000)
    for free, left in ((3000, 1000), (600, 300)):
        gpu.device.free = free
        assert memory.left_bytes() == left


def test_half_of_the_free_memory_by_default(gpu: Gpu) -> None:
    gpu.device.free = 2 * (81 * 4 + 5)
    loader = loader_of(gpu, graph())
    assert loader.placement.budget_bytes == 81 * 4 + 5
    assert [name for name, place in places(loader).items() if place == ON_DEVICE] == ["indptr"]


def test_placement_is_logged_and_printed(gpu: Gpu) -> None:
    with unittest.TestCase().assertLogs("pyg_direct", logging.INFO) as logs:
        loader = loader_of(gpu, graph(), features="host")
    messages = [record.getMessage() for record in logs.records]
    assert "data.x: host memory, registered where it lies (10.6 kB)" in messages
    text = str(loader.placement)
    first = "batches on privateuseone:0 (PYG_DIRECT_DEVICE names it), at most 549.8 GB of it"
    assert text.splitlines()[0] == first
    assert len(text.splitlines()) == 8
    assert "  data.x " in text


def test_a_table_on_the_host_is_not_copied(gpu: Gpu) -> None:
    data = graph()
    loader = loader_of(gpu, data, features="host")
    batches(loader)
    assert data.x.data_ptr() in {table.data_ptr() for table in gpu.read}
    assert "allocate" not in gpu.runtime.names()
    data.x += 1  # so a change in place is seen, without anybody noticing it
    batch = next(iter(loader))
    assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])


@pytest.mark.parametrize(("mebibytes", "place"), [(31, PINNED_COPY), (32, REGISTERED)])
def test_only_tensors_with_pages_of_their_own_are_registered(mebibytes: int, place: str) -> None:
    """CUDA refuses to copy a tensor of which a page is registered for another one."""
    table = torch.zeros(mebibytes << 20, dtype=torch.uint8).view(-1, 1024)
    with emulated() as backend:
        backend.memory.place_tables([("x", table)], "host")
        assert backend.memory.placement.rows[-1].place == place


@pytest.mark.parametrize("features", ["host", "device"])
def test_copies_follow_their_source(
    gpu: Gpu, monkeypatch: pytest.MonkeyPatch, features: str
) -> None:
    monkeypatch.setattr(placer, "MIN_REGISTER_BYTES", 1 << 20)
    data = graph()
    loader = loader_of(gpu, data, features=features)
    assert places(loader)["data.x"] == (ON_DEVICE if features == "device" else PINNED_COPY)
    for _ in range(2):
        batch = next(iter(loader))
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
        data.x.mul_(2)
    loader.data.x = torch.randn(80, 7)  # and a new tensor takes the place of the old one
    batch = next(iter(loader))
    assert torch.equal(batch.x.cpu(), loader.data.x[batch.n_id.cpu()])


def test_loaders_share_the_copies_on_a_device(gpu: Gpu) -> None:
    data = graph()
    loaders = [loader_of(gpu, data, features="device", prefetch=0) for _ in range(2)]
    # Also one whose budget would have had no room for it.
    loaders.append(loader_of(gpu, data, topology="host", device_bytes=0, prefetch=0))
    assert {places(loader)["data.x"] for loader in loaders} == {ON_DEVICE}
    read = {next(gpu.read_by(loader, "x")).data_ptr() for loader in loaders}
    assert len(read) == 1
    assert read != {data.x.data_ptr()}
    data.x.mul_(3)
    for loader in loaders:
        batch = next(iter(loader))
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id.cpu()])
    del loader, loaders
    gpu.backends.clear()
    gc.collect()
    assert len(gpu.device.copies) == 0


def test_copies_that_are_made_in_inference_mode_can_be_made_anew(gpu: Gpu) -> None:
    loader = loader_of(gpu, graph(), features="device")
    loader.data.x = torch.randn(80, 7)
    with torch.inference_mode():
        next(iter(loader))
    loader.data.x.mul_(2)
    batch = next(iter(loader))
    assert torch.equal(batch.x.cpu(), loader.data.x[batch.n_id.cpu()])


def test_batches_in_and_out_of_inference_mode(gpu: Gpu, expected: list[dict[str, Any]]) -> None:
    """A workspace that was made in inference mode is used again outside of it."""
    loader = loader_of(gpu, graph(), prefetch=0)
    iterator, got = iter(loader), []
    for number in range(4):
        with torch.inference_mode(number % 2 == 0):
            got.append(next(iterator).to_dict())
    assert_equal(got, expected)


@pytest.mark.slow
def test_tensors_that_are_replaced_do_not_pile_up(gpu: Gpu) -> None:
    data = graph()
    loader = loader_of(gpu, data, features="host")
    gpu.sources, registered = [], len(gpu.runtime.ranges)
    for _ in range(20):
        loader.data.x = torch.randn(80, 33)
        next(iter(loader))
        gc.collect()
    assert len(gpu.runtime.ranges) <= registered + 1
    assert len(gpu.backends[0].memory._held) == len(FEATURES)


def test_nothing_stays_registered(gpu: Gpu) -> None:
    data = graph()
    first = loader_of(gpu, data, features="host", topology="host")
    second = loader_of(gpu, data, features="host", topology="host")
    batches(first), batches(second)
    assert gpu.runtime.ranges
    del first
    gc.collect()
    gpu.backends.pop(0)
    assert gpu.runtime.is_pinned(data.x.data_ptr()), "the second loader still reads it"
    del second
    gc.collect()
    gpu.backends.clear()
    gpu.read.clear()
    gc.collect()
    assert gpu.runtime.ranges == {}
    names = gpu.runtime.names()
    assert names.count("register") == names.count("unregister")


def test_small_tensors_are_copied(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placer, "MIN_REGISTER_BYTES", 80 * 33 * 4)
    found = places(loader_of(gpu, graph(), features="host"))
    assert found["data.x"] == REGISTERED
    assert found["data.y"] == PINNED_COPY


def test_a_failed_registration_becomes_a_pinned_copy(
    gpu: Gpu, expected: list[dict[str, Any]]
) -> None:
    # That of a feature: of 'half', unless it lies on pages that are registered by now.
    gpu.runtime.fail = [None, None, None, REFUSED]
    with pytest.warns(RuntimeWarning, match=r"memlock=-1.*A pinned copy") as warned:
        loader = loader_of(gpu, graph(), features="host", topology="host")
    (warning,) = warned
    assert places(loader)[str(warning.message).split()[0]] == PINNED_COPY
    assert_equal(batches(loader), expected)


def test_without_pinned_memory_the_cpu_selects(gpu: Gpu, expected: list[dict[str, Any]]) -> None:
    gpu.runtime.fail, gpu.runtime.fail_allocate = [REFUSED] * 4, REFUSED
    with pytest.warns(RuntimeWarning, match="So the CPU selects its rows") as warned:
        loader = loader_of(gpu, graph(), features="host")
    assert len(warned) == 4
    assert {places(loader)[name] for name in FEATURES} == {STAGED}
    assert_equal(batches(loader), expected)
    assert gpu.read == []


def test_a_graph_that_cannot_be_pinned_is_an_error(gpu: Gpu) -> None:
    gpu.runtime.fail, gpu.runtime.fail_allocate = [REFUSED], REFUSED
    with pytest.raises(RuntimeError, match=r"indptr \(.*could not be copied to pinned memory"):
        loader_of(gpu, graph(), topology="host")


class OutOfMemory:
    """Device memory that holds no copy of the largest table."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        copy = Registry.copy

        def refusing(registry: Registry, target: Tensor, source: Tensor) -> None:
            if source.shape == (80, 33):
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            copy(registry, target, source)

        monkeypatch.setattr(Registry, "copy", refusing)


def test_too_little_device_memory(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    OutOfMemory(monkeypatch)
    assert places(loader_of(gpu, graph()))["data.x"] == REGISTERED
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"data\.x .* features='host'"):
        loader_of(gpu, graph(), features="device")


def test_heterogeneous_temporal_weighted(gpu: Gpu, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"weight_attr": "weight", "time_attr": "time"}
    for data, more, topology in (
        (heterogeneous_graph(), {"input_nodes": "paper"}, set()),
        (attributed_graph(), arguments, {"time", "weight", "cumulative"}),
        (attributed_graph(), {"weight_attr": "weight"}, {"alias", "weight", "cumulative"}),
    ):
        on_host = loader_of(gpu, data, topology="host", features="host", **more)
        assert set(places(on_host).values()) == {REGISTERED}
        assert topology <= places(on_host).keys()
        on_device = loader_of(gpu, data, topology="device", features="device", **more)
        assert_equal(batches(on_host), batches(on_device))


def test_attributes_that_are_no_tables_are_not_placed(gpu: Gpu) -> None:
    """Other layouts, gradients and NumPy arrays go PyG's way."""
    data = graph()
    data.transposed = torch.randn(5, 80).t()
    data.sparse = torch.eye(80).to_sparse()
    data.array = np.arange(80)
    data.weights = torch.randn(80, 2, requires_grad=True)
    loader = loader_of(gpu, data, features="host")
    assert places(loader).keys() == FEATURES | TOPOLOGY
    batch = next(iter(loader))
    n_id = batch.n_id.cpu()
    assert torch.equal(batch.transposed.cpu(), data.transposed[n_id])
    assert torch.equal(batch.array.cpu(), torch.from_numpy(data.array)[n_id])
    assert batch.weights.requires_grad


def test_a_pickled_loader_places_its_graph_again(gpu: Gpu) -> None:
    sampler = NeighborSampler(graph(), [4, 3], device="cpu", topology="host", seed=1)
    calls = len(gpu.runtime.calls)
    stream = io.BytesIO()
    _Pickler(stream).dump(sampler)
    stream.seek(0)
    copy = _Unpickler(stream, gpu).load()
    assert gpu.runtime.names()[-3:] == ["register"] * 3
    assert len(gpu.runtime.calls) > calls
    placed, before = keyed(copy).graph.csc, keyed(sampler).graph.csc
    assert isinstance(placed.indptr, Tensor)
    assert torch.equal(placed.indices, before.indices)


class _Pickler(pickle.Pickler):
    """Leaves out the backend, which finds its device again by a number that is not emulated."""

    def persistent_id(self, obj: Any) -> str | None:
        return "backend" if isinstance(obj, CudaBackend) else None


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, gpu: Gpu) -> None:
        super().__init__(stream)
        self._gpu = gpu

    def persistent_load(self, name: str) -> CudaBackend:
        return self._gpu.backend_for(torch.device("cpu"))


def test_on_the_cpu_everything_stays_where_it_is() -> None:
    loader = NeighborLoader(graph(), [3], features="host", topology="host", device_bytes=0)
    assert str(loader.placement).splitlines() == [
        "batches on cpu (PYG_DIRECT_DEVICE names it)",
        "  no effect on the CPU: topology, features, device_bytes",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"topology": "device"}, "topology='device' needs a CUDA device"),
        ({"features": "device"}, "features='device' needs a CUDA device"),
        ({"topology": "gpu"}, "topology must be one of 'auto', 'host', 'device', got 'gpu'"),
        ({"features": None}, "features must be one of 'auto', 'host', 'device', got None"),
        ({"device_bytes": -1}, "device_bytes must be None or a number of bytes"),
        ({"device_bytes": 1e9}, r"device_bytes must be .* got 1000000000\.0"),
        ({"device_bytes": True}, "device_bytes must be .* got True"),
    ],
    ids=str,
)
def test_wrong_arguments_of_placement_are_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        NeighborLoader(graph(), [3], **arguments)


def test_beside_a_ready_sampler() -> None:
    sampler = NeighborSampler(graph(), [3])
    zeros = {"device_bytes": 0}, {"time_window": 0}
    for arguments in ({"topology": "host"}, {"device_bytes": 5}, *zeros):
        with pytest.raises(ValueError, match=f"so {next(iter(arguments))} would be ignored"):
            NeighborLoader(graph(), [3], neighbor_sampler=sampler, **arguments)
    with pytest.raises(ValueError, match="device='cuda' contradicts neighbor_sampler="):
        NeighborLoader(graph(), [3], neighbor_sampler=sampler, device="cuda")
    NeighborLoader(graph(), [3], neighbor_sampler=sampler, device="cpu")


def test_two_loaders_over_one_sampler_place_alike(gpu: Gpu) -> None:
    data = graph()
    sampler = NeighborSampler(data, [4, 3], device="cpu", seed=5)
    first = loader_of(gpu, data, features="host", neighbor_sampler=sampler, num_neighbors=[4, 3])
    with pytest.raises(ValueError, match="features='auto' contradicts features='host' of another"):
        loader_of(gpu, data, neighbor_sampler=sampler)
    second = loader_of(gpu, data, features="host", neighbor_sampler=sampler)
    assert places(first) == places(second)
    assert places(first)["data.x"] == REGISTERED


def test_a_shallow_copy_shares_the_placed_graph(gpu: Gpu) -> None:
    sampler = NeighborSampler(graph(), [3], device="cpu", topology="host")
    calls = len(gpu.runtime.calls)
    twin = copy.copy(sampler)
    twin.num_neighbors = [2, 2]
    assert len(gpu.runtime.calls) == calls
    assert keyed(twin).graph is keyed(sampler).graph


def test_a_graph_that_was_not_verified_is_refused(gpu: Gpu) -> None:
    csc = keyed(NeighborSampler(graph(), [2], device="cpu")).graph.csc
    backend = gpu.backend_for(gpu.device.device)
    with pytest.raises(ValueError, match="must be verified"):
        backend.memory.place_graph(replace(csc, verified=False))
