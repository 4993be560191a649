"""Work done ahead: in order, so far ahead and no farther, and nothing of what was broken off."""

from __future__ import annotations

import gc
import itertools
import threading
import time
import weakref
from types import FrameType
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import NeighborLoader
from pyg_direct.loading.prefetcher import Failure, Prefetcher


def soon(condition: Any, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    return bool(condition())


def fetched_from(prefetcher: Prefetcher[Any, Any]) -> Any:
    """Return the next result, or raise what came in its place."""
    result = prefetcher.take()
    if isinstance(result, Failure):
        result.raise_once()
    return result


class Product:
    """Something that can be referred to weakly."""


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_depth_is_how_far_ahead_work_is_begun(num_threads: int, depth: int) -> None:
    begun: list[int] = []
    prefetcher = Prefetcher(lambda task: begun.append(task) or task, num_threads, depth)
    prefetcher.begin(iter(range(100)))
    for fetched in range(10):
        assert soon(lambda wanted=fetched + depth: len(begun) == wanted)
        time.sleep(0.01)
        assert len(begun) == fetched + depth, "one too many was begun"
        assert fetched_from(prefetcher) == fetched
    prefetcher.close()


def test_results_of_an_iteration_that_was_broken_off_never_come() -> None:
    go, running = threading.Event(), threading.Event()

    def work(task: str) -> str:
        if task == "old":
            running.set()
            assert go.wait(20)
        return task

    prefetcher = Prefetcher(work, 1, 2, timeout_seconds=20)
    prefetcher.begin(iter(["old", "old"]))
    assert running.wait(20)
    prefetcher.begin(iter(["new", "newer"]))
    go.set()
    assert soon(lambda: prefetcher._results.qsize() >= 2)
    assert fetched_from(prefetcher) == "new"
    assert fetched_from(prefetcher) == "newer"
    assert prefetcher._results.empty()
    assert prefetcher._ready == {}
    with pytest.raises(StopIteration):
        fetched_from(prefetcher)
    prefetcher.close()


def test_a_failure_of_an_iteration_that_was_broken_off_is_not_raised() -> None:
    go, running = threading.Event(), threading.Event()

    def work(task: int) -> int:
        if task < 0:
            running.set()
            assert go.wait(20)
            raise LookupError
        return task

    prefetcher = Prefetcher(work, 1, 1, timeout_seconds=20)
    prefetcher.begin(iter([-1]))
    assert running.wait(20)
    prefetcher.begin(iter([5]))
    go.set()
    assert fetched_from(prefetcher) == 5
    prefetcher.close()


def test_an_idle_producer_keeps_no_product() -> None:
    prefetcher = Prefetcher(lambda task: Product(), 2, 2, timeout_seconds=20)
    prefetcher.begin(iter(range(4)))
    references = [weakref.ref(fetched_from(prefetcher)) for _ in range(4)]
    gc.collect()
    assert soon(lambda: all(reference() is None for reference in references))
    assert len(prefetcher._threads) == sum(thread.is_alive() for thread in prefetcher._threads)
    prefetcher.close()


def test_an_idle_producer_keeps_no_task() -> None:
    tasks = [Product() for _ in range(3)]
    references = [weakref.ref(task) for task in tasks]
    prefetcher = Prefetcher(lambda task: None, 1, 1, timeout_seconds=20)
    prefetcher.begin(iter(tasks))
    del tasks
    for _ in references:
        fetched_from(prefetcher)
    with pytest.raises(StopIteration):
        fetched_from(prefetcher)
    gc.collect()
    assert soon(lambda: all(reference() is None for reference in references))
    prefetcher.close()


def test_every_failure_comes_in_its_place() -> None:
    def work(task: int) -> int:
        if task % 3 == 1:
            raise LookupError(task)
        return task

    prefetcher = Prefetcher(work, 3, 4, timeout_seconds=20)
    prefetcher.begin(iter(range(9)))
    for task in range(9):
        if task % 3 == 1:
            with pytest.raises(LookupError, match=str(task)):
                fetched_from(prefetcher)
        else:
            assert fetched_from(prefetcher) == task
    prefetcher.close()


def test_a_timeout_loses_no_result() -> None:
    go = threading.Event()
    prefetcher = Prefetcher(lambda task: go.wait(20) and task, 1, 1, timeout_seconds=0.02)
    prefetcher.begin(iter([7, 8]))
    with pytest.raises(RuntimeError, match="timed out"):
        fetched_from(prefetcher)
    go.set()
    assert soon(lambda: not prefetcher._results.empty())
    assert fetched_from(prefetcher) == 7
    prefetcher.close()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_modes_of_the_consumer_hold_in_the_producers(num_workers: int) -> None:
    """torch keeps them by thread."""
    data = Data(x=torch.randn(40, 2), edge_index=torch.randint(40, (2, 200)))
    seen: list[tuple[bool, bool]] = []

    def note(batch: Any) -> Any:
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return batch

    loader = NeighborLoader(data, [3], batch_size=20, num_workers=num_workers, transform=note)
    with torch.inference_mode():
        assert all((2 * batch.x).is_inference() for batch in loader)
        assert all(batch.edge_index.dtype == torch.int64 for batch in loader)
    with torch.no_grad():
        list(loader)
    batches = list(loader)
    assert seen == 4 * [(False, True)] + 2 * [(False, False)] + 2 * [(True, False)]
    assert not any(batch.x.is_inference() for batch in batches)


class StopsAt:
    """A trace function that stops the board before one line of its producer, in that thread.

    So does the garbage collector, which may run anywhere, when it finds an unused prefetcher.
    """

    def __init__(self, line: int) -> None:
        self.left = line
        self.stopped = threading.Event()
        self.board: Any = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_name == "_produce":
            self.board = frame.f_locals["board"]
        if self.board is not None and event == "line":
            self.left -= 1
            if self.left == 0:
                self.board.stop()
                self.stopped.set()
        return self


def test_a_producer_that_collects_its_prefetcher_ends() -> None:
    for line in itertools.count(1):
        trace = StopsAt(line)
        threading.settrace(trace)
        try:
            prefetcher = Prefetcher(lambda task: task, 1, 2)
        finally:
            threading.settrace(None)  # type: ignore[arg-type]
        prefetcher.begin(iter(range(2)))  # there is no consumer: a collected one asks for nothing
        if not trace.stopped.wait(1.0):
            break  # it has come to its end, and waits for a task
        prefetcher._threads[0].join(5)
        assert not prefetcher._threads[0].is_alive(), f"it waits for ever after line {line}"
    prefetcher.close()
    assert line > 20, "the trace function saw the producer's lines"
