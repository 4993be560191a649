"""Tests that run in the copy, each time in a process that is forked from one with torch and PyG."""

from __future__ import annotations

import importlib
import os
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from .copies import Stamp, files_with
from .fault import ROOT

LIMIT_SECONDS = 600
TEST_SECONDS = 60  # of one test: some faults make one wait for ever
# What the tests import beside the package, so that it is imported once.
IMPORTED_ONCE = (
    "torch", "torch_geometric.loader", "torch_geometric.nn", "torch_geometric.transforms", "numba",
    "pytest",
)  # fmt: skip


class Outcome(NamedTuple):
    """What became of some tests."""

    noticed: bool
    by: str  # the test that failed first, or what happened instead
    seconds: float


def prepare() -> None:
    """Import what all tests import; comes before the first run."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork must not lose threads
    os.environ.pop("NUMBA_CACHE_DIR", None)  # the copy has a cache of its own
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def run(root: Path, tests: Sequence[str], marks: str, planted: Stamp | None) -> Outcome:
    """Run some tests of a copy until one fails.

    Args:
        root: of the copy.
        tests: what pytest is given.
        marks: an expression of marks, as of ``-m``.
        planted: of a file of kernels, its stamp without the fault.

    Raises:
        ValueError: there are no such tests.
    """
    log, start = root / "log.txt", time.monotonic()
    child = os.fork()
    if child == 0:
        os._exit(_in_child(root, tests, marks, planted, log))
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() - start > LIMIT_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    seconds, code = time.monotonic() - start, os.waitstatus_to_exitcode(status)
    text = log.read_text(encoding="utf-8", errors="replace")
    if code == 0:
        return Outcome(False, "", seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if code == 1 and failed is not None:
        return Outcome(True, failed[1], seconds)
    if code in (3, 4, 5):
        raise ValueError(f"pytest {' '.join(tests)} ended with {code}:\n{text[-2000:]}")
    return Outcome(True, f"the process ended with {code}", seconds)


def _in_child(
    root: Path, tests: Sequence[str], marks: str, planted: Stamp | None, log: Path
) -> int:
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        for stream in (1, 2):
            os.dup2(handle, stream)
        os.chdir(root)
        os.environ["PYTHONPATH"] = str(root)  # of processes that tests start
        sys.path[:] = [str(root), *(p for p in sys.path if Path(p or ".").resolve() != ROOT)]
        for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
            del sys.modules[name]
        if planted is not None:
            _keep_other_kernels(root, planted)
        import pytest

        options = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "-o", f"timeout={TEST_SECONDS}"]
        options.append("--hypothesis-profile=planted")
        code = int(pytest.main([*tests, *options, "-m", marks]))
        sys.stdout.flush()
        return code
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        return 3


def _keep_other_kernels(root: Path, planted: Stamp) -> None:
    """Let numba compile again what has the fault in it, and nothing else."""
    from pyg_direct.kernels import jit

    name = planted[0]
    changed = files_with(name, root)
    without = tuple(planted if stamp[0] == name else stamp for stamp in jit.source_stamp())
    initialise = jit._Cache.__init__

    def with_stamp(cache: object, function: object) -> None:
        initialise(cache, function)  # type: ignore[arg-type]
        if Path(function.__code__.co_filename).name not in changed:  # type: ignore[attr-defined]
            cache._cache_file._source_stamp = without  # type: ignore[attr-defined]

    jit._Cache.__init__ = with_stamp  # type: ignore[method-assign]
