"""Forks processes that have torch and PyG imported already; `benchmarks.child` starts and asks it.

    python fork_server.py LISTENER    # the file descriptor of a socket; ends when stdin does

A client sends a byte with its standard streams, and a line of JSON: the arguments of the
interpreter, the folder and the environment. It gets a line with the id of the process, answers with
a byte that lets it run (so that its memory can be limited before), and gets another line when it
has ended. The process runs as a new interpreter would, but for variables that are read when libc,
torch or numba are loaded.

Nothing of a checkout is imported here, as processes of other checkouts are forked, too.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
import traceback
import types
import warnings
from typing import Any

# Most of what a benchmark waits for; none of it starts threads that it needs after a fork.
PRELOADED = ("torch", "torch_geometric.loader", "torch_geometric.nn", "numba")


def serve(listener: socket.socket) -> dict[str, Any]:
    """Fork a process for each request; returns in these alone, with the request."""
    while True:
        ready, _, _ = select.select([listener, sys.stdin], [], [])
        if sys.stdin in ready:
            os._exit(0)
        connection, _ = listener.accept()
        if os.fork() == 0:
            listener.close()
            return _forked(connection)
        connection.close()


def _forked(connection: socket.socket) -> dict[str, Any]:
    """Fork the process, where this returns; tell the client about it until it has ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # the server's own children need no wait
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile("r") as lines:
        request: dict[str, Any] = json.loads(lines.readline())
    pid = os.fork()
    if pid == 0:
        if not connection.recv(1):  # the client has gone
            os._exit(1)
        connection.close()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        return request
    for stream in streams:
        os.close(stream)
    _tell(connection, pid=pid)
    _, status, usage = os.wait4(pid, 0)
    _tell(
        connection,
        code=os.waitstatus_to_exitcode(status),
        cpu_seconds=usage.ru_utime + usage.ru_stime,
        peak_bytes=1024 * usage.ru_maxrss,
    )
    os._exit(0)


def _tell(connection: socket.socket, **fields: float) -> None:
    connection.sendall(json.dumps(fields).encode() + b"\n")


def search_path(environment: dict[str, str]) -> list[str]:
    """Return the folders of PYTHONPATH."""
    return list(map(os.path.abspath, filter(None, environment.get("PYTHONPATH", "").split(":"))))


def become(request: dict[str, Any], installed: list[str]) -> None:
    """Make this process what the request asks for; `installed` is `sys.path` but for its head."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1, errors="backslashreplace")
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:] = [os.getcwd(), *search_path(request["environment"]), *installed]
    importlib.invalidate_caches()


def run(arguments: list[str]) -> None:
    """Run what `python ARGUMENTS` runs: ``[-W FILTER] -c CODE ...`` or ``[...] -m MODULE ...``."""
    option, value, *rest = arguments
    if option == "-W":
        warnings.simplefilter(value)  # type: ignore[arg-type]
        run(rest)
    elif option == "-m":
        sys.argv = [value, *rest]
        runpy.run_module(value, run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv = ["-c", *rest]
        program = sys.modules["__main__"] = types.ModuleType("__main__")
        exec(compile(value, "<string>", "exec"), program.__dict__)
    else:
        raise ValueError(f"The option {option} is not known here.")


def exit_code(arguments: list[str]) -> int:
    """Run a program; return the code that the interpreter would exit with."""
    try:
        run(arguments)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def main(listener: int) -> None:
    """Serve until stdin ends."""
    code = 0

    @atexit.register  # the first that is registered is the last that is called
    def leave() -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # tearing down all that was imported takes half a second

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends with its client
    del sys.path[0]  # of this file; its neighbours are not modules of their bare names
    installed = [folder for folder in sys.path if folder not in search_path(dict(os.environ))]
    for name in PRELOADED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # so that collections do not write to pages that all share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    request = serve(socket.socket(fileno=listener))
    become(request, installed)
    code = exit_code(request["arguments"])


if __name__ == "__main__":
    main(int(sys.argv[1]))
