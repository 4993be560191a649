"""Runs a function in a process of its own, so that a crash or a hang fails one test only."""

from __future__ import annotations

import functools
import multiprocessing
import os
import selectors
import signal
import time
import traceback
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any

import torch

POLL_SECONDS = 0.02


def in_child(function: Callable[[], None], timeout_seconds: float = 240.0) -> None:
    """Run `function` in a forked process; fixtures and compiled kernels are there already.

    Raises:
        AssertionError: it raised, was killed by a signal, or took too long.
    """
    read, write = os.pipe()
    # Not `os.fork`, after which tensors on a queue would be asked of a thread of this process.
    process = multiprocessing.get_context("fork").Process(target=_run, args=(function, write))
    process.start()
    os.close(write)
    try:
        output, code = _wait(process, read, timeout_seconds)
    finally:
        os.close(read)
    text = output.decode(errors="replace")
    assert code is not None, f"the process hung for {timeout_seconds} seconds: {text}"
    if code < 0:
        raise AssertionError(f"the process died of {signal.Signals(-code).name}: {text}")
    assert code == 0, text


def in_own_process(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test run in a forked process."""

    @functools.wraps(test)
    def forked(*args: Any, **fixtures: Any) -> None:
        in_child(functools.partial(test, *args, **fixtures))

    return forked


def _run(function: Callable[[], None], write: int) -> None:
    code = 1
    try:
        os.dup2(write, 2)
        torch.set_num_threads(1)  # OpenMP's threads did not survive the fork
        function()
        code = 0
    except BaseException:
        os.write(write, traceback.format_exc().encode())
    finally:
        os._exit(code)


def _wait(process: BaseProcess, read: int, timeout_seconds: float) -> tuple[bytes, int | None]:
    """Return what the process wrote, and its exit code; None if it had to be killed."""
    output, deadline = b"", time.monotonic() + timeout_seconds
    with selectors.DefaultSelector() as selector:
        selector.register(read, selectors.EVENT_READ)
        while time.monotonic() < deadline:
            if selector.select(POLL_SECONDS):
                output += os.read(read, 1 << 16)
            if process.exitcode is not None:
                while selector.select(0) and (rest := os.read(read, 1 << 16)):
                    output += rest
                return output, process.exitcode
    process.kill()
    process.join()
    return output, None
