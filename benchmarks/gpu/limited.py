"""Commands that may hang, run with a limit."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks import child

TAIL_CHARACTERS = 4000
KILL_SECONDS = 5  # that a killed process may take to be gone


class Outcome(NamedTuple):
    """How a command ended."""

    status: int | None  # what it returned; None if it was stopped at the limit
    seconds: float
    tail: str  # the end of what it printed

    @property
    def ok(self) -> bool:
        """Whether it ended by itself, and well."""
        return self.status == 0


class Running:
    """A command that has been started.

    Args:
        command: program and arguments.
        log: file for what it prints.
        env: the whole environment; None for this process's.
        cwd: folder to run in.
        quick: fork it, which is for Python's commands only; see `child.start`.
    """

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        quick: bool = False,
    ) -> None:
        self._log, self._begin = log, time.monotonic()
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as output:
            self._process = child.start(
                command, quick, stdout=output, stderr=subprocess.STDOUT, env=env, cwd=cwd
            )

    def wait(self, seconds: float) -> Outcome:
        """Wait for the end, but no longer than `seconds` from now; then stop it."""
        status: int | None = None
        try:
            status = self._process.wait(max(0.0, seconds))
        except subprocess.TimeoutExpired:
            self.stop()
        text = self._log.read_text(errors="replace")
        return Outcome(status, time.monotonic() - self._begin, text[-TAIL_CHARACTERS:])

    def stop(self) -> None:
        """Kill the command and all that it started."""
        with contextlib.suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            processes = [*parent.children(recursive=True), parent]
            for process in processes:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, timeout=KILL_SECONDS)
        self._process.wait()


def run_limited(
    command: Sequence[str],
    seconds: float,
    log: Path,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    quick: bool = False,
) -> Outcome:
    """Run a command for at most `seconds`."""
    return Running(command, log, env, cwd, quick).wait(seconds)
