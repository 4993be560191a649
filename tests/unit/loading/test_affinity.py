"""PyG's mixins speak of worker processes; our workers are threads of the user's process."""

import os
import threading

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import LinkNeighborLoader, NeighborLoader


def loader(loader_class=NeighborLoader, **kwargs):
    """Return a loader of 10 batches: of 50 nodes, or of 50 links."""
    data = Data(num_nodes=50, edge_index=torch.randint(50, (2, 50)))
    return loader_class(data, [3], batch_size=5, **kwargs)


@pytest.mark.pyg("loader.enable_cpu_affinity")
@pytest.mark.parametrize("loader_class", [NeighborLoader, LinkNeighborLoader])
def test_cpu_affinity_pins_producers_and_not_the_user(loader_class):
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:2]
    if len(cores) < 2:
        pytest.skip("needs two cores")
    seen = {}

    def note(batch):
        seen[threading.current_thread().name] = os.sched_getaffinity(0)
        return batch

    pinned = loader(loader_class, num_workers=2, transform=note)
    with pinned.enable_cpu_affinity(loader_cores=cores):
        assert len(list(pinned)) == 10
    for name, affinity in seen.items():
        assert affinity == {cores[int(name.rsplit("-", 1)[1])]}
    assert os.sched_getaffinity(0) == before
    seen.clear()
    list(pinned)
    assert all(affinity == before for affinity in seen.values()), "only within the context"


@pytest.mark.pyg("loader.enable_cpu_affinity")
def test_affinity_errors_are_pygs():
    with (
        pytest.raises(ValueError, match="at least one worker"),
        loader().enable_cpu_affinity(),
    ):
        pass
    with (
        pytest.raises(ValueError, match="should match with the number"),
        loader(num_workers=2).enable_cpu_affinity(loader_cores=[0]),
    ):
        pass


@pytest.mark.pyg("loader.enable_multithreading")
def test_multithreading_leaves_torchs_threads_alone(monkeypatch):
    class Spawn:
        _name = "spawn"

    monkeypatch.setattr(torch.multiprocessing, "get_context", lambda: Spawn)
    threads = torch.get_num_threads()
    shared = loader(num_workers=1)
    with shared.enable_multithreading(worker_threads=1):
        assert len(list(shared)) == 10
    assert torch.get_num_threads() == threads
    assert shared._backend.threads == 1
