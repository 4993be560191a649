"""Where batches lie: the device that the process uses, and ids on the host, as in PyG.

The device is emulated and is not torch's CPU, so that an index on the wrong side fails as it does
on a GPU.
"""

from __future__ import annotations

import copy
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from emulator import emulated, on_device
from graphs import citations, example_graph, papers_and_authors
from torch import Tensor
from torch_geometric.loader import NeighborLoader as PygLoader
from torch_geometric.nn import GraphSAGE
from torch_geometric.sampler import NeighborSampler as PygSampler
from torch_geometric.testing import MyFeatureStore, MyGraphStore

import pyg_direct.loading.site
import pyg_direct.sampling.sampler
from pyg_direct import LinkNeighborLoader, NeighborLoader, NeighborSampler
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import memory as device_memory
from pyg_direct.ops.devices import HOST, Choice
from pyg_direct.ops.streams import NoStreams, Streams

TESTS = Path(__file__).parents[1]

KEY = ("author", "writes", "paper")
IDS = {"n_id", "e_id", "input_id"}


class Machine:
    """A machine with two emulated GPUs, and a process that uses none, one, or both."""

    def __init__(self, backend: Any, patch: pytest.MonkeyPatch) -> None:
        self.backend, self.used = backend, HOST
        self.streams: Streams | None = None  # of all devices; None for those of the emulator
        patch.delenv("PYG_DIRECT_DEVICE")
        patch.setattr(pyg_direct.loading.site, "process_device", self.process_device)
        patch.setattr(pyg_direct.loading.site, "cuda_available", lambda: True)
        for module in (pyg_direct.loading.site, pyg_direct.sampling.sampler):
            patch.setattr(module, "backend_for", self.backend_for)

    def process_device(self, data: Any, rank: int | None) -> Choice:
        return Choice(self.used, f"the process uses {self.used}")

    def backend_for(self, device: torch.device, threads: int = 1) -> Any:
        if device == HOST:
            return CpuBackend(threads)
        backend = on_device(self.backend, device.index or 0)
        if self.streams is not None:
            backend.streams = self.streams
        return backend

    def gpu(self, index: int) -> torch.device:
        return torch.device(self.backend.device.type, index)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with emulated() as backend:
        yield Machine(backend, monkeypatch)


def places(batch: Any) -> dict[str, set[torch.device]]:
    """Return where the tensors of a batch are, by name."""
    found: dict[str, set[torch.device]] = {}
    for store in batch.stores:
        for name, value in store.items():
            if isinstance(value, Tensor):
                found.setdefault(name, set()).add(value.device)
    return found


def assert_like_pyg_on_a_gpu(batch: Any, device: torch.device) -> None:
    found = places(batch)
    assert found.keys() >= {"n_id", "e_id", "edge_index"}
    for name, devices in found.items():
        assert devices == {HOST if name in IDS else device}, name


# When it is decided ###############################################################################


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_model_that_moves_between_epochs(machine: Machine, num_workers: int) -> None:
    loader = NeighborLoader(
        citations(), [3], batch_size=100, seed=1, num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )  # fmt: skip
    assert "until the first iteration decides" in str(loader.placement)
    before = list(loader)
    assert places(before[0])["x"] == {HOST}
    assert str(loader.placement).startswith("batches on cpu (the process uses cpu)")
    machine.used = machine.gpu(1)
    sampler = loader.node_sampler
    after = list(loader)
    assert_like_pyg_on_a_gpu(after[0], machine.gpu(1))
    assert str(loader.placement).startswith(
        f"batches on {machine.gpu(1)} (the process uses {machine.gpu(1)})"
    )
    assert loader.node_sampler.backend.device == machine.gpu(1)
    assert sampler.backend.device == HOST, "an iteration that is under way keeps its own"
    machine.used = HOST
    assert places(next(iter(loader)))["x"] == {machine.gpu(1)}, "a verdict for a GPU is for good"


def test_batches_do_not_depend_on_where_they_are_made(machine: Machine) -> None:
    def epochs(second: torch.device) -> list[list[int]]:
        machine.used = HOST
        loader = NeighborLoader(citations_of(), [3, 2], batch_size=50, seed=7, shuffle=True)
        list(loader)
        machine.used = second
        return [batch.n_id.tolist() for batch in loader]

    graph = citations()

    def citations_of() -> Any:
        return graph

    assert epochs(HOST) == epochs(machine.gpu(0))


