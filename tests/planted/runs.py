"""Tests that run in the copy: in forks of a process that has imported and collected them all.

A fault that cannot be swapped into functions (see `swaps.py`) gets a run of pytest of its own, in a
fork of a process with torch and PyG. So does one that such a fork did not notice: what is read
before the fork (functions that ran at import, defaults, cached values, parameters of tests) has no
fault in it. Tests that fail without the fault as well notice nothing, and are told.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import re
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .copies import Copy, Stamp, files_with
from .fault import ROOT, Fault
from .swaps import Functions, Swap, swaps_of

LIMIT_SECONDS = 600
TEST_SECONDS = 60  # of one test: some faults make one wait for ever
ALL_RUN = 20  # so many tests of a fault run, whatever notices it; later ones until one does
# What the tests import beside the package, so that it is imported once.
IMPORTED_ONCE = (
    "torch", "torch_geometric.loader", "torch_geometric.nn", "torch_geometric.transforms", "numba",
    "pytest",
)  # fmt: skip


Choose = Callable[[Fault, Sequence[str]], list[str]]


class Outcome(NamedTuple):
    """What became of some tests."""

    by: list[str]  # the tests that failed, or what happened instead; of one run, the first
    ran: int = 0  # how many tests that were, 0 if it is not known
    seconds: float = 0.0
    wrong: Sequence[str] = ()  # tests that failed with the fault and without


def prepare() -> None:
    """Import what all tests import; comes before the first run."""
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["OMP_NUM_THREADS"] = "1"  # a fork must not lose threads
    os.environ.pop("NUMBA_CACHE_DIR", None)  # the copy has a cache of its own
    for name in IMPORTED_ONCE:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


class Session:
    """A plugin of pytest: where tests would run, it forks a process for each fault.

    Args:
        copy: the tree whose tests these are.
        faults: what to plant.
        choose: gives the names of the tests for a fault, from all names.
        tell: takes the number of a fault, and its outcome or None if it could not be swapped in.
    """

    def __init__(
        self, copy: Copy, faults: Sequence[Fault], choose: Choose, tell: Callable[[object], None]
    ) -> None:
        self._copy, self._faults, self._choose, self._tell = copy, faults, choose, tell
        self._write: Callable[[str], object] = print

    def pytest_runtestloop(self, session: Any) -> bool:
        """Find what notices each fault, instead of running the tests."""
        from pyg_direct.tools.compiling import compile_kernels

        compile_kernels()  # they are loaded once
        self._functions = Functions(self._copy.root)
        items = {item.nodeid: item for item in session.items}
        passing = set[str]()  # without a fault
        for number, fault in enumerate(self._faults):
            names = dict.fromkeys(self._choose(fault, list(items)))
            swaps = swaps_of(fault, self._copy.root)
            with self._copy.planted(fault):
                outcome = self._find([items[name] for name in names], swaps)
            if outcome is not None:
                wrong = self._failing([items[name] for name in outcome.by if name not in passing])
                for name in self._failing([items[name] for name in wrong]):  # not only by chance
                    del items[name]
                by = [name for name in outcome.by if name not in wrong]
                passing.update(by)
                outcome = outcome._replace(by=by, wrong=wrong)
            self._tell([number, outcome])
        return True

    def _failing(self, items: Sequence[Any]) -> list[str]:
        """Return the tests that fail without a fault."""
        found = self._run(items, []) if items else Outcome([])
        assert found is not None
        return found.by

    def _find(self, items: Sequence[Any], swaps: Sequence[Swap]) -> Outcome | None:
        outcome = self._run(items[:ALL_RUN], swaps)
        if outcome is None or outcome.by or len(items) <= ALL_RUN:
            return outcome
        later = self._run(items[ALL_RUN:], swaps, stop=True)
        assert later is not None
        return Outcome(later.by, outcome.ran + later.ran, outcome.seconds + later.seconds)

    def _run(
        self, items: Sequence[Any], swaps: Sequence[Swap], stop: bool = False
    ) -> Outcome | None:
        """Run tests in a fork, until one fails if `stop`."""
        reading, writing = os.pipe()
        start, child = time.monotonic(), os.fork()
        if child == 0:
            os.setsid()
            self._write = lambda text: os.write(writing, f"{text}\n".encode())
            try:
                self._in_child(items, swaps, stop)
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(writing)
        lines = lines_until_end(reading)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        if not lines or lines[0] == "none":
            return None
        if lines[-1] != "end":  # the test that ran last ended or held the process
            lines.append(f"failed {lines[-1].partition(' ')[2]}")
        by = [line.partition(" ")[2] for line in lines if line.startswith("failed ")]
        ran = sum(line.startswith("run ") for line in lines)
        return Outcome(list(dict.fromkeys(by)), ran, time.monotonic() - start)

    def _in_child(self, items: Sequence[Any], swaps: Sequence[Swap], stop: bool) -> None:
        if swaps and not self._functions.swap(swaps):
            self._write("none")
            return
        self.failed = False
        for item, following in itertools.zip_longest(items, items[1:]):
            self._write(f"run {item.nodeid}")
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if stop and self.failed:
                break
        self._write("end")

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Note what fails."""
        if report.failed:
            self.failed = True
            self._write(f"failed {report.nodeid}")


