"""One loader in a process of its own, which runs one command at a time.

Requests come as lines of JSON on stdin, replies go as lines of JSON to stdout.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import torch

from benchmarks import graphbolt
from benchmarks.cpu.cases import Case, Contestant
from benchmarks.cpu.contestants import endless, load_graph, make_loader, sampling_only
from examples.support.synthetic import power_law_graph

IDLE_SHARE = 0.05  # of a core: below it, the workers have nothing left to prepare
IDLE_STEP_SECONDS = 0.1
IDLE_LIMIT_SECONDS = 60.0


def size_of(batch: Any) -> tuple[int, int]:
    """Return the nodes and edges of a batch; zeros of what a sampler alone gives."""
    if hasattr(batch, "sampled_subgraphs"):
        return graphbolt.size_of(batch)
    return (batch.num_nodes, batch.num_edges) if hasattr(batch, "num_nodes") else (0, 0)


class Server:
    """Holds the contestant's graph and loader between requests."""

    def __init__(self, contestant: Contestant, case: Case) -> None:
        self.contestant, self.case = contestant, case
        self.loader: Any = None
        self.next_batch: Callable[[], Any] | None = None
        self.next_sample: Callable[[], Any] | None = None

    def load(self, folder: str) -> dict[str, Any]:
        """Read the graph, having used the loader on a toy first so that all code is in memory."""
        toy = power_law_graph(200, 1000, self.case.num_features)
        next(iter(make_loader(self.contestant._replace(num_workers=0), self.case, toy)))
        self.data = load_graph(Path(folder))
        self.base_bytes = _status_bytes("VmRSS")
        return {"base_bytes": anonymous_bytes(os.getpid())}

    def construct(self) -> dict[str, Any]:
        """Make the loader anew, and time it."""
        self.loader = self.next_batch = self.next_sample = None
        gc.collect()
        _reset_peak()
        start = time.perf_counter()
        self.loader = make_loader(self.contestant, self.case, self.data)
        seconds = time.perf_counter() - start
        return {"seconds": seconds, "peak_extra_bytes": _status_bytes("VmHWM") - self.base_bytes}

    def batches(self, count: int, warmup: int) -> dict[str, Any]:
        """Time `count` whole batches."""
        if self.next_batch is None:
            self.next_batch = endless(self.loader).__next__
        return self._time(self.next_batch, count, warmup)

    def sampling(self, count: int, warmup: int) -> dict[str, Any]:
        """Time sampling alone."""
        if self.next_sample is None:
            self.next_sample = sampling_only(self.contestant, self.case, self.data, self.loader)
        if self.next_sample is None:
            return {}
        return self._time(self.next_sample, count, warmup)

    def _time(self, step: Callable[[], Any], count: int, warmup: int) -> dict[str, Any]:
        """Time `count` steps, after `warmup` others.

        The warm-up uses up what workers have prepared, and goes over into the timing without a
        pause, in which they could prepare more. CPU time is that from idle to idle, so it counts
        exactly as many batches as were made.
        """
        nodes = edges = 0
        cpu_before = cpu_seconds()
        for _ in range(warmup):
            out = step()
            found = size_of(out)  # of the untimed batches, as looking costs something
            nodes, edges = nodes + found[0], edges + found[1]
        start = time.perf_counter()
        for _ in range(count):
            out = step()  # as in a user's loop, a batch lives until the next one is there
        seconds = time.perf_counter() - start
        del out
        self._wait_until_idle()
        cpu = cpu_seconds() - cpu_before
        return {
            "ms": 1e3 * seconds / count,
            "cpu_ms": 1e3 * cpu / (count + warmup),
            "nodes": nodes / max(1, warmup),
            "edges": edges / max(1, warmup),
        }

    def _wait_until_idle(self) -> None:
        """Let workers finish what they prepare ahead, so that they do not disturb the next one."""
        if self.contestant.num_workers == 0:
            return
        now, deadline = cpu_seconds(), time.monotonic() + IDLE_LIMIT_SECONDS
        while time.monotonic() < deadline:
            before = now
            time.sleep(IDLE_STEP_SECONDS)
            now = cpu_seconds()
            if now - before < IDLE_SHARE * IDLE_STEP_SECONDS:
                return
        raise TimeoutError(f"The workers are busy {IDLE_LIMIT_SECONDS} s after the last batch.")


def cpu_seconds() -> float:
    """Return the CPU time of this process and its children, also those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    total = time.process_time() + ended.ru_utime + ended.ru_stime
    for child in psutil.Process().children(recursive=True):
        for schedstat in Path(f"/proc/{child.pid}/task").glob("*/schedstat"):
            # In nanoseconds, where /proc/PID/stat counts in steps of 10 ms.
            with contextlib.suppress(OSError):  # it has just ended
                total += 1e-9 * int(schedstat.read_text().split()[0])
    return total


def anonymous_bytes(pid: int) -> int:
    """Return the memory of a process, shared pages counted in parts, without mapped files."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except (OSError, ProcessLookupError):  # it has just ended
        return 0
    wanted = ("Pss_Anon:", "Pss_Shmem:")
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(wanted))


def _status_bytes(field: str) -> int:
    """Return a field of this process's status, such as VmRSS, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise KeyError(field)


def _reset_peak() -> None:
    """Make VmHWM begin again at what is used now."""
    Path("/proc/self/clear_refs").write_text("5")


def main() -> None:
    """Serve requests until stdin ends."""
    config = json.loads(sys.argv[1])
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not end up between the replies
    torch.manual_seed(0)
    server = Server(Contestant(*config["contestant"]), Case(*config["case"]))
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(server, request.pop("op"))(**request)
        except Exception:
            reply = {"error": traceback.format_exc()}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


if __name__ == "__main__":
    main()
