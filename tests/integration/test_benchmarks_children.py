"""Processes that benchmarks start: new interpreters, and those that are forked in quick runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks import child, memory_group

REPOSITORY = Path(__file__).parents[2]
QUICK = [False, pytest.param(True, marks=pytest.mark.slow)]  # the server has to import torch
SURROUNDINGS = """
import json, os, sys, warnings
warnings.warn("is not shown")
print(json.dumps([sys.argv, os.getcwd(), os.environ["GIVEN"], "HOME" in os.environ,
                  __name__, "benchmarks" in sys.modules, "pyg_direct" in sys.modules]))
"""


def command(code: str, *arguments: str) -> list[str]:
    return [*child.PYTHON, "-c", code, *arguments]


@pytest.mark.parametrize("quick", QUICK)
def test_a_child_gets_arguments_folder_and_environment(quick: bool, tmp_path: Path) -> None:
    environment = {"GIVEN": "x"}
    done = child.run(command(SURROUNDINGS, "a", "b"), quick, cwd=tmp_path, env=environment)
    expected = [["-c", "a", "b"], str(tmp_path), "x", False, "__main__", False, False]
    assert json.loads(done.output) == expected
    assert done.cpu_seconds > 0
    assert done.peak_bytes > 1 << 20


@pytest.mark.slow
def test_forked_processes_do_not_wait_for_torch() -> None:
    asked = "import sys; print('torch' in sys.modules, 'torch_geometric' in sys.modules)"
    assert child.run(command(asked), quick=True).output == "True True\n"
    assert child.run(command(asked), quick=False).output == "False False\n"


@pytest.mark.parametrize("quick", QUICK)
def test_the_package_of_another_checkout(quick: bool, tmp_path: Path) -> None:
    (tmp_path / "pyg_direct").mkdir()
    (tmp_path / "pyg_direct" / "__init__.py").write_text("where = 'another checkout'")
    (tmp_path / "pyg_direct" / "said.py").write_text("import sys; print(sys.argv[1:], __name__)")
    code = "import pyg_direct; print(pyg_direct.where)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = child.run(command(code), quick, cwd=tmp_path.parent, env=environment)
    assert done.output == "another checkout\n"
    assert child.run(command(code), quick, cwd=tmp_path).output == "another checkout\n"
    module = [*child.PYTHON, "-m", "pyg_direct.said", "a"]
    assert child.run(module, quick, cwd=tmp_path).output == "['a'] __main__\n"


@pytest.mark.parametrize("quick", QUICK)
@pytest.mark.parametrize(
    ("code", "how"),
    [
        ("1 / 0", "1: .*ZeroDivisionError"),
        ("import sys; sys.exit(3)", "3: "),
        ("import sys; sys.exit('no room')", "1: no room"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", "-9: "),
    ],
)
def test_a_child_that_fails_is_an_error_that_says_how_it_ended(
    quick: bool, code: str, how: str
) -> None:
    with pytest.raises(RuntimeError, match=f"(?s) ended with {how}"):
        child.run(command(code), quick)


@pytest.mark.parametrize("quick", QUICK)
def test_a_child_talks_over_pipes_until_it_is_ended(quick: bool) -> None:
    code = "import sys\nfor line in sys.stdin: print(2 * int(line), flush=True)"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    process = child.start(command(code), quick, **pipes)
    assert process.stdin is not None
    assert process.stdout is not None
    for number in (3, 4):
        process.stdin.write(f"{number}\n")
        process.stdin.flush()
        assert process.stdout.readline() == f"{2 * number}\n"
    assert process.poll() is None
    child.end(process)
    assert process.poll() == 0


@pytest.mark.parametrize("quick", QUICK)
def test_a_child_runs_in_the_interpreter_that_its_command_names(
    quick: bool, tmp_path: Path
) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nIT_IS=other exec {sys.executable} "$@"\n')
    other.chmod(0o700)
    code = "import os; print(os.environ.get('IT_IS'))"
    assert child.run([str(other), "-c", code], quick).output == "other\n"


@pytest.mark.parametrize("quick", QUICK)
def test_a_process_is_killed(quick: bool) -> None:
    process = child.start(command("import time; time.sleep(60)"), quick)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not psutil.pid_exists(process.pid)


@pytest.mark.parametrize("quick", QUICK)
def test_a_limit_holds_before_anything_runs(quick: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[int] = []  # as compilers would count, and be killed, within the limit
    monkeypatch.setattr(memory_group, "_compile_kernels", lambda: compiled.append(1))
    monkeypatch.setattr(memory_group, "ROOT", Path("/no/such/folder"))
    asked = "import resource; print(resource.getrlimit(resource.RLIMIT_DATA))"
    with memory_group.limited(1 << 40) as limit:
        assert limit.how == "RLIMIT_DATA"
        assert compiled == [1]
        done = child.run(command(asked), quick, enter=limit.enter)
    assert done.output == f"({1 << 40}, {1 << 40})\n"


@pytest.mark.parametrize("quick", QUICK)
def test_the_end_of_a_program_is_an_interpreters(quick: bool) -> None:
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'exit')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()"
    )
    assert child.run(command(code), quick).output == "thread\nexit\n"


@pytest.mark.slow
def test_forked_processes_fork_others_by_the_same_server() -> None:
    code = (
        "import os, sys\n"
        "from benchmarks import child\n"
        "print(child.run([*child.PYTHON, '-c', 'print(1)'], quick=True).output)\n"
        "print(child.server.cache_info().currsize)"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    assert child.run(command(code), quick=True, env=environment).output == "1\n\n0\n"


@pytest.mark.slow
def test_the_server_ends_with_its_client() -> None:
    code = (
        "import psutil\n"
        "from benchmarks import child\n"
        "child.run([*child.PYTHON, '-c', 'pass'], quick=True)\n"
        "print(*(process.pid for process in psutil.Process().children()))"
    )
    asked = [sys.executable, "-c", code]
    done = subprocess.run(asked, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    (server,) = map(int, done.stdout.split())
    deadline = time.monotonic() + 20
    while psutil.pid_exists(server) and time.monotonic() < deadline:
        if psutil.Process(server).status() == psutil.STATUS_ZOMBIE:  # where none reaps orphans
            break
        time.sleep(0.05)
    else:
        assert not psutil.pid_exists(server)


RANK = """
import json, sys, time
told = json.loads(sys.argv[2])
if told["ends"] == told["rank"]:
    sys.exit(3)
