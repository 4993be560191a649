"""What processes of `checks.processes` do::

LD_PRELOAD=... python -m tests.driver.start tests.driver.children NAME [ARGUMENT ...]
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import gc
import importlib
import multiprocessing
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch_geometric.nn import GraphSAGE

import pyg_direct
from pyg_direct.models.remote.messages import StepMessages

from . import loaders, standin
from .batches import Stores, devices_of, difference, epoch, take
from .checks.processes import DONE

_kept: list[Any] = []


def end_with_batches_under_way(place: str) -> None:
    """Take one batch, and keep the iterator to the end of the interpreter."""
    iterator = iter(loaders.loader("node", place, device="cuda"))
    next(iterator)
    _kept.append(iterator)
    print(DONE, flush=True)


def _same_on(device: str) -> None:
    found = epoch(loaders.loader("node", "default", device=device))
    problem = difference(found, epoch(loaders.on_cpu("node")))
    if problem:
        raise AssertionError(f"{device}: {problem}")


def _in_fork(*devices: str) -> None:
    """Make batches on devices in a forked process; on a GPU that may fail, but not hang."""
    child = multiprocessing.get_context("fork").Process(target=_fork_body, args=devices)
    child.start()
    child.join(120)
    if child.exitcode != 0:
        child.kill()
        raise AssertionError(f"the forked process ended with {child.exitcode}")


def _fork_body(*devices: str) -> None:
    for device in devices:
        if device == "refused":
            try:
                _same_on("cuda")
            except RuntimeError:
                continue
            raise AssertionError("a forked process used the GPU of its parent")
        _same_on(device)


def fork_before() -> None:
    """Fork while CUDA is not in use, then use it in both processes."""
    _in_fork("cpu", "cuda")
    _same_on("cuda")
    print(DONE, flush=True)


def fork_after() -> None:
    """Fork while batches are under way; both processes go on."""
    iterator = iter(loaders.loader("node", "host", device="cuda", num_workers=2))
    next(iterator)
    _in_fork("cpu", "refused")
    rest = sum(1 for _ in iterator)
    _same_on("cuda")
    if rest != loaders.SEEDS // loaders.COMMON["batch_size"] - 1:
        raise AssertionError(f"{rest} batches were left in the parent")
    print(DONE, flush=True)


def make_batches() -> None:
    """Compare an epoch on the GPU with the CPU's."""
    _same_on("cuda")
    print(DONE, flush=True)


def use_a_foreign_allocator(kind: str) -> None:
    """Compare batches in all places, on the default stream and on another one.

    Then the loader goes, and new memory is taken, while the last batch may not have been made.
    """
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "pool.so"
        source = Path(__file__).with_name("pool.cpp")
        flags = ["-std=c++17", "-O1", "-shared", "-fPIC"]
        subprocess.run(["g++", *flags, str(source), "-o", str(library)], check=True)
        pool = torch.cuda.memory.CUDAPluggableAllocator(str(library), "pool_take", "pool_give")
        torch.cuda.memory.change_current_allocator(pool)
    expected = epoch(loaders.on_cpu(kind))
    kept = torch.zeros(3, device="cuda")  # by which device=None finds the GPU
    for place in loaders.KINDS[kind].places:
        for device, stream in ((None, torch.cuda.current_stream()), ("cuda", torch.cuda.Stream())):
            loader = loaders.loader(kind, place, device=device)
            with torch.cuda.stream(stream):
                taken = [take(batch) for batch in loader]
            del loader
            gc.collect()
            for size in (30_000, 120_000, 440_008, 880_008, 1_300_000) * 2:
                torch.full((size,), 7, dtype=torch.uint8, device="cuda")
            torch.cuda.synchronize()
            if devices_of(taken) - {torch.device("cpu")} != {kept.device}:
                raise AssertionError(f"{place}: batches on {devices_of(taken)}")
            problem = difference(taken, expected)
            if problem:
                raise AssertionError(f"{place}, {device}, {stream}: {problem}")
    print(DONE, flush=True)


