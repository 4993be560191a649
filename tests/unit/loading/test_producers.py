"""Producer threads: how they start, stop, are interrupted, and what they keep alive."""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.core.types import BatchKey
from pyg_direct.sampling.keyed import MAX_IDLE_KINDS
from pyg_direct.sampling.sampler import keyed

KEY = BatchKey(3, 4)


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(200, (2, 2000), generator=generator)
    return Data(x=torch.arange(200.0).view(-1, 1), edge_index=edge_index)


def build(**arguments: Any) -> NeighborLoader:
    return NeighborLoader(graph(), [3, 3], **{"batch_size": 10, "seed": 1, **arguments})


def sampled(loader: NeighborLoader) -> tuple[list[int], list[int]]:
    out = loader.node_sampler.sample_from_nodes(loader.input_data[torch.arange(10)], key=KEY)
    return out.node.tolist(), out.edge.tolist()


def producers() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name.startswith("pyg_direct-producer")]


def soon(condition: Any, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return bool(condition())


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins no threads")
def test_affinity_keeps_no_loader_alive() -> None:
    loader = build(num_workers=1, persistent_workers=True)
    core = min(os.sched_getaffinity(0))
    with loader.enable_cpu_affinity(loader_cores=[core]):
        list(loader)
    references = weakref.ref(loader), weakref.ref(loader.data.x)
    del loader
    assert soon(lambda: not producers())
    assert all(reference() is None for reference in references)


def test_worker_init_fn_that_refers_to_the_loader_keeps_it_not_alive() -> None:
    loader = build(num_workers=2, persistent_workers=True)
    loader.worker_init_fn = lambda number, it=loader: None
    list(loader)
    reference = weakref.ref(loader)
    del loader
    assert soon(lambda: not producers() and reference() is None)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_producer_that_cannot_start_stops_the_others(persistent: bool) -> None:
    broken = True

    def start(number: int) -> None:
        if broken and number == 1:
            raise LookupError("planted")

    loader = build(num_workers=3, worker_init_fn=start, persistent_workers=persistent)
    expected = [batch.e_id.tolist() for batch in build()]
    iterator = iter(loader)
    with pytest.raises(LookupError, match="planted"):
        list(iterator)
    assert soon(lambda: not producers()), "while the iterator is still alive"
    with pytest.raises(LookupError, match="planted"):
        next(iterator)
    broken = False
    del iterator
    again = [batch.e_id.tolist() for batch in loader]
    assert len(again) == len(expected) == 20


@pytest.mark.parametrize("num_workers", [1, 3])
def test_a_loader_whose_producers_could_not_start_is_freed(num_workers: int) -> None:
    def start(number: int) -> None:
        raise LookupError("planted")

    loader = build(num_workers=num_workers, worker_init_fn=start)
    with pytest.raises(LookupError, match="planted"):
        next(iter(loader))
    reference = weakref.ref(loader)
    del loader
    assert soon(lambda: reference() is None)


def test_a_failure_that_nobody_fetched_keeps_no_loader_alive() -> None:
    failed = threading.Event()

    def fail(batch: Any) -> Any:
        if batch.input_id[0] > 0:
            failed.set()
            raise LookupError("planted")
        return batch

    loader = build(num_workers=2, persistent_workers=True, transform=fail)
    next(iter(loader))
    assert failed.wait(20)
    reference: Any = weakref.ref(loader)
    assert soon(lambda: reference()._iterator._results._results.qsize())
    del loader
    assert soon(lambda: reference() is None and not producers())


def test_fanouts_that_change_keep_no_workspaces() -> None:
    loader = build()
    made: list[weakref.ref[Any]] = []
    workspace = loader._backend.workspace

    def make(*arguments: Any) -> Any:
        new = workspace(*arguments)
        made.append(weakref.ref(new))
        return new

    loader._backend.workspace = make
    for fanout in range(1, 13):
        loader.node_sampler.num_neighbors = [fanout]
        next(iter(loader))
    gc.collect()
    assert len(made) == 12
    assert sum(reference() is not None for reference in made) == MAX_IDLE_KINDS


def test_fanouts_that_alternate_use_their_workspaces_again() -> None:
    loader, made = build(), []
    workspace = loader._backend.workspace
    loader._backend.workspace = lambda *a: made.append(a[1].fanouts.tolist()) or workspace(*a)
    for _ in range(3):
        for fanout in (3, 4):
            loader.node_sampler.num_neighbors = [fanout]
            assert next(iter(loader)).num_sampled_nodes[1] > 0
    assert made == [[[3]], [[4]]]


def test_fanouts_that_change_are_those_of_a_new_loader() -> None:
    """Also where a workspace of the fan-outs before is idle."""
    loader = build()
    next(iter(loader))
    for num_neighbors in ([3, 3, 3], [2], [-1, 1], [3, 3]):
        loader.node_sampler.num_neighbors = num_neighbors
        other = NeighborLoader(graph(), num_neighbors, batch_size=10, seed=1)
        assert sampled(loader) == sampled(other)


def test_replacement_and_subgraphs_that_change_are_those_of_a_new_loader() -> None:
    loader = build()
    next(iter(loader))
    for name, value in (("replace", True), ("disjoint", True)):
        setattr(loader.node_sampler, name, value)
        other = build()
        for key, wanted in keyed(loader.node_sampler).fingerprint_parts()[0].items():
            if key in ("replace", "disjoint"):
                setattr(other.node_sampler, key, wanted)
        assert sampled(loader) == sampled(other)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("filter_per_worker", [True, False])
@pytest.mark.parametrize("name", ["transform", "transform_sampler_output"])
def test_stop_iteration_of_a_transform_is_an_error(
    name: str, filter_per_worker: bool, num_workers: int
) -> None:
    calls = 0

    def stop(value: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise StopIteration("planted")
        return value

    loader = build(num_workers=num_workers, filter_per_worker=filter_per_worker, **{name: stop})
    with pytest.raises(RuntimeError, match=r"raised StopIteration\('planted'\)"):
        list(loader)


def test_threads_end_that_began_before_one_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the limit of threads of a user or a container."""
    start = threading.Thread.start

    def refuse(self: threading.Thread) -> None:
        if self.name.endswith("producer-2"):
            raise RuntimeError("can't start new thread")
        start(self)

    loader = build(num_workers=3)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(3):
            with pytest.raises(RuntimeError, match=r"thread 3 of 3 \(can.t start.*smaller") as held:
                iter(loader)
        assert soon(lambda: not producers()), held  # whose frames have the threads
    assert len(list(loader)) == 20


def test_stop_iteration_of_worker_init_fn_is_an_error() -> None:
    def stop(number: int) -> None:
        raise StopIteration("planted")

    iterator = iter(build(num_workers=2, worker_init_fn=stop))
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"worker_init_fn raised StopIteration\('planted'\)"):
            next(iterator)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["worker_init_fn", "transform", "transform_sampler_output"])
def test_a_producer_that_iterates_its_own_loader_is_refused(name: str, persistent: bool) -> None:
    """Each producer would start more of them."""
    loaders: list[NeighborLoader] = []

    def iterate(given: Any) -> Any:
        return next(iter(loaders[0]))

    loader = build(num_workers=2, persistent_workers=persistent, **{name: iterate})
    loaders.append(loader)
    with pytest.raises(RuntimeError, match="iterates the loader that it belongs to"):
        next(iter(loader))


def test_producers_that_iterate_each_others_loaders_are_refused() -> None:
    loaders: list[NeighborLoader] = []
    one = build(num_workers=1, transform=lambda batch: next(iter(loaders[1])))
    other = build(num_workers=1, transform=lambda batch: next(iter(loaders[0])))
    loaders += [one, other]
    with pytest.raises(RuntimeError, match="iterates the loader that it belongs to"):
        next(iter(one))


def test_a_transform_may_iterate_another_loader() -> None:
    inner = build(num_workers=1)
    outer = build(num_workers=1, transform=lambda batch: next(iter(inner)))
    assert len(list(outer)) == 20


class Large:
    """What a batch is made of, to be referred to weakly."""


FAILING: dict[str, dict[str, Any]] = {
    "no producers": {},
    "producers": {"num_workers": 2},
    "in the consumer": {"num_workers": 2, "filter_per_worker": False},
}


@pytest.mark.parametrize("case", FAILING)
def test_a_failed_batch_is_freed_without_a_garbage_collection(case: str) -> None:
    """What failed frees what it held, also where the failure is not fetched."""
    held: list[weakref.ref[Large]] = []

    def fail(batch: Any) -> Any:
        large = Large()
        held.append(weakref.ref(large))
        batch.large = large
        raise LookupError("planted")

    loader = build(transform=fail, **FAILING[case])
    gc.collect()
    gc.disable()
    try:
        iterator = iter(loader)
        for _ in range(3):
            with contextlib.suppress(LookupError):
                next(iterator)
        del iterator
        deadline = time.monotonic() + 20
        while producers() and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(held) >= 3
        assert all(reference() is None for reference in held)
    finally:
        gc.enable()


ENDLESS = """
import threading, time, torch
from torch_geometric.data import Data
from pyg_direct import NeighborLoader
from pyg_direct.loading import prefetcher
waits = []
join = threading.Thread.join
threading.Thread.join = lambda self, timeout=None: waits.append(timeout) or join(self, 0.01)
data = Data(x=torch.zeros(100, 1), edge_index=torch.randint(100, (2, 500)))
begun = threading.Event()
def endless(batch):
    begun.set()
    threading.Event().wait()
kept = [NeighborLoader(data, [3], num_workers=2, transform=endless) for _ in range(3)]
kept = [iter(loader) for loader in kept]
begun.wait()
prefetcher._stop_at_exit()
assert len(waits) == 6 and max(waits) <= 2, waits
print("end", flush=True)
"""


@pytest.mark.slow
def test_a_transform_that_never_ends_does_not_keep_the_interpreter() -> None:
    result = subprocess.run(
        [sys.executable, "-c", ENDLESS], capture_output=True, text=True, timeout=240
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "end\n", "")
