"""Where batches lie: the device that the process uses.

The device is emulated and is not torch's CPU.
"""

from __future__ import annotations

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
from emulator import emulated
from graphs import citations, example_graph
from torch_geometric.sampler import NeighborSampler as PygSampler
from torch_geometric.typing import WITH_TORCH_SPARSE
from two_gpus import Machine, assert_like_pyg_on_a_gpu, places

import pyg_direct
import pyg_direct.loading.site
import pyg_direct.sampling.sampler
from pyg_direct import NeighborLoader, NeighborSampler
from pyg_direct.ops.devices import HOST
from pyg_direct.sampling.sampler import keyed

TESTS = Path(__file__).parents[1]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with emulated() as backend:
        yield Machine(backend, monkeypatch)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_follow_a_model_that_moves_between_epochs(
    machine: Machine, num_workers: int
) -> None:
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
    assert keyed(loader.node_sampler).backend.device == machine.gpu(1)
    assert keyed(sampler).backend.device == HOST, "an unfinished iteration keeps its own"
    machine.used = HOST
    assert places(next(iter(loader)))["x"] == {machine.gpu(1)}, "a decision for a GPU is final"


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
    assert keyed(loader.node_sampler).backend.device == HOST
    with pytest.raises(AssertionError, match="too early"):
        iter(loader)


def test_a_moved_loader_keeps_its_options_and_threads(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = NeighborLoader(citations(), [2], device_bytes=5, gather_blocks=3)
    machine.used = machine.gpu(0)
    with monkeypatch.context() as patch:  # in a process of PyG's loader, which stays on the CPU
        patch.setattr(torch.utils.data, "get_worker_info", object)
        loader([0])
        assert loader._backend.device == HOST
    threads = loader._backend.threads = 3  # as of a machine with so many cores
    loader._site._threads = threads
    loader([0])
    assert keyed(loader.node_sampler).where == ("auto", 5)
    assert loader._backend.gather_blocks == 3
    machine.used = HOST
    assert pickle.loads(pickle.dumps(loader))._backend.threads == threads


@pytest.mark.parametrize("ask", [lambda loader: loader([0]), lambda loader: next(iter(loader))])
def test_a_call_decides_as_an_iteration_does(machine: Machine, ask: Any) -> None:
    machine.used = machine.gpu(0)
    assert_like_pyg_on_a_gpu(ask(NeighborLoader(citations(), [2])), machine.gpu(0))


def test_a_call_with_times_decides_as_well(machine: Machine) -> None:
    data = citations()
    data.time = torch.arange(data.num_nodes)
    loader = NeighborLoader(data, [2], time_attr="time")
    machine.used = machine.gpu(0)
    loader([0], torch.tensor([5]))
    assert loader._backend.device == machine.gpu(0)


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


@pytest.mark.skipif(not WITH_TORCH_SPARSE, reason="PyG's own sampler needs torch_sparse")
def test_a_sampler_of_pygs(machine: Machine) -> None:
    """It samples on the CPU; the rows are gathered where the process computes."""
    data = citations()
    sampler = PygSampler(data, [3])
    loader = NeighborLoader(data, None, neighbor_sampler=sampler, batch_size=100)
    machine.used = machine.gpu(0)
    for batch in loader:
        assert_like_pyg_on_a_gpu(batch, machine.gpu(0))
        assert torch.equal(batch.x.cpu(), data.x[batch.n_id])


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


@pytest.mark.slow
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
