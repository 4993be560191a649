"""How benchmarks start processes of their own, and what one call takes in such a process.

In a full run each is a new interpreter. In a quick one, where figures say nothing, it is forked
from a server that has imported torch and PyG, as importing them takes longer than all the rest.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

SERVER = Path(__file__).with_name("fork_server.py")
ADDRESS = "PYG_DIRECT_FORK_SERVER"  # set for forked processes, whose own come from the same server
PYTHON = [sys.executable, "-W", "ignore"]

# Runs in older checkouts, too, so it uses nothing of this one.
MEASURED = """
import gc, json, sys, time
from pathlib import Path

def status(field):
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])

def measured(call):
    gc.collect()
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    wall, cpu = time.perf_counter(), time.process_time()
    kept = call()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(json.dumps({
        "wall_seconds": wall,
        "cpu_seconds": cpu,
        "peak_extra_bytes": status("VmHWM") - before,
        "kept_extra_bytes": status("VmRSS") - before,
    }))
"""

Stream = int | IO[str] | None  # as `subprocess.Popen` takes it


class Process(Protocol):
    """What `subprocess.Popen` and `Forked` have in common."""

    pid: int
    stdin: IO[str] | None
    stdout: IO[str] | None

    def poll(self) -> int | None:
        """Return how it ended; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return how it ended."""

    def kill(self) -> None:
        """End it by SIGKILL."""


class Finished(NamedTuple):
    """What a process has printed and taken."""

    output: str
    cpu_seconds: float
    peak_bytes: int  # of the resident memory


class Server:
    """A process that forks others; it ends with this one."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.path = f"{self._folder.name}/socket"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen()
            number = listener.fileno()
            command = [*PYTHON, str(SERVER), str(number)]
            # Its stdin ends with this process.
            self._process = subprocess.Popen(command, pass_fds=[number], stdin=subprocess.PIPE)


@functools.cache
def server() -> Server:
    """Return the server of this process; its imports begin with the first call."""
    return Server()