def test_construction_asks_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> None:
        raise AssertionError("decided too early")

    monkeypatch.setattr(pyg_direct.loading.site, "process_device", never)
    loader = NeighborLoader(example_graph(), [2])
    assert loader.node_sampler.backend.device == HOST
    with pytest.raises(AssertionError, match="too early"):
        iter(loader)


@pytest.mark.parametrize("ask", [lambda loader: loader([0]), lambda loader: next(iter(loader))])
def test_a_call_decides_as_an_iteration_does(machine: Machine, ask: Any) -> None:
    machine.used = machine.gpu(0)
    assert_like_pyg_on_a_gpu(ask(NeighborLoader(citations(), [2])), machine.gpu(0))


def test_a_named_device_holds_from_the_beginning(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.used = machine.gpu(0)
    by_argument = NeighborLoader(citations(), [2], device="cpu")
    sampler = NeighborSampler(citations(), [2], device="cpu")
    by_sampler = NeighborLoader(citations(), None, neighbor_sampler=sampler)
    monkeypatch.setenv("PYG_DIRECT_DEVICE", "cpu")
    by_variable = NeighborLoader(citations(), [2])
    for loader, why in (
        (by_argument, "device= names it"),
        (by_sampler, "neighbor_sampler= samples there"),
        (by_variable, "PYG_DIRECT_DEVICE names it"),
    ):
        assert places(next(iter(loader)))["x"] == {HOST}
        assert str(loader.placement) == f"batches on cpu ({why})"


@pytest.mark.parametrize("name", ["topology", "features"])
def test_a_place_on_the_device_waits_for_one(machine: Machine, name: str) -> None:
    loader = NeighborLoader(citations(), [2], **{name: "device"})
    with pytest.raises(ValueError, match=f"{name}='device' needs a CUDA device, but .*uses cpu"):
        iter(loader)
    machine.used = machine.gpu(0)
    assert_like_pyg_on_a_gpu(next(iter(loader)), machine.gpu(0))


def test_another_process_decides_for_itself(machine: Machine) -> None:
    machine.used = machine.gpu(1)
    loader = NeighborLoader(citations(), [3], batch_size=100, seed=3)
    expected = [batch.n_id.tolist() for batch in loader]
    machine.used = HOST
    other = pickle.loads(pickle.dumps(loader))
    batches = list(other)
    assert places(batches[0])["x"] == {HOST}
    assert loader.placement.device == machine.gpu(1)
    other.load_state_dict({**other.state_dict(), "epoch": 0, "batch": 0, "finished": False})
    assert [batch.n_id.tolist() for batch in other] == expected


def test_a_sampler_of_pygs(machine: Machine) -> None:
    """It samples on the CPU; the rows are gathered where the process computes."""
    data = citations()
    sampler = PygSampler(data, [3])
    loader = NeighborLoader(data, None, neighbor_sampler=sampler, batch_size=100)
    machine.used = machine.gpu(0)
    for batch in loader:
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id])


# Programs that index tensors of their own #########################################################


def test_layerwise_inference_of_pyg(machine: Machine) -> None:
    """`BasicGNN.inference` reads ``x_all[batch.n_id]`` from a table on the host."""
    data, model = citations(), GraphSAGE(16, 8, num_layers=2)
    model.eval()
    with torch.no_grad():
        expected = model(data.x, data.edge_index)
        machine.used = machine.gpu(0)
        loader = NeighborLoader(data, [-1], batch_size=128)
        assert isinstance(loader, PygLoader)
        out = model.to(machine.gpu(0)).inference(loader, device=machine.gpu(0))
    assert out.device == HOST
    assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_transform_that_attaches_targets(
    machine: Machine, num_workers: int, filter_per_worker: bool
) -> None:
    """As RelBench's: a table of labels on the host, by position among the seeds."""
    data, machine.used = papers_and_authors(), machine.gpu(0)
    nodes, target = torch.arange(0, 200, 3), torch.randn(67)

    def attach(batch: Any) -> Any:
        batch["paper"].target = target[batch["paper"].input_id]
        batch["paper"].again = data["paper"].y[batch["paper"].n_id]
        return batch

    loader = NeighborLoader(
        data, [3, 2], input_nodes=("paper", nodes), transform=attach, batch_size=20, shuffle=True,
        num_workers=num_workers, filter_per_worker=filter_per_worker,
    )  # fmt: skip
    seen = 0
    for batch in loader:
        store = batch["paper"]
        assert torch.equal(nodes[store.input_id], store.n_id[: store.batch_size])
        assert torch.equal(store.target, target[store.input_id])
        assert torch.equal(store.y.cpu(), store.again)
        seen += store.batch_size
    assert seen == 67