def go_on_after_a_fault(place: str) -> None:
    """Take the registration of a table away behind the package's back, as nobody should."""
    loader = loaders.loader("node", place, device="cuda")
    iterator = iter(loader)
    next(iterator)
    table = loader.data.x
    page = table.data_ptr() // 4096 * 4096
    standin.runtime.cudaHostUnregister(ctypes.c_void_p(page))
    raised = ""
    for attempt in (iterator, iter(loader)):
        try:
            for batch in attempt:
                torch.cuda.synchronize()
                del batch
            raised = ""
        except Exception as error:
            raised = type(error).__name__
    if not standin.fault():
        raise AssertionError("the device did not fail")
    if not raised:
        raise AssertionError("an epoch ended as if nothing had happened")
    print(DONE, flush=True)
    os._exit(0)  # torch aborts while it frees tensors of a device that failed


def train(rank_text: str, store: str) -> None:
    """Average the gradients of two ranks, of batches that lie on two devices."""
    rank = int(rank_text)
    device = torch.device("cuda", rank)
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    seeds = torch.arange(loaders.SEEDS)[rank::2]
    given = {"input_nodes": seeds, "num_neighbors": [3, 2]}
    expected = epoch(loaders.on_cpu("node", **given))
    found = epoch(loaders.loader("node", "host", device=device, **given))
    problem = difference(found, expected)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(loaders.FEATURES, 1))
    for batch in loaders.loader("node", "host", device=device, **given):
        model(batch.x.cpu()).square().mean().backward()
    assert model.module.weight.grad is not None
    gradients = [torch.empty_like(model.module.weight) for _ in range(2)]
    torch.distributed.all_gather(gradients, model.module.weight.grad)
    torch.distributed.destroy_process_group()
    if not torch.equal(*gradients):
        problem = "the ranks' gradients differ"
    if standin.contexts() != [rank]:
        problem = f"contexts on devices {standin.contexts()}"
    if problem:
        raise AssertionError(problem)
    print(DONE, flush=True)


def place_together(rank_text: str, store: str) -> None:
    """Make batches of two ranks on a device for each, with rows and hops of the other one."""
    rank, folder = int(rank_text), Path(store).parent / "parts"
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    if rank == 0:
        pyg_direct.partition(loaders.graph(), folder, 2, "hash")
    torch.distributed.barrier()
    for name, kind in loaders.OF_RANKS.items():
        given = {"split_by_rank": True, "timeout": 60}
        expected = epoch(kind.make(folder, device="cpu", **given))
        for place in kind.places:
            where = given | loaders.place_of_batches(place)
            found = epoch(kind.make(folder, device=torch.device("cuda", rank), **where))
            if not devices_of(found):
                raise AssertionError(f"{name}, {place}: nothing is on a device")
            if problem := difference(found, expected) or standin.left_out():
                raise AssertionError(f"{name}, {place}: {problem}")
    if standin.contexts() != [rank]:
        raise AssertionError(f"contexts on devices {standin.contexts()}")
    torch.distributed.destroy_process_group()
    print(DONE, flush=True)


