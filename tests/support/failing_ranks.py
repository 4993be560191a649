"""A server that forks ranks, lets one of them fail at a random moment, and reports how all ended.

Run as a program: each line on stdin is a JSON object, a `Request`; each line on stdout is the
outcome. The ranks are forked by the main thread of a plain script, so they end as programs do, by
way of the interpreter's own exit.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

import pyg_direct
from pyg_direct import accelerate
from pyg_direct.exchange import batches as batch_exchange
from pyg_direct.exchange.owners import ranks_of
from pyg_direct.tools.plan_cooperative import common_step
from pyg_direct.tools.plan_orders import Batching
from pyg_direct.tools.plan_ranks import RanksAsked

BATCHES, GROUP_SECONDS, LIMIT_SECONDS, NODES = 200, 3, 90, 2000
STEP_SECONDS = 0.005  # that a step takes at least
KILLED_BY = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


class Request(NamedTuple):
    """What ranks do.

    Attributes:
        event: what happens to one of them.
        after: when, as part of its steps, in [0, 1). A rank sends itself a signal within a step, as
            another process may get no time before all ranks have ended.
        folder: an empty one.
        options: of the loader of each rank; `parts` stands for a loader over a partition.
        culprit: the rank to which it happens.
        store: where they meet: "file", or "tcp" for a store that lives in rank 0.
    """

    event: str
    after: float
    folder: str
    options: list[dict[str, Any]] = [{}, {}]  # noqa: RUF012
    culprit: int = 1
    store: str = "file"

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @property
    def init_method(self) -> str:
        if self.store == "file":
            return f"file://{self.folder}/rendezvous"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            return f"tcp://127.0.0.1:{free.getsockname()[1]}"


def graph() -> Data:
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(NODES, 16, generator=generator),
        y=torch.randint(4, (NODES,), generator=generator),
        edge_index=torch.randint(NODES, (2, 10 * NODES), generator=generator),
    )


def train(rank: int, request: Request, init_method: str) -> None:
    """Train for at most BATCHES steps of each rank; the culprit fails `after` so much of them."""
    torch.set_num_threads(1)
    event, folder, options = request.event, request.path, dict(request.options[rank])
    ranks, is_culprit = len(request.options), rank == request.culprit
    data = pyg_direct.open(folder / "parts") if options.pop("parts", False) else graph()
    dist.init_process_group(
        "gloo",
        init_method,
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=LIMIT_SECONDS if event == "break together" else GROUP_SECONDS),
    )
    batch_size = NODES // BATCHES // ranks
    failing = int(request.after * BATCHES) if is_culprit or event == "break together" else -1

    def happens(_: Any = None) -> None:
        (folder / "event").touch()

    def fail(batch: Any) -> Any:
        if event == "raise" and failing in batch.input_id // batch_size // ranks:
            happens()
            raise ZeroDivisionError("planted in a producer")
        return batch

    def die(*_: Any) -> None:
        happens()
        os.kill(os.getpid(), KILLED_BY.get(event, signal.SIGKILL))

    loader = pyg_direct.NeighborLoader(
        data, [5, 5], batch_size=batch_size, seed=1, split_by_rank=True, transform=fail,
        **{"num_workers": 2, **options},
    )  # fmt: skip
    model: Any = GraphSAGE(16, 16, num_layers=2, out_channels=4)
    if not request.options[rank]:  # else the exchanges of loaders alone notice the failure
        model = DistributedDataParallel(model)
    if options.get("cooperative"):
        model = accelerate(model, loader)
    if event == "group" and is_culprit:
        batch_exchange._new_group = die
    (folder / f"ready{rank}").touch()
    if event == "absent" and is_culprit:
        happens()
        time.sleep(LIMIT_SECONDS)
    for step, batch in enumerate(loader):
        if event in KILLED_BY and step == failing:
            threading.Timer(request.after * BATCHES % 1 * STEP_SECONDS, die).start()
        if event.startswith("break") and step == failing:
            happens()
            break
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        time.sleep(STEP_SECONDS)
    dist.barrier()


def start(rank: int, request: Request, init_method: str) -> int:
    """Fork a rank; return its process id. In the child, return 0 when it is at its end."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        with (request.path / f"log{rank}").open("w") as log:
            os.dup2(log.fileno(), 2)
        train(rank, request, init_method)
    return pid