@pytest.mark.parametrize("neg_sampling", [None, "binary", "triplet"])
def test_links(machine: Machine, neg_sampling: str | None) -> None:
    data, machine.used = papers_and_authors(), machine.gpu(0)
    loader = LinkNeighborLoader(
        data, [3], edge_label_index=KEY, neg_sampling=neg_sampling, batch_size=100, shuffle=True
    )
    for batch in loader:
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        ends = data[KEY].edge_index[:, batch[KEY].input_id]
        if neg_sampling == "triplet":
            src, dst = batch["author"].src_index, batch["paper"].dst_pos_index
        else:
            src, dst = batch[KEY].edge_label_index[:, : ends.size(1)]
        assert torch.equal(batch["author"].n_id[src.cpu()], ends[0])
        assert torch.equal(batch["paper"].n_id[dst.cpu()], ends[1])


def test_remote_stores_are_asked_with_ids_on_the_host(machine: Machine) -> None:
    data, features, edges = papers_and_authors(), MyFeatureStore(), MyGraphStore()
    for name in data.node_types:
        features.put_tensor(data[name].x, group_name=name, attr_name="x", index=None)
    for key in data.edge_types:
        size = (data[key[0]].num_nodes, data[key[2]].num_nodes)
        edges.put_edge_index(data[key].edge_index, edge_type=key, layout="coo", size=size)
    machine.used = machine.gpu(0)
    loader = NeighborLoader((features, edges), [3, 2], input_nodes="paper", batch_size=64)
    for batch in loader:
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        assert torch.equal(batch["author"].x.cpu(), data["author"].x[batch["author"].n_id])


def test_ids_that_a_program_changed(machine: Machine) -> None:
    """A copy that has begun is of the ids as sampled: replaced ones are copied anew."""
    data, machine.used = citations(), machine.gpu(0)

    def last_first(out: Any) -> Any:
        out.node = out.node.flip(0)
        return out

    plain = next(iter(NeighborLoader(data, [2], batch_size=50, seed=1)))
    loader = NeighborLoader(data, [2], batch_size=50, seed=1, transform_sampler_output=last_first)
    batch = next(iter(loader))
    assert torch.equal(batch.n_id, plain.n_id.flip(0))
    assert torch.equal(batch.x.cpu(), data.x[batch.n_id])


@pytest.mark.parametrize("kind", ["directional", "induced", "bidirectional"])
def test_kinds_of_subgraphs(machine: Machine, kind: str) -> None:
    data, machine.used = citations(), machine.gpu(0)
    data.edge_attr = torch.arange(data.num_edges)
    for batch in NeighborLoader(data, [3], batch_size=100, subgraph_type=kind, disjoint=True):
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        assert torch.equal(batch.edge_attr.cpu(), batch.e_id)


def test_ids_of_the_users_own(machine: Machine) -> None:
    """As PyG's example for Reddit sets them, with the loader's own data changed behind it."""
    data, machine.used = citations(), machine.gpu(0)
    loader = NeighborLoader(copy.copy(data), [-1], batch_size=100)
    del loader.data.x, loader.data.y
    loader.data.num_nodes = data.num_nodes
    loader.data.n_id = torch.arange(data.num_nodes)
    for batch in loader:
        assert batch.n_id.device == HOST
        assert data.x[batch.n_id].shape == (batch.num_nodes, 16)


def test_ids_on_the_device(machine: Machine) -> None:
    data, machine.used = citations(), machine.gpu(0)
    expected = next(iter(NeighborLoader(data, [3], batch_size=100, seed=2)))
    batch = next(iter(NeighborLoader(data, [3], batch_size=100, seed=2, ids="device")))
    assert set().union(*places(batch).values()) == {machine.gpu(0)}
    for name in IDS:
        assert torch.equal(batch[name].cpu(), expected[name])


class LateCopies(NoStreams):
    """Copies to the host arrive when somebody waits for their event, and not before."""

    def __init__(self) -> None:
        self.under_way: list[tuple[Tensor, Tensor]] = []

    def begin_download(self, source: Tensor) -> Tensor:
        host = torch.full(source.shape, -1, dtype=source.dtype)
        self.under_way.append((host, source))
        return host

    def record_event(self) -> Any:
        event, self.under_way = self.under_way, []
        return event

    def synchronize(self, event: Any) -> None:
        for host, source in event:
            host.copy_(source)