def compute_together(rank_text: str, store: str) -> None:
    """Compute batches that two ranks make together, each on a device of its own."""
    rank, size, device = int(rank_text), 24, torch.device("cuda", int(rank_text))
    warnings.simplefilter("ignore")
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    data, given = loaders.graph(loaders.NODES), {"num_neighbors": [4, 3], "seed": 3}
    given["input_nodes"] = torch.arange(loaders.SEEDS)
    loader = pyg_direct.NeighborLoader(
        data,
        batch_size=size,
        split_by_rank=True,
        cooperative=True,
        device=device,
        prefetch=0,
        **given,
    )
    device_waits = standin.counts().get("wait of the host: device")
    alone = pyg_direct.NeighborLoader(data, batch_size=2 * size, device="cpu", **given)
    torch.manual_seed(0)
    plain = GraphSAGE(loaders.FEATURES, 16, 2, 4)
    model = pyg_direct.accelerate(copy.deepcopy(plain), loader).to(device)
    waits: list[int] = []
    with mock.patch.object(StepMessages, "move", _counting_waits(waits)):
        for batch, whole in zip(loader, alone, strict=True):
            out = model(batch.x, batch.edge_index)[:size]
            out.square().mean().backward()
            expected = plain(whole.x, whole.edge_index)[: 2 * size]
            expected.square().mean().backward()
            if problem := standin.left_out():
                raise AssertionError(problem)
            torch.testing.assert_close(out.cpu(), expected[rank * size :][:size])
            for ours, theirs in zip(model.parameters(), plain.parameters(), strict=True):
                grad = ours.grad.cpu() / 2
                torch.distributed.all_reduce(grad)
                torch.testing.assert_close(grad, theirs.grad, rtol=1e-4, atol=1e-5)
    if len(waits) < 4 * len(loader) or set(waits) != {1}:
        raise AssertionError(f"{waits} waits of exchanges")
    counts = standin.counts()
    if counts.get("wait of the host: device") != device_waits or standin.contexts() != [rank]:
        raise AssertionError(f"{counts}, contexts {standin.contexts()}")
    torch.distributed.destroy_process_group()
    print(DONE, flush=True)


def _counting_waits(waits: list[int]) -> Any:
    """Return an exchange of rows that notes for how many things of the device it waits."""
    exchange = StepMessages.move

    def found(*arguments: Any) -> Any:
        before = standin.counts()
        came = exchange(*arguments)
        waits.append(
            sum(
                number - before.get(name, 0)
                for name, number in standin.counts().items()
                if name.startswith("wait of the host")
            )
        )
        return came

    return found


def run_example(name: str) -> None:
    """Run an example with batches of the CPU, and of a GPU, from where they go to the CPU."""
    example = importlib.import_module(f"examples.{name}")
    arguments = importlib.import_module("tests.integration.test_example_scripts").SMALL[name]
    warnings.simplefilter("ignore")
    found = []
    for device in ("cpu", "cuda"):
        os.environ["PYG_DIRECT_DEVICE"] = device
        seen: list[Stores] = []
        with _batches_to_the_host(seen, device):
            result = example.main([*arguments, "--epochs", "1"])
        found.append((seen, result))
    (expected, score), (batches, score_of_gpu) = found
    problem = difference(batches, expected) or ("" if batches else "no batches")
    problem = problem or standin.left_out()
    if problem or score != score_of_gpu:
        raise AssertionError(problem or f"{score_of_gpu}, not {score}")
    print(DONE, flush=True)


@contextlib.contextmanager
def _batches_to_the_host(seen: list[Stores], device: str) -> Iterator[None]:
    """Keep the batches of all loaders in `seen`, and give the consumers copies on the CPU."""
    kinds = (pyg_direct.NeighborLoader, pyg_direct.LinkNeighborLoader)
    iterate = {kind: kind.__iter__ for kind in kinds}

    def moved(loader: Any) -> Iterator[Any]:
        for batch in iterate[type(loader)](loader):
            lies = devices_of([[dict(store.items()) for store in batch.stores]])
            if len(lies) != (device == "cuda"):
                raise AssertionError(f"with {device} a batch has tensors on {lies}")
            on_host = batch.to("cpu")
            seen.append([dict(store.items()) for store in on_host.stores])
            yield on_host

    with contextlib.ExitStack() as changed:
        for kind in kinds:
            changed.enter_context(mock.patch.object(kind, "__iter__", moved))
        yield


CHILDREN = {
    child.__name__: child
    for child in (
        make_batches,
        use_a_foreign_allocator,
        end_with_batches_under_way,
        fork_before,
        fork_after,
        go_on_after_a_fault,
        train,
        place_together,
        compute_together,
        run_example,
    )
}

if __name__ == "__main__":
    CHILDREN[sys.argv[1]](*sys.argv[2:])