def lines_until_end(handle: int) -> list[str]:
    """Return the lines of a pipe, until the line "end", its end, or a test that does not end."""
    text = b""
    with open(handle, "rb", buffering=0) as pipe:
        while not f"\n{text[-5:].decode()}".endswith("\nend\n"):
            if not select.select([pipe], [], [], 2 * TEST_SECONDS)[0]:
                break
            if not (piece := pipe.read(1 << 16)):
                break
            text += piece
    return text.decode().splitlines()


def in_session(
    copy: Copy, faults: Sequence[Fault], given: Sequence[str], choose: Choose
) -> Iterator[tuple[Fault, Outcome | None]]:
    """Plant faults in one session with the given tests; see `Session`."""
    if not faults:
        return
    reading, writing = os.pipe()
    log = copy.root / "log.txt"
    child = os.fork()
    if child == 0:
        os.close(reading)

        def tell(found: object) -> None:
            os.write(writing, f"{json.dumps(found)}\n".encode())

        plugins = [Session(copy, faults, choose, tell)]
        os._exit(_pytest(copy.root, given, "not slow", None, log, plugins))
    os.close(writing)
    with open(reading, encoding="utf-8") as lines:
        for line in lines:
            number, outcome = json.loads(line)
            yield faults[number], outcome and Outcome(*outcome)
    if os.waitpid(child, 0)[1] != 0:
        raise RuntimeError(f"the session ended:\n{log.read_text(encoding='utf-8')[-2000:]}")


def run(
    root: Path, tests: Sequence[str], marks: str, planted: Stamp | None,
    without: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """Run some tests of a copy in a run of pytest of their own, until one fails.

    Args:
        root: of the copy.
        tests: what pytest is given.
        marks: an expression of marks, as of ``-m``.
        planted: of a file of kernels, its stamp without the fault.
        without: tests that are left out.

    Raises:
        ValueError: there are no such tests.
    """
    log, start = root / "log.txt", time.monotonic()
    child = os.fork()
    if child == 0:
        left_out = [f"--deselect={name}" for name in without]
        os._exit(_pytest(root, [*tests, *left_out], marks, planted, log))
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            break
        if time.monotonic() - start > LIMIT_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    seconds, code = time.monotonic() - start, os.waitstatus_to_exitcode(status)
    text = log.read_text(encoding="utf-8", errors="replace")
    if code == 0 or (code == 5 and without):  # no test is left
        return Outcome([], 0, seconds)
    failed = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.MULTILINE)
    if code == 1 and failed is not None:
        return Outcome([failed[1]], 0, seconds)
    if code in (3, 4, 5):
        raise ValueError(f"pytest {' '.join(tests)} ended with {code}:\n{text[-2000:]}")
    return Outcome([f"the process ended with {code}"], 0, seconds)


def _pytest(
    root: Path, tests: Sequence[str], marks: str, planted: Stamp | None, log: Path,
    plugins: Sequence[object] = (),
) -> int:  # fmt: skip
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
        code = int(pytest.main([*tests, *options, "-m", marks], plugins=[*plugins]))
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
