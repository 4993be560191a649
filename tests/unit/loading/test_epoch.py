"""What goes wrong in a producer, in a transform, or between processes reaches the user, at once."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
import traceback

import pytest
import torch
from torch_geometric.data import Data

from pyg_direct import NeighborLoader


def graph(num_nodes=200, num_edges=2000):
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.arange(num_nodes, dtype=torch.float32).view(-1, 1),
        edge_index=torch.randint(num_nodes, (2, num_edges), generator=generator),
    )


def producers():
    return [t for t in threading.enumerate() if t.name.startswith("pyg_direct-producer")]


def wait_for_no_producers(seconds=10.0):
    deadline = time.monotonic() + seconds
    while producers() and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    return producers() == []


def seeds_of(loader):
    return [batch.n_id[: batch.batch_size].tolist() for batch in loader]


def first_ids(loader, seen):
    for batch in loader:
        seen.append(batch.n_id[0].item())


class Fails:
    """A transform that raises for one batch."""

    def __init__(self, bad_seed):
        self.bad_seed = bad_seed

    def __call__(self, batch):
        if self.bad_seed in batch.n_id[: batch.batch_size]:
            raise ZeroDivisionError("planted")
        return batch


@pytest.mark.parametrize("num_workers", [0, 1, 3])
def test_an_exception_keeps_its_type_traceback_and_place(num_workers):
    loader = NeighborLoader(
        graph(), [3], batch_size=10, num_workers=num_workers, transform=Fails(55)
    )
    seen = []
    with pytest.raises(ZeroDivisionError, match="planted") as caught:
        first_ids(loader, seen)
    assert seen == [0, 10, 20, 30, 40]
    frames = [frame.name for frame in traceback.extract_tb(caught.tb)]
    assert frames[-1] == "__call__", "the traceback ends where the error was raised"
    loader.transform = None
    assert len(seeds_of(loader)) == 20, "the next epoch works"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_epoch_can_go_on_behind_a_failed_batch(num_workers):
    loader = NeighborLoader(
        graph(), [3], batch_size=10, num_workers=num_workers, transform=Fails(55)
    )
    iterator, good, failed = iter(loader), 0, 0
    while True:
        try:
            next(iterator)
            good += 1
        except ZeroDivisionError:
            failed += 1
        except StopIteration:
            break
    assert (good, failed) == (19, 1)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_exception_of_the_sampler_argument_comes_behind_the_batches_before(num_workers):
    def broken():
        yield from range(20)
        raise KeyError("planted")

    class Sampler:
        def __iter__(self):
            return broken()

        def __len__(self):
            return 200

    loader = NeighborLoader(graph(), [3], batch_size=10, num_workers=num_workers, sampler=Sampler())
    seen = []
    with pytest.raises(KeyError, match="planted"):
        first_ids(loader, seen)
    assert seen == [0, 10]


def test_an_exception_of_worker_init_fn_is_raised():
    def start(worker):
        raise LookupError(f"planted in {worker}")

    loader = NeighborLoader(graph(), [3], batch_size=10, num_workers=1, worker_init_fn=start)
    with pytest.raises(LookupError, match="planted in 0"):
        next(iter(loader))


@pytest.mark.pyg("worker_init_fn")
def test_worker_init_fn_runs_once_in_each_producer():
    seen = []
    loader = NeighborLoader(
        graph(),
        [3],
        batch_size=10,
        num_workers=3,
        worker_init_fn=lambda worker: seen.append((worker, threading.current_thread().name)),
    )
    assert len(seeds_of(loader)) == 20
    assert sorted(seen) == [(i, f"pyg_direct-producer-{i}") for i in range(3)]


@pytest.mark.pyg("timeout")
def test_a_batch_later_than_the_timeout_is_an_error():
    loader = NeighborLoader(
        graph(),
        [3],
        batch_size=10,
        num_workers=1,
        timeout=0.05,
        transform=lambda batch: time.sleep(0.5),
    )
    with pytest.raises(RuntimeError, match=r"timed out.*0\.05 seconds"):
        next(iter(loader))
    del loader
    assert wait_for_no_producers()


@pytest.mark.pyg("num_workers")
def test_no_thread_is_left_after_an_epoch():
    loader = NeighborLoader(graph(), [3], batch_size=10, num_workers=3)
    assert len(seeds_of(loader)) == 20
    assert producers() == []


def test_no_thread_is_left_after_a_break():
    loader = NeighborLoader(graph(), [3], batch_size=10, num_workers=3)
    for _ in loader:
        break
    assert wait_for_no_producers()
    assert len(seeds_of(loader)) == 20


def test_no_thread_is_left_after_deleting_iterator_and_loader():
    loader = NeighborLoader(graph(), [3], batch_size=10, num_workers=2, persistent_workers=True)
    iterator = iter(loader)
    next(iterator)
    assert len(producers()) == 2
    del iterator, loader
    assert wait_for_no_producers()


@pytest.mark.pyg("persistent_workers")
def test_persistent_workers_keep_their_threads():
    loader = NeighborLoader(graph(), [3], batch_size=10, num_workers=2, persistent_workers=True)
    first = seeds_of(loader)
    threads = producers()
    assert len(threads) == 2
    for _ in loader:
        break
    assert seeds_of(loader) == first
    assert producers() == threads


def test_two_loaders_and_two_iterators_at_a_time():
    data = graph()
    a = NeighborLoader(data, [3, 3], batch_size=10, num_workers=2, seed=1)
    b = NeighborLoader(data, [3, 3], batch_size=10, num_workers=2, seed=1)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x.e_id, y.e_id)
    first, second = iter(a), iter(a)
    pairs = list(zip(first, second, strict=True))
    assert len(pairs) == 20
    assert all(torch.equal(x.input_id, y.input_id) for x, y in pairs)
    assert any(x.e_id.tolist() != y.e_id.tolist() for x, y in pairs), "two epochs, two draws"


def test_an_iterator_outlives_its_loader():
    iterator = iter(NeighborLoader(graph(), [3], batch_size=10, num_workers=2))
    gc.collect()
    assert sum(1 for _ in iterator) == 20


def _child(loader, queue):
    queue.put([batch.e_id.tolist() for batch in loader])


@pytest.mark.slow
@pytest.mark.pyg("loader.pickle")
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_loader_works_in_a_child_process(method, num_workers):
    loader = NeighborLoader(graph(), [3, 3], batch_size=50, num_workers=num_workers, seed=5)
    expected = [batch.e_id.tolist() for batch in loader]  # also uses every thread pool there is
    fresh = NeighborLoader(graph(), [3, 3], batch_size=50, num_workers=num_workers, seed=5)
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_child, args=(fresh, queue))
    process.start()
    assert queue.get(timeout=120) == expected
    process.join(30)
    assert process.exitcode == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_an_iterator_taken_through_a_fork_is_refused_not_hung():
    iterator = iter(NeighborLoader(graph(), [3], batch_size=10, num_workers=1))
    next(iterator)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            next(iterator)
            message = "no error"
        except RuntimeError as error:
            message = str(error)
        os.write(write, message.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"begun in another process" in os.read(read, 1000)
    os.close(read)
    os.close(write)


SLOW_EPOCH = """
import signal, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
from torch_geometric.data import Data
from pyg_direct import NeighborLoader
data = Data(x=torch.zeros(100, 1), edge_index=torch.randint(100, (2, 500)))
def slow(batch):
    time.sleep(0.2)
    return batch