if told["ends"] is not None:
    time.sleep(600)
print("something else")
print(json.dumps([told["rank"], told["world_size"], told["asked"], told["meeting"]]))
"""


def test_ranks_of_a_benchmark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "as_rank.py").write_text(RANK)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    told = child.results_of_ranks("as_rank", {"asked": 7, "ends": None}, 3, quick=False)
    assert [of_rank[:3] for of_rank in told] == [[0, 3, 7], [1, 3, 7], [2, 3, 7]]
    assert len({of_rank[3] for of_rank in told}) == 1
    with pytest.raises(RuntimeError, match=r"Rank 0 of 2 ended with exit code 3, without"):
        child.results_of_ranks("as_rank", {"asked": 7, "ends": 0}, 2, quick=False)
    assert not [p for p in psutil.Process().children() if "as_rank" in p.cmdline()]


def test_of_ranks_that_fail_the_one_that_was_killed_is_named() -> None:
    """As by its limit of memory, after which the others fail as well."""
    codes = (1, -signal.SIGKILL, None)
    ranks: list[Any] = [SimpleNamespace(poll=lambda code=code: code) for code in codes]
    for rank in ranks:
        rank.wait = rank.poll
    assert child.why_failed(0, ranks).startswith("Rank 1 of 3 ended by SIGKILL, as the system")
    assert child.why_failed(0, ranks[:1]) == "Rank 0 of 1 ended with exit code 1, without a result."
