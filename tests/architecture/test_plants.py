"""What `python -m tests.driver` and `python -m tests.planted` leave out or replace is there."""

import importlib.util
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from driver.plants import PLANTS, Plant

from pyg_direct.tools import compiling
from tests.planted import __main__ as planted
from tests.planted import runs
from tests.planted.cover import cover
from tests.planted.fault import FAULTS, Fault, equivalents
from tests.planted.generated import OPERATORS, calls, changed_lines
from tests.planted.measured import lines_of
from tests.planted.runs import Outcome, Session, lines_until_end
from tests.planted.swaps import Functions, swaps_of

ROOT = Path(__file__).parents[2]


def test_a_plant_has_something_to_leave_out() -> None:
    assert [name for name, plant in PLANTS.items() if times_there(plant) != 1] == []


def times_there(plant: Plant) -> int:
    """Return how often what a plant leaves out stands in its module."""
    return ROOT.joinpath(*plant.module.split(".")).with_suffix(".py").read_text().count(plant.old)


def test_a_fault_has_something_to_replace() -> None:
    """Where a file changed, its fault in `planted/faults/*.toml` gets the new text, or goes."""
    problems = {fault.name: fault.problem() for fault in FAULTS}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_the_nearest_tests_of_a_fault_are_there() -> None:
    near = {test for fault in FAULTS for test in fault.near.split()}
    assert [test for test in sorted(near) if not is_there(test)] == []


def is_there(test: str) -> bool:
    """Return whether a file has a test, whose parameters are left aside."""
    file, _, name = test.partition("::")
    path, function = ROOT / file, name.partition("[")[0].split("::")[-1]
    return path.exists() and (not function or f"def {function}(" in path.read_text("utf-8"))


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.name for fault in FAULTS}) == len(FAULTS) >= 150


def test_changed_lines_are_those_of_the_new_files() -> None:
    diff = """\
--- a/kept.py
+++ b/kept.py
@@ -3 +4,2 @@ def f():
@@ -9,2 +11,0 @@
--- a/gone.py
+++ /dev/null
@@ -1,3 +0,0 @@
--- /dev/null
+++ b/new.py
@@ -0,0 +1,3 @@
"""
    assert changed_lines(diff) == {"kept.py": {4, 5}, "new.py": {1, 2, 3}}


def test_calls_are_dropped_and_their_arguments_swapped_in_the_lines_asked_for() -> None:
    text = 'def f(a, b):\n    note("ü", a)\n    return g(a, *b) + h(1, b, 2)\n'
    made = {(place.line, place.operator): place.make(text) for place in calls(text, {2, 3})}
    assert made == {
        (2, "DroppedCall"): text.replace('note("ü", a)', "..."),
        (2, "SwappedArguments"): text.replace('note("ü", a)', 'note(a, "ü")'),
        (3, "SwappedArguments"): text.replace("h(1, b, 2)", "h(b, 1, 2)"),
    }
    assert list(calls(text, {1})) == []


def test_generated_faults_without_effect_are_of_lines_that_are_there() -> None:
    known = {name.partition("/")[2] for name in OPERATORS} | {"DroppedCall", "SwappedArguments"}
    for file, rows in equivalents().items():
        lines = {line.strip() for line in (ROOT / file).read_text("utf-8").splitlines()}
        for operator, line, why in rows:
            assert (operator in known, line in lines, why != "") == (True, True, True), (file, line)


MODULE = """\
import functools

LIMIT = 3

def twice(function):
    def run(x):
        return function(function(x))
    return run

class Counter:
    step = 1
    @functools.cache
    def after(self, x, y=0):
        if (
            x > LIMIT
        ):
            return x
        return [x + n for n in (self.step,)][0]

@twice
def up(x):
    return x + 1
"""


def fault_of(old: str, new: str) -> Fault:
    return Fault("", "module.py", old, new, "")