for num_workers in {numbers_of_workers}:
    loader = NeighborLoader(data, [3], batch_size=1, num_workers=num_workers, transform=slow)
    try:
        for i, batch in enumerate(loader):
            print("batch", flush=True)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_ctrl_c_interrupts_an_epoch_with_and_without_workers():
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_EPOCH.format(numbers_of_workers=(0, 2))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(2):
        assert process.stdout.readline() == "batch\n"
        process.send_signal(signal.SIGINT)
        while (line := process.stdout.readline()) == "batch\n":
            pass
        assert line == "interrupted\n", process.stderr.read()
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out) == (0, ""), err


@pytest.mark.slow
def test_the_interpreter_exits_in_the_middle_of_an_epoch():
    program = SLOW_EPOCH.format(numbers_of_workers=(3,)).replace(
        'print("batch", flush=True)', "break"
    )
    program += "\nkept = iter(loader); next(kept); print('end')"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == "end\n"
    assert result.stderr == ""


@pytest.mark.parametrize("prefetch", [0, 1])
def test_modes_of_torch(prefetch):
    """A batch is made under the modes of who asks; one made ahead, of who began the epoch."""
    seen = []

    def transform(batch):
        seen.append((torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
        return batch

    data = Data(edge_index=torch.arange(4).repeat(2, 1), num_nodes=4)
    options = dict(num_workers=prefetch, prefetch=1) if prefetch else {}
    loader = NeighborLoader(data, [1], batch_size=1, transform=transform, **options)
    with torch.no_grad():
        batches = iter(loader)
        next(batches)
    with torch.inference_mode():
        next(batches)
    list(batches)
    first, inference, grad = (False, False), (False, True), (True, False)
    assert seen == ([first] * 4 if prefetch else [first, inference, grad, grad])