class Forked:
    """A process that the server has forked."""

    def __init__(
        self,
        command: Sequence[str],
        streams: Sequence[Stream],
        cwd: Path | None,
        env: Mapping[str, str] | None,
        enter: Callable[[int], None] | None,
    ) -> None:
        address = os.environ.get(ADDRESS) or server().path
        environment = {**(os.environ if env is None else env), ADDRESS: address}
        folder = str(cwd or Path.cwd())
        request = {"arguments": command[1:], "cwd": folder, "environment": environment}
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(address)
        self._lines = self._connection.makefile("r")
        self._ended: dict[str, Any] | None = None
        given, (self.stdin, self.stdout, _) = zip(*map(_ends, range(3), streams), strict=True)
        socket.send_fds(self._connection, [b"\n"], given)
        for stream in given:
            os.close(stream)
        self._connection.sendall(json.dumps(request).encode() + b"\n")
        self.pid: int = self._told()["pid"]
        if enter is not None:
            enter(self.pid)
        self._connection.sendall(b"\n")

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        return int(self.ended(timeout)["code"])

    def kill(self) -> None:
        if self._ended is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def ended(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end, and return what the server said of it."""
        if self._ended is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            self._ended = self._told()
            self._lines.close()
            self._connection.close()
        return self._ended

    def _told(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise RuntimeError("The server that forks processes has ended.")
        return dict(json.loads(line))


def _ends(number: int, wanted: Stream) -> tuple[int, IO[str] | None]:
    """Return what a process gets as its standard stream, and our end if that is a pipe."""
    if wanted is None:
        return os.dup(number), None
    if not isinstance(wanted, int):
        return os.dup(wanted.fileno()), None
    if wanted == subprocess.DEVNULL:
        return os.open(os.devnull, os.O_RDWR), None
    assert wanted == subprocess.PIPE
    read, write = os.pipe()
    return (read, os.fdopen(write, "w")) if number == 0 else (write, os.fdopen(read))


def start(
    command: Sequence[str],
    quick: bool,
    *,
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    enter: Callable[[int], None] | None = None,
) -> Process:
    """Start a process.

    Args:
        command: the interpreter, as in `PYTHON`, and ``-c CODE`` or ``-m MODULE`` with arguments.
        quick: fork it from the server, if it is of the interpreter of this process.
        stdin: a file, None for that of this process, or a number as in `subprocess`.
        stdout: likewise.
        stderr: likewise.
        cwd: folder to run in; None for that of this process.
        env: the whole environment; None for that of this process.
        enter: called with the id of the process, before that runs anything.
    """
    if quick and command[0] == sys.executable:  # the server's, too
        errors = stdout if stderr == subprocess.STDOUT else stderr
        return Forked(command, (stdin, stdout, errors), cwd, env, enter)
    before = None if enter is None else lambda: enter(os.getpid())
    return subprocess.Popen(
        command, stdin=stdin, stdout=stdout, stderr=stderr, cwd=cwd, env=env, text=True,
        preexec_fn=before,
    )  # fmt: skip


def arguments(
    parser: argparse.ArgumentParser,
    argv: Sequence[str] | None,
    run_child: Callable[[dict[str, Any]], None],
) -> argparse.Namespace | None:
    """Return the arguments of a benchmark of the CPU, some of whose processes run itself again.

    Args:
        parser: of the benchmark.
        argv: the arguments; None for those of this process.
        run_child: does the part of such a process, with what ``--child JSON`` told it.

    Returns:
        None in such a process, whose part is done then.
    """
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    os.environ["PYG_DIRECT_DEVICE"] = "cpu"
    if args.child is None:
        return args
    run_child(json.loads(args.child))
    return None


@contextlib.contextmanager
def ranks(
    module: str, spec: Mapping[str, Any], count: int, quick: bool, *, stdin: Stream = None
) -> Iterator[list[Process]]:
    """Start the ranks of a benchmark, and end those that still run after the block.

    Each is ``python -m MODULE --child JSON``, where the JSON is `spec` with "rank", "world_size"
    and "meeting", a file by which the ranks of `torch.distributed` meet; its stdout is a pipe.

    Args:
        module: of the benchmark.
        spec: what all ranks are told.
        count: how many ranks there are.
        quick: see `start`.
        stdin: see `start`.
    """
    with tempfile.TemporaryDirectory() as folder:
        told = {**spec, "world_size": count, "meeting": f"{folder}/meeting"}
        processes: list[Process] = []
        try:
            for rank in range(count):
                command = [*PYTHON, "-m", module, "--child", json.dumps({**told, "rank": rank})]
                processes.append(start(command, quick, stdin=stdin, stdout=subprocess.PIPE))
            yield processes
        finally:
            for process in processes:
                process.kill()
                end(process)


def results_of_ranks(module: str, spec: Mapping[str, Any], count: int, quick: bool) -> list[Any]:
    """Return what the ranks of a benchmark print in their last lines, as JSON; see `ranks`.

    Raises:
        RuntimeError: a rank failed.
    """
    with ranks(module, spec, count, quick) as processes:
        found = []
        for rank, process in enumerate(processes):
            assert process.stdout is not None
            lines = process.stdout.read().splitlines()
            if process.wait() != 0 or not lines:
                raise RuntimeError(why_failed(rank, processes))
            found.append(json.loads(lines[-1]))
    return found


def why_failed(rank: int, processes: Sequence[Process]) -> str:
    """Return what is known of why ranks have no result, in a sentence.

    Args:
        rank: one that has ended without; what it wrote to stderr is there already.
        processes: of all ranks, of which one that was killed is named before others.
    """
    codes = [process.poll() for process in processes]
    rank = next((r for r, code in enumerate(codes) if code is not None and code < 0), rank)
    code = processes[rank].wait()
    how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    killed = ", as the system does where memory runs out" if code == -signal.SIGKILL else ""
    return f"Rank {rank} of {len(processes)} ended {how}{killed}, without a result."


def end(process: Process) -> None:
    """Close the pipes of a process that ends with its input, and wait for it."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended, with a line on its way
            process.stdin.close()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def run(
    command: Sequence[str], quick: bool, *, keep_errors: bool = True, **options: Any
) -> Finished:
    """Run a process to its end.

    Args:
        command: see `start`.
        quick: see `start`.
        keep_errors: show its stderr only if it fails, as part of the error.
        **options: cwd, env and enter of `start`.

    Raises:
        RuntimeError: it failed.
    """
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        stderr = errors if keep_errors else None
        process = start(command, quick, stdout=output, stderr=stderr, **options)
        ended = _ended(process)
        output.seek(0)
        errors.seek(0)
        if ended["code"] != 0:
            name = " ".join(command[1:])[-200:]
            raise RuntimeError(f"... {name} ended with {ended['code']}: {errors.read()}")
        return Finished(output.read(), ended["cpu_seconds"], ended["peak_bytes"])


def _ended(process: Process) -> dict[str, Any]:
    """Wait for the end; return the exit code and what the process took."""
    if isinstance(process, Forked):
        return process.ended()
    assert isinstance(process, subprocess.Popen)
    _, status, usage = os.wait4(process.pid, 0)
    code = process.returncode = os.waitstatus_to_exitcode(status)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    return {"code": code, "cpu_seconds": cpu_seconds, "peak_bytes": 1024 * usage.ru_maxrss}


def measure_in_child(
    code: str, *arguments: object, checkout: Path, quick: bool = False
) -> dict[str, float]:
    """Run code in a new process and return what its one call of `measured` took.

    Args:
        code: calls ``measured(call)``, whose result is alive when memory is read.
        *arguments: are its `sys.argv[1:]`.
        checkout: whose package it imports.
        quick: see `start`.

    Returns:
        wall_seconds, cpu_seconds, peak_extra_bytes and kept_extra_bytes.

    Raises:
        RuntimeError: the code failed.
    """
    command = [*PYTHON, "-c", MEASURED + code, *map(str, arguments)]
    return dict(json.loads(run(command, quick, cwd=checkout).output))