@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("prefetch", [0, 2])
def test_ids_are_there_when_the_batch_is(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, prefetch: int, filter_per_worker: bool
) -> None:
    late = LateCopies()
    monkeypatch.setattr(device_memory, "begin_download", late.begin_download)
    machine.streams = late
    data, machine.used, seen = citations(), machine.gpu(0), []

    def read(batch: Any) -> Any:
        seen.append(torch.equal(data.y[batch.n_id], batch.y.cpu()))
        return batch

    loader = NeighborLoader(
        data, [3], batch_size=100, transform=read, prefetch=prefetch,
        filter_per_worker=filter_per_worker,
    )  # fmt: skip
    for batch in loader:
        assert torch.equal(data.x[batch.n_id], batch.x.cpu())
        assert int(batch.e_id.min()) >= 0
    assert seen == [True] * 3


RANK_PROGRAM = """
import json, os, sys, types
import torch, torch.distributed as dist
from emulator import emulated, on_device
from graphs import citations
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE
import pyg_direct.loading.site, pyg_direct.ops.devices, pyg_direct.sampling.sampler
from pyg_direct import NeighborLoader
from pyg_direct.ops.cpu.backend import CpuBackend

torch.manual_seed(0)
torch.set_num_threads(1)
rank, data = int(os.environ["LOCAL_RANK"]), citations()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=rank, world_size=2)
target = torch.randint(4, (300,))
with emulated() as backend:
    # The emulated device computes no gradients, so the model trains on the CPU.
    model = DistributedDataParallel(GraphSAGE(16, 8, num_layers=2, out_channels=4))
    held = {0: 8, rank: 4000}  # something small of every rank lies on GPU 0, as often happens
    # What torch.cuda says in such a process: no rank has called set_device.
    cuda = types.SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, device_count=lambda: 2,
        current_device=lambda: 0, memory_allocated=lambda index: held.get(index, 0),
    )
    pyg_direct.ops.devices.torch = types.SimpleNamespace(
        cuda=cuda, version=types.SimpleNamespace(cuda="13.0"), device=torch.device
    )
    pyg_direct.ops.devices._problem = lambda device: None
    for module in (pyg_direct.loading.site, pyg_direct.sampling.sampler):
        module.backend_for = lambda device, threads=1: (
            on_device(backend, device.index) if device.type == "cuda" else CpuBackend(threads)
        )
    seeds = torch.arange(300)[rank::2]
    loader = NeighborLoader(data, [3, 2], input_nodes=seeds, batch_size=50, shuffle=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places, seen = set(), []
    for batch in loader:
        places.add((str(batch.x.device), str(batch.edge_index.device), str(batch.n_id.device)))
        label = target[seeds[batch.input_id]]
        out = model(batch.x.cpu(), batch.edge_index.cpu())[: batch.batch_size]
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(out, label).backward()
        optimizer.step()
        seen += batch.n_id[: batch.batch_size].tolist()
    weights = [float(parameter.detach().double().sum()) for parameter in model.parameters()]
print(json.dumps([sorted(places), sorted(seen), weights, str(loader.placement).splitlines()[0]]))
"""


def test_two_ranks_use_a_device_each(tmp_path: Path) -> None:
    """A data-parallel loop over gloo, whose ranks do not call `set_device`."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", RANK_PROGRAM, str(tmp_path / "rendezvous")],
            env={
                **os.environ, "LOCAL_RANK": str(rank), "PYG_DIRECT_DEVICE": "",
                "PYTHONPATH": os.pathsep.join([str(TESTS / "support"), str(TESTS.parent)]),
            },
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    results = []
    for rank, process in enumerate(processes):
        text, errors = process.communicate(timeout=250)
        assert process.returncode == 0, errors
        places, seen, weights, placement = json.loads(text.splitlines()[-1])
        device = str(torch.device("privateuseone", rank))
        assert places == [[device, device, "cpu"]]
        assert seen == list(range(rank, 300, 2))
        assert ("LOCAL_RANK's" in placement) == (rank == 1), placement
        results.append(weights)
    assert results[0] == results[1], "the ranks hold one model"


def test_a_misplaced_id_fails_here() -> None:
    """Else these tests would show nothing."""
    with emulated() as backend:
        index = torch.arange(3).to(backend.device)
        with pytest.raises((RuntimeError, IndexError)):
            torch.arange(9)[index]
