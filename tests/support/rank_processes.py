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


def left_apart(loader: Any, rank: int) -> tuple[list[int], str]:
    """Return how many batches the epochs of two ranks had, of which rank 1 leaves one early.

    And the error that ended the loops.
    """
    steps = [0]
    try:
        for _ in loader:
            steps[-1] += 1
            if rank == 1 and steps == [2]:
                break
        steps.append(0)
        for _ in loader:
            steps[-1] += 1
    except RuntimeError as error:
        return steps, str(error)
    return steps, "no error"


def check_left_apart(told: list[Any], seconds: float) -> None:
    """Check what `left_apart` gave on both ranks, over loaders with a timeout of some seconds."""
    (steps, text), (of_other, other) = told
    assert len(steps) == 1
    assert 2 <= steps[0] < 13
    assert "Rank 1 has left its loop and is at step 0 of epoch 1, so no rank can make" in text
    assert of_other == [2, 0]
    assert f"did not answer within {seconds:g} s" in other


def left_together(loader: Any, pause_seconds: float) -> list[int]:
    """Return how many batches epochs had that all ranks leave at the same step, and then pause."""
    steps = []
    for most in (1, 6, 4, 1000):
        steps.append(0)
        for _ in loader:
            steps[-1] += 1
            if steps[-1] == most:
                break
        time.sleep(pause_seconds)
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