@pytest.mark.parametrize(
    ("old", "new", "results"),
    [
        ("function(function(x))", "function(x)", (2, 2)),  # in a closure
        ("return x + 1", "return (\n x + 2)", (5, 2)),
        ("x > LIMIT", "x > 0", (3, 1)),  # under a decorator
        ("x + n for", "x - n for", (3, 0)),  # inside of a function
    ],
)
def test_a_fault_swapped_into_imported_functions_changes_what_they_return(
    tmp_path: Path, old: str, new: str, results: tuple[int, int]
) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    spec = importlib.util.spec_from_file_location("module", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert Functions(tmp_path).swap(swaps_of(fault_of(old, new), tmp_path))
    assert (module.up(1), module.Counter().after(1)) == results


@pytest.mark.parametrize("old", ["LIMIT = 3", "step = 1", "@functools.cache", "y=0", "@twice"])
def test_a_fault_in_what_runs_at_import_is_not_swapped(tmp_path: Path, old: str) -> None:
    (tmp_path / "module.py").write_text(MODULE)
    new = old.replace("3", "4").replace("1", "2").replace("0", "5") if "=" in old else ""
    assert swaps_of(fault_of(old, new), tmp_path) == []


@pytest.mark.parametrize(
    ("old", "lines"),
    [("x > LIMIT", {14, 15, 16}), ("return [x", {18}), ("LIMIT = 3", {3}), ("y=0", {13})],
)
def test_lines_of_a_fault_are_those_of_its_statement(old: str, lines: set[int]) -> None:
    assert set(lines_of(fault_of(old, "..."), MODULE)) == lines


@pytest.mark.parametrize("last", ["end\n", ""], ids=["ended", "cut off"])
def test_a_test_whose_name_ends_in_end_does_not_end_the_run(last: str) -> None:
    handles = os.pipe()
    thread = threading.Thread(target=write_slowly, args=(handles[1], "run a::test_the_end\n", last))
    thread.start()
    found = lines_until_end(handles[0])
    thread.join()
    assert found == ["run a::test_the_end", "run a::test_b", *last.split()]


def write_slowly(handle: int, first: str, last: str) -> None:
    """Write to a pipe, so that its reader sees the first line alone for a while."""
    os.write(handle, first.encode())
    time.sleep(0.02)
    os.write(handle, f"run a::test_b\n{last}".encode())
    os.close(handle)


class Planted:
    """Stands for a copy of the tree: knows whether a fault is planted."""

    root = Path()
    is_planted = False

    @contextmanager
    def planted(self, fault: Fault) -> Iterator[None]:
        self.is_planted = True
        yield
        self.is_planted = False


FILE = "pyg_direct/core/module.py"
FAULT = fault_of("x + n for", "x - n for")._replace(file=FILE, near="a::test_broken a::test_good")


@pytest.mark.parametrize("good", [True, False])
def test_a_test_that_fails_without_the_fault_notices_nothing_and_is_told(
    monkeypatch: pytest.MonkeyPatch, good: bool
) -> None:
    copy: Any = Planted()

    def run(_: Path, tests: list[str], marks: str, stamp: Any, without: Any = ()) -> Outcome:
        fail = {"a::test_broken", *(["a::test_good"] if good and copy.is_planted else [])}
        return Outcome([t for t in tests if t in fail and t not in without][:1])

    monkeypatch.setattr(planted, "run", run)
    found = planted.find(FAULT, copy, ["near"])
    assert (found.stage, found.outcome.by) == (("near", ["a::test_good"]) if good else ("", []))
    assert "failed without the fault as well: a::test_broken" in planted.line_of(found)


@pytest.mark.parametrize("equivalent", ["", "nothing reads it"])
def test_faults_unnoticed_in_the_session_get_a_process_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, equivalent: str
) -> None:
    (tmp_path / FILE).parent.mkdir(parents=True)
    (tmp_path / FILE).write_text(MODULE)
    fault, copy = FAULT._replace(equivalent=equivalent), Planted()
    copy.root = tmp_path

    def run(*_: Any) -> Outcome:
        return Outcome(["a::test_good"] if copy.is_planted else [])

    session = [(fault, Outcome([], 3, 1.0, ["a::test_broken"]))]
    monkeypatch.setattr(planted, "in_session", lambda *_: session)
    monkeypatch.setattr(planted, "run", run)
    (found,) = planted.find_all([fault], copy, ["near"], None)  # type: ignore[arg-type]
    assert found.outcome.by == ([] if equivalent else ["a::test_good"])
    assert [*found.outcome.wrong] == ["a::test_broken"]


def test_a_session_leaves_out_what_fails_twice_without_the_fault(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One test always fails, one fails once by chance, and one fails with the fault alone."""
    made, told = list[tuple[bool, list[str]]](), list[object]()

    def run(_: Session, items: list[Any], swaps: list[object], stop: bool = False) -> Outcome:
        names = [item.nodeid for item in items]
        made.append((bool(swaps), names))
        fail = {"good", "unlucky"} if swaps else {"unlucky"} if len(made) == 2 else set[str]()
        return Outcome([name for name in names if name in fail | {"broken"}], len(names))

    monkeypatch.setattr(Session, "_run", run)
    monkeypatch.setattr(runs, "Functions", lambda root: None)
    monkeypatch.setattr(runs, "swaps_of", lambda fault, root: ["a swap"])
    monkeypatch.setattr(compiling, "compile_kernels", lambda: None)
    copy: Any = Planted()
    names = ["broken", "good", "unlucky"]
    session = Session(copy, [FAULT, FAULT], lambda fault, names: [*names], told.append)
    session.pytest_runtestloop(SimpleNamespace(items=[SimpleNamespace(nodeid=n) for n in names]))
    assert told == [
        [0, Outcome(["good"], 3, wrong=["broken", "unlucky"])],
        [1, Outcome(["good", "unlucky"], 2, wrong=[])],
    ]
    assert made == [
        (True, names), (False, names), (False, ["broken", "unlucky"]),
        (True, names[1:]), (False, ["unlucky"]),  # what passed without a fault is not asked again
    ]  # fmt: skip


def test_a_cover_has_a_test_for_each_noticed_fault() -> None:
    matrix = {"a": {"x", "y"}, "b": {"y"}, "c": {"z", "x"}, "d": set()}
    assert cover(matrix) == ["x", "y"]
    assert cover(matrix | {"e": {"y"}}) == ["y", "x"]
