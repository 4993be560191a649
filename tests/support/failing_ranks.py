"""A server that forks ranks, lets one of them fail at a random moment, and reports how all ended.

Run as a program: each line on stdin is a JSON object with `event`, `after`, `folder` and, of each
rank, `options` of its loader; each line on stdout is the outcome. The ranks are forked by the main
thread of a plain script, so they end as programs do, by way of the interpreter's own exit.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.data import Data
from torch_geometric.nn.models import GraphSAGE

from pyg_direct import NeighborLoader, accelerate
from pyg_direct.exchange import batches as batch_exchange

WORLD_SIZE, BATCHES, GROUP_SECONDS, LIMIT_SECONDS = 2, 200, 3, 40
KILLED_BY = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP}


def train(rank: int, event: str, after: float, folder: Path, options: dict[str, Any]) -> None:
    """Train for at most BATCHES steps of each rank; rank 1 fails `after` so much of them."""
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(2000, 16, generator=generator),
        y=torch.randint(4, (2000,), generator=generator),
        edge_index=torch.randint(2000, (2, 20000), generator=generator),
    )
    dist.init_process_group(
        "gloo",
        f"file://{folder}/rendezvous",
        rank=rank,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=GROUP_SECONDS),
    )
    failing = int(after * BATCHES) if rank == 1 else -1

    def fail(batch: Any) -> Any:
        if event == "raise" and failing in batch.input_id // 5 // WORLD_SIZE:
            raise ZeroDivisionError("planted in a producer")
        return batch

    loader = NeighborLoader(
        data, [5, 5], batch_size=5, seed=1, split_by_rank=True, transform=fail,
        **{"num_workers": 2, **options},
    )  # fmt: skip
    model: Any = GraphSAGE(16, 16, num_layers=2, out_channels=4)
    if not options:  # else the exchanges of the loaders alone notice the failure
        model = DistributedDataParallel(model)
    if options.get("cooperative"):
        model = accelerate(model, loader)
    if event == "absent" and rank == 1:
        (folder / f"ready{rank}").touch()
        time.sleep(LIMIT_SECONDS)
    if event == "group" and rank == 1:
        batch_exchange._new_group = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
    (folder / f"ready{rank}").touch()
    for step, batch in enumerate(loader):
        if event == "break" and step == failing:
            break
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        torch.nn.functional.cross_entropy(out, batch.y[: batch.batch_size]).backward()
        time.sleep(0.005)
    dist.barrier()


def start(rank: int, event: str, after: float, folder: Path, options: dict[str, Any]) -> int:
    """Fork a rank; return its process id. In the child, return 0 when it is at its end."""
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        with (folder / f"log{rank}").open("w") as log:
            os.dup2(log.fileno(), 2)
        train(rank, event, after, folder, options)
    return pid


def watch(pids: list[int], event: str, after: float, folder: Path) -> dict[str, Any]:
    """Send rank 1 its signal, if any; return how long each rank took to end after that, and how."""
    ready = [folder / f"ready{rank}" for rank in range(WORLD_SIZE)]
    while not all(path.exists() for path in ready):
        time.sleep(0.01)
    if event in KILLED_BY:
        time.sleep(after * BATCHES * 0.008)
        os.kill(pids[1], KILLED_BY[event])
    begun, ended = time.monotonic(), dict[int, Any]()
    while len(ended) < WORLD_SIZE and time.monotonic() < begun + LIMIT_SECONDS:
        for rank, pid in enumerate(pids):
            done, status = (0, 0) if rank in ended else os.waitpid(pid, os.WNOHANG)
            if done:
                ended[rank] = (time.monotonic() - begun, os.waitstatus_to_exitcode(status))
        if event in ("stop", "absent") and 0 in ended and 1 not in ended:
            os.kill(pids[1], signal.SIGKILL)  # as its launcher would
        time.sleep(0.01)
    left = []
    for pid in pids:  # each leads a process group of its own
        try:
            os.killpg(pid, signal.SIGKILL)
            left.append(pid)
        except ProcessLookupError:
            continue
    logs = [(folder / f"log{rank}").read_text() for rank in range(WORLD_SIZE)]
    return {"ended": ended, "left": left, "logs": logs}


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


def serve() -> None:
    """Answer requests until stdin ends."""
    for line in sys.stdin:
        request = json.loads(line)
        given = request["event"], request["after"], Path(request["folder"])
        pids = []
        for rank in range(WORLD_SIZE):
            options = request.get("options", [{}] * WORLD_SIZE)[rank]
            pid = start(rank, *given, options)
            if pid == 0:
                return
            pids.append(pid)
        shared = set(os.listdir("/dev/shm"))
        outcome = watch(pids, *given)
        outcome["shared_memory"] = sorted(left_in_shared_memory(shared, pids))
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    try:
        serve()
    except BaseException:
        traceback.print_exc()
        raise SystemExit(1) from None