def watch(pids: list[int], request: Request) -> dict[str, Any]:
    """Return how long each rank took to end, and how.

    Times are from the event on, where there is one.
    """
    event, folder, culprit = request.event, request.path, request.culprit
    ready = [folder / f"ready{rank}" for rank in range(len(pids))]
    given_up = time.monotonic() + LIMIT_SECONDS
    while not all(path.exists() for path in ready) and time.monotonic() < given_up:
        time.sleep(0.01)
    begun, ended = time.time(), dict[int, Any]()
    while len(ended) < len(pids) and time.time() < begun + LIMIT_SECONDS:
        for rank, pid in enumerate(pids):
            done, status = (0, 0) if rank in ended else os.waitpid(pid, os.WNOHANG)
            if done:
                ended[rank] = (time.time(), os.waitstatus_to_exitcode(status))
        if event in ("stop", "absent") and len(ended) == len(pids) - 1 and culprit not in ended:
            os.kill(pids[culprit], signal.SIGKILL)  # as its launcher would
        time.sleep(0.01)
    left = []
    for pid in pids:  # each leads a process group of its own
        try:
            os.killpg(pid, signal.SIGKILL)
            left.append(pid)
        except ProcessLookupError:
            continue
    if (folder / "event").exists():
        begun = (folder / "event").stat().st_mtime
    since = {rank: (when - begun, code) for rank, (when, code) in ended.items()}
    logs = [(folder / f"log{rank}").read_text() for rank in range(len(pids))]
    return {"ended": since, "left": left, "logs": logs}


def slowness() -> float:
    """Return how many times longer work takes than on an idle machine, at least 1."""
    begun, end = time.monotonic(), time.thread_time() + 0.03
    while time.thread_time() < end:
        pass
    return max(1.0, (time.monotonic() - begun) / 0.03)


def left_in_shared_memory(before: set[str], pids: list[int]) -> set[str]:
    """Return the files that ranks which have ended left in shared memory.

    Other programs use it at the same time. Torch names its files after the process; of others,
    those that stay for two seconds count.
    """
    left, until = set(os.listdir("/dev/shm")) - before, time.monotonic() + 2.0
    left = {name for name in left if not name.startswith("torch_") or owner(name) in pids}
    while left and time.monotonic() < until:
        time.sleep(0.1)
        left &= set(os.listdir("/dev/shm"))
    return left


def owner(name: str) -> int:
    """Return the process that made a file of torch's in shared memory, 'torch_PID_...'."""
    return int(name.split("_")[1])


def compile_kernels() -> None:
    """Run loaders of all kinds on one rank, which ranks that are forked need not compile for."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pyg_direct.partition(graph(), Path(folder) / "parts", 2, "ldg")
        for data in (graph(), pyg_direct.open(Path(folder) / "parts")):
            next(iter(pyg_direct.NeighborLoader(data, [5, 5], batch_size=5)))
        asked = RanksAsked(2, Batching([5, 5], 5), {None: 64}, steps=1)
        common_step(graph(), asked, ranks_of(None, [NODES], 2))


def serve() -> None:
    """Answer requests until stdin ends."""
    compile_kernels()
    for line in sys.stdin:
        request = Request(**json.loads(line))
        if any("parts" in options for options in request.options):
            pyg_direct.partition(graph(), request.path / "parts", len(request.options), "ldg")
        pids, init_method = [], request.init_method
        for rank in range(len(request.options)):
            pid = start(rank, request, init_method)
            if pid == 0:
                return
            pids.append(pid)
        shared = set(os.listdir("/dev/shm"))
        before = slowness()
        outcome = {**watch(pids, request), "slowness": max(before, slowness())}
        outcome["shared_memory"] = sorted(left_in_shared_memory(shared, pids))
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    try:
        serve()
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
