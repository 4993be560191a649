"""Ranks of a gloo group as forked processes: imports and compiled kernels are there already."""

from __future__ import annotations

import contextlib
import multiprocessing
import pickle
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

GROUP_SECONDS = 120


def run_ranks(
    world_size: int,
    function: Callable[[int], Any],
    folder: Path,
    seconds: float = 2 * GROUP_SECONDS,
) -> list[Any]:
    """Return ``function(rank)`` of every rank, each in a process of its own.

    Args:
        world_size: number of ranks.
        function: called where the default process group exists; its value can be pickled.
        folder: an empty one, where the ranks meet.
        seconds: how long to wait for a rank after the one before it.

    Raises:
        AssertionError: a rank raised an exception, or did not end.
    """
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for rank in range(world_size):
        receiver, sender = context.Pipe(duplex=False)
        arguments = (sender, rank, world_size, function, folder)
        process = context.Process(target=_run, args=arguments, daemon=True)
        process.start()
        sender.close()
        pipes.append(receiver)
        processes.append(process)
    values, problems = [], []
    for rank, (pipe, process) in enumerate(zip(pipes, processes, strict=True)):
        outcome = None
        with contextlib.suppress(EOFError):  # it died
            outcome = pickle.loads(pipe.recv_bytes()) if pipe.poll(seconds) else None
        process.join(GROUP_SECONDS if outcome else 0)
        if process.is_alive():
            process.kill()
        if outcome is None or process.exitcode != 0:
            problems.append(f"rank {rank} ended with {process.exitcode}: {outcome}")
        elif outcome[0] is not None:
            problems.append(f"rank {rank}: {outcome[0]}")
        values.append(outcome and outcome[1])
    assert not problems, "\n".join(problems)
    return values


def loop_apart(loader: Any, rank: int, pause_seconds: float) -> list[int]:
    """Return how many batches each of three epochs had, of two ranks whose loops differ.

    Rank 1 leaves the first epoch early, so it is one ahead of rank 0, which then pauses.
    """
    steps = []
    for epoch in range(3):
        made = 0
        for _ in loader:
            made += 1
            if rank == 1 and epoch == 0 and made == 2:
                break
            if rank == 0 and epoch == 1 and made == 3:
                time.sleep(pause_seconds)
        steps.append(made)
    return steps


def _run(sender: Any, rank: int, world_size: int, function: Any, folder: Path) -> None:
    error = value = None
    torch.set_num_threads(1)  # OpenMP's threads did not survive the fork
    try:
        dist.init_process_group(
            "gloo",
            f"file://{folder}/rendezvous",
            rank=rank,
            world_size=world_size,
            timeout=timedelta(seconds=GROUP_SECONDS),
        )
        value = function(rank)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        error = traceback.format_exc()
    sender.send_bytes(pickle.dumps((error, value)))  # `send` would move tensors to shared memory
