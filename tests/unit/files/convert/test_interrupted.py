"""Conversions that are killed, run out of disk or are read badly, and then go on."""

from __future__ import annotations

import builtins
import errno
import os
import random
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conversions import as_npy, assert_same_files, attributed, typed, write_typed

import pyg_direct
from pyg_direct.core.journal import Journal, difference
from pyg_direct.files import arrays
from pyg_direct.files.convert import array_rows, edge_files, edge_table, node_files, weights
from pyg_direct.files.convert import convert as steps
from pyg_direct.files.convert import weights as times
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.spec import GraphSpec, spec_of
from pyg_direct.files.convert.workplace import Workplace

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps, and so many moments to be interrupted at."""
    monkeypatch.setattr(edge_files, "STEP_EDGES", 100)
    monkeypatch.setattr(edge_table, "SORT_BYTES", 10**5)
    monkeypatch.setattr(edge_table, "HISTOGRAM", 10)
    monkeypatch.setattr(node_files, "STEP_BYTES", 400)
    monkeypatch.setattr(node_files, "STEPS_A_RECORD", 2)
    monkeypatch.setattr(steps, "PIECE_BYTES", 10**5)
    monkeypatch.setattr(times, "STEP_ROWS", 50)
    monkeypatch.setattr(weights, "STEP_EDGES", 100)
    monkeypatch.setattr(weights, "STEPS_A_RECORD", 2)


class Case(NamedTuple):
    spec: GraphSpec
    out: Path
    saved: Path  # what is expected

    @property
    def part(self) -> Path:
        return self.out.with_name("out.part")

    def graph_exists(self) -> bool:
        return (self.part / "graph").exists()

    def run(self) -> None:
        """Convert, or go on, and see that the progress that is told comes to its end."""
        told: list[list[Any]] = []

        def advance(count: int) -> None:
            told[0][1] += count

        def begin(total: int | None) -> Callable[[int], None]:
            told.append([total, 0])
            return advance

        convert(self.spec, self.out, memory_bytes=10**9, progress=begin)
        assert all(total in (None, done) for total, done in told)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    data = attributed()
    spec = replace(as_npy(data, tmp_path / "raw"), feature_dtype="int8")
    data.x = pyg_direct.quantize(data.x)
    pyg_direct.save(data, tmp_path / "saved")
    return Case(spec, tmp_path / "out", tmp_path / "saved")


@pytest.fixture
def prepared(tmp_path: Path) -> Case:
    """A graph with all that can be made on the way: times, weights and factors of rows."""
    data, generator = attributed(), torch.Generator().manual_seed(5)
    data.time = torch.randint(9, (200,), generator=generator)
    data.edge_weight = data.edge_weight.abs()
    attrs = {"time_attr": "time", "weight_attr": "edge_weight"}
    spec = replace(
        as_npy(data, tmp_path / "raw"), feature_dtype="int8", feature_scale="row", **attrs
    )
    data.x = pyg_direct.quantize(data.x, scale="row")
    pyg_direct.save(data, tmp_path / "saved", **attrs)
    return Case(spec, tmp_path / "out", tmp_path / "saved")


@contextmanager
def counted(event: Callable[[], None]) -> Iterator[None]:
    """Call `event` before everything that a conversion does to files."""
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (
            (os, "replace"), (os, "fsync"), (arrays.ArrayWriter, "write"), (shutil, "rmtree"),
            (edge_table.EdgeTable, "ingest"), (edge_table.EdgeTable, "partitions"),
            (Journal, "record"), (Path, "unlink"),
        ):  # fmt: skip
            patch.setattr(owner, name, _announced(getattr(owner, name), event))
        yield


def _announced(function: Any, event: Callable[[], None]) -> Any:
    def announced(*args: Any, **kwargs: Any) -> Any:
        event()
        return function(*args, **kwargs)

    return announced


def killed(case: Case, moment: int) -> None:
    """Convert in a process that kills itself before its event number `moment`."""
    left = [moment]

    def event() -> None:
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left[0] -= 1

    def work() -> None:
        with counted(event):
            case.run()

    assert forked(work) == signal.SIGKILL


def forked(work: Callable[[], None], kill_after: float | None = None) -> int:
    """Run `work` in a process, perhaps kill it; return the signal that ended it, or 0."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            work()
            code = 0
        finally:
            os._exit(code)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0


def number_of_events(case: Case) -> int:
    events: list[None] = []
    with counted(lambda: events.append(None)):
        case.run()
    shutil.rmtree(case.out)
    return len(events)


def test_killed_at_some_moments(case: Case) -> None:
    events = number_of_events(case)
    assert events > 100
    for moment in (2, events // 3, events // 4):  # counted from where the last run ended
        killed(case, moment)
        assert not case.out.exists()
    case.run()
    assert_same_files(case.out, case.saved)
    assert not case.part.exists()


def test_killed_while_times_and_weights_are_written(prepared: Case) -> None:
    events = number_of_events(prepared)
    for moment in (6, events // 5, events // 5, events // 8, events // 8, events // 8):
        killed(prepared, moment)
        assert not prepared.out.exists()
    prepared.run()
    assert_same_files(prepared.out, prepared.saved)


@pytest.fixture
def without_weight(tmp_path: Path) -> Case:
    """A graph where the only edge of weight 0 is among the first."""
    data = attributed()
    data.edge_weight = data.edge_weight.abs() + 1
    data.edge_weight[data.edge_index[1].argmin()] = 0
    spec = replace(as_npy(data, tmp_path / "raw"), weight_attr="edge_weight")
    pyg_direct.save(data, tmp_path / "saved", weight_attr="edge_weight")
    return Case(spec, tmp_path / "out", tmp_path / "saved")


def failing_once(case: Case, owner: Any, name: str, call: int) -> None:
    """Convert until a function is called for the given time, which fails, and then to the end."""
    calls, real = [0], getattr(owner, name)

    def fails(*args: Any, **kwargs: Any) -> Any:
        calls[0] += 1
        if calls[0] == call:
            raise OSError(errno.EIO, "interrupted")
        return real(*args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, fails)
        with pytest.raises(OSError, match="interrupted"):
            case.run()
    case.run()
    assert_same_files(case.out, case.saved)
    shutil.rmtree(case.out)


def test_a_weight_of_zero_is_remembered(without_weight: Case) -> None:
    """Behind the moment, when half of the tables were recorded, no edge has weight 0."""
    failing_once(without_weight, weights, "_tables", 16)


@pytest.mark.parametrize("call", [2, 5])
def test_edges_of_the_input_are_gone_on_with(case: Case, call: int) -> None:
    failing_once(case, edge_table.EdgeTable, "ingest", call)


def test_edge_types_are_gone_on_with(tmp_path: Path) -> None:
    """The second of three types fails when the first is written."""
    pyg_direct.save(typed(), tmp_path / "saved")
    case = Case(spec_of(write_typed(typed(), tmp_path)), tmp_path / "out", tmp_path / "saved")
    failing_once(case, edge_table.EdgeTable, "partitions", 2)


@pytest.mark.parametrize(
    ("kind", "names"), [("prepared", ["sorted_times", "indptr"]), ("case", ["x_scale"])]
)
def test_files_unrecorded_before_their_end_are_written_again(
    request: pytest.FixtureRequest, kind: str, names: list[str]
) -> None:
    case: Case = request.getfixturevalue(kind)
    close = arrays.ArrayWriter.close
    for name in names:

        def fails(writer: Any, name: str = name) -> Any:
            if writer._path.name.endswith(f"_{name}.bin"):
                raise OSError(errno.EIO, "interrupted")
            return close(writer)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(arrays.ArrayWriter, "close", fails)
            with pytest.raises(OSError, match="interrupted"):
                case.run()
    case.run()
    assert_same_files(case.out, case.saved)


def test_the_room_that_an_earlier_run_has_taken_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workplace, usage = Workplace(tmp_path / "out", False), shutil.disk_usage(tmp_path)
    workplace.graph.mkdir(parents=True)
    (workplace.graph / "001_x.bin").write_bytes(bytes(700))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=300))
    workplace.check_space(1000)
    with pytest.raises(OSError, match=r"takes about 1\.4 kB .* 400 bytes are missing"):
        workplace.check_space(1400)


def test_killed_in_the_last_moments(case: Case) -> None:
    """Before, between and after the steps by which the result takes its place."""
    events = number_of_events(case)
    for moment in range(events - 6, events):
        killed(case, moment)
        finished = case.out.exists()
        try:
            case.run()
        except FileExistsError:
            assert finished
        assert_same_files(case.out, case.saved)
        assert not case.part.exists()
        shutil.rmtree(case.out)


@pytest.mark.slow
def test_killed_before_every_eleventh_event(case: Case) -> None:
    for moment in range(0, number_of_events(case), 11):
        killed(case, moment)
        case.run()
        assert_same_files(case.out, case.saved)
        shutil.rmtree(case.out)


@pytest.mark.slow
def test_killed_before_every_eleventh_event_with_times_and_weights(prepared: Case) -> None:
    test_killed_before_every_eleventh_event(prepared)


@pytest.mark.slow
def test_killed_at_ten_random_times(tmp_path: Path) -> None:
    data = attributed(3000, 40_000)
    pyg_direct.save(data, tmp_path / "saved")
    case = Case(as_npy(data, tmp_path / "raw"), tmp_path / "out", tmp_path / "saved")
    begin = time.perf_counter()
    case.run()
    seconds = time.perf_counter() - begin
    shutil.rmtree(case.out)
    source, interrupted = random.Random(0), 0
    for _ in range(10):
        signal_number = forked(case.run, kill_after=source.uniform(0.02, 0.8) * seconds)
        interrupted += signal_number == signal.SIGKILL
        case.run() if not case.out.exists() else None
        assert_same_files(case.out, case.saved)
        shutil.rmtree(case.out)
    assert interrupted >= 5


class BadFile:
    """A file that writes a few bytes at a time, until it fails."""

    def __init__(self, path: Path, mode: str, room: list[int], code: int) -> None:
        self._file = builtins.open(path, mode, buffering=0)  # noqa: SIM115
        self._room, self._code = room, code

    def write(self, content: Any) -> int:
        if self._room[0] <= 0:
            raise OSError(self._code, os.strerror(self._code))
        count = min(len(content), 1000, self._room[0])
        self._room[0] -= count
        return int(self._file.write(content[:count]) or 0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
def test_a_conversion_goes_on_after_a_full_disk(case: Case, code: int) -> None:
    """What was written stays, and is gone on with when there is room."""
    for room in (500, 20_000, 20_000):
        with pytest.MonkeyPatch.context() as patch:
            bad = partial(BadFile, room=[room], code=code)
            patch.setattr(
                arrays, "open", lambda path, mode, bad=bad, **_: bad(path, mode), raising=False
            )
            with pytest.raises(OSError, match=os.strerror(code)):
                case.run()
        assert not case.out.exists()
        assert case.part.exists()
    case.run()
    assert_same_files(case.out, case.saved)


class ShortReads:
    """A file that reads a few bytes at a time, or ends early."""

    def __init__(self, path: Path, end: int) -> None:
        self._file, self._end = builtins.open(path, "rb", buffering=0), end  # noqa: SIM115

    def readinto(self, buffer: Any) -> int:
        room = min(len(buffer), 7 + len(buffer) // 3, max(0, self._end - self._file.tell()))
        return int(self._file.readinto(buffer[:room]) or 0)  # type: ignore[attr-defined]

    def __enter__(self) -> ShortReads:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_short_reads_are_gone_on_with(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        array_rows, "open", lambda path, *_, **__: ShortReads(path, 1 << 40), raising=False
    )
    case.run()
    assert_same_files(case.out, case.saved)


def test_a_file_that_ends_early_is_refused_and_nothing_is_left(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        array_rows, "open", lambda path, *_, **__: ShortReads(path, 2000), raising=False
    )
    with pytest.raises(ValueError, match=r"ends \d+ bytes early: the file was cut off"):
        case.run()
    assert not case.part.exists()


def test_other_inputs_are_refused(case: Case) -> None:
    killed(case, 60)
    with pytest.raises(ValueError, match=r"graph.feature_dtype is 'float16', and was 'int8'"):
        case._replace(spec=replace(case.spec, feature_dtype="float16")).run()
    changed = replace(case.spec.edges[0], deduplicate=True)
    with pytest.raises(ValueError, match=r"graph.edges\[0\].deduplicate is True, and was False"):
        case._replace(spec=replace(case.spec, edges=[changed])).run()
    x = Path(case.spec.nodes[0].attributes["x"].file)
    content, times = x.read_bytes(), x.stat().st_mtime_ns
    np.save(x, np.zeros((200, 6), np.float32))
    with pytest.raises(ValueError, match=r"x.npy.bytes is \d+, and was \d+\. Give the same files"):
        case.run()
    x.write_bytes(content)
    os.utime(x, ns=(times, times))
    of_edges = Path(case.spec.edges[0].attributes["edge_attr"].file)
    times = of_edges.stat().st_mtime_ns
    os.utime(of_edges, ns=(times, times + 1))
    with pytest.raises(ValueError, match=r"edge_attr.npy.modified_ns is \d+, and was \d+"):
        case.run()
    os.utime(of_edges, ns=(times, times))
    case.run()
    assert_same_files(case.out, case.saved)


def test_lists_of_other_lengths_differ() -> None:
    assert difference({"a": [1, 2]}, {"a": [1]}) == "a is [1, 2], and was [1]"
    assert difference({"a": [1, {"b": 2}]}, {"a": [1, {"b": 3}]}) == "a[1].b is 2, and was 3"


def test_memory_may_change_between_runs(case: Case) -> None:
    killed(case, 60)
    convert(case.spec, case.out, memory_bytes=3 * 10**9)
    assert_same_files(case.out, case.saved)


def test_a_damaged_journal_is_named(case: Case) -> None:
    killed(case, 60)
    state = case.part / "state.json"
    state.write_text(state.read_text()[:-5])
    with pytest.raises(ValueError, match=r"state.json is damaged.* or remove .*out.part"):
        case.run()


def test_arrays_that_were_cut_off_are_noticed(case: Case) -> None:
    killed(case, number_of_events(case) - 8)
    for path in (case.part / "graph").glob("*_x.bin"):
        os.truncate(path, 10)
    state = case.part / "state.json"
    state.write_text(state.read_text().replace('"finished": true', '"other": true'))
    with pytest.raises(pyg_direct.InvalidGraphFileError, match="has less than the"):
        case.run()


def test_the_room_on_the_disk_is_looked_at_first(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(case.out.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10_000))
    # 201 pointers of 8 bytes, twice; 3,000 edges of 24 bytes, and of 28 in their table.
    text = r"takes about 159\.2 kB .* where 10.0 kB are free: .* are missing"
    with pytest.raises(OSError, match=text):
        case.run()
    assert not case.part.exists()
    data = attributed()
    data.edge_weight, data.x = data.edge_weight.abs(), torch.rand(200, 100)
    spec = replace(as_npy(data, tmp_path / "wide"), weight_attr="edge_weight")
    with pytest.raises(OSError, match=r"takes about 228\.8 kB"):  # 24 bytes an edge and wide rows
        convert(spec, case.out)


def test_files_of_the_user_at_the_path_stay(case: Case) -> None:
    case.out.mkdir()
    (case.out / "mine").touch()
    with pytest.raises(FileExistsError, match="--overwrite"):
        case.run()
    with pytest.raises(FileExistsError, match="holds 'mine', which is not part of a saved graph"):
        convert(case.spec, case.out, overwrite=True)
    assert (case.out / "mine").exists()
    assert not case.part.exists()
    shutil.rmtree(case.out)
    pyg_direct.save(attributed(20, 30), case.out)
    convert(case.spec, case.out, overwrite=True)
    assert_same_files(case.out, case.saved)


@pytest.mark.parametrize("unfinished", [False, True])
def test_a_work_folder_with_other_files_is_refused(case: Case, unfinished: bool) -> None:
    if unfinished:
        killed(case, 60)
    for name in ("mine", "graph/notes.txt", "graph/sub/001_x.bin", "sort/mine"):
        mine = case.part / name
        mine.parent.mkdir(parents=True, exist_ok=True)
        mine.write_text("mine")
        found = "graph/sub" if "sub" in name else name
        with pytest.raises(FileExistsError, match=f"out.part.* holds '{found}', which no conv"):
            case.run()
        assert mine.read_text() == "mine"
        mine.unlink()
        if "sub" in name:
            mine.parent.rmdir()
    if unfinished:
        link = case.part / "graph" / "900_x.bin"  # as a conversion would call it
        link.symlink_to(case.saved)
        with pytest.raises(FileExistsError, match=r"out.part.* holds 'graph/900_x\.bin', which no"):
            case.run()
        link.unlink()
        case.run()
        assert_same_files(case.out, case.saved)
    else:
        with pytest.raises(FileExistsError, match="is not an unfinished conversion"):
            case.run()
        assert (case.part / "graph").exists()


def test_a_link_in_place_of_the_work_folder_is_refused(case: Case, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    case.part.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError, match="is not an unfinished conversion"):
        case.run()
    assert os.listdir(tmp_path / "elsewhere") == []


@pytest.mark.parametrize("wrong", [False, True])
def test_files_that_others_put_into_the_work_folder_stay(case: Case, wrong: bool) -> None:
    """During a conversion, which then ends, or ends with an error."""
    mine = [case.part / "mine", *[case.part / "graph" / "mine"] * wrong]

    def event() -> None:
        if case.graph_exists():
            for path in mine:
                path.write_text("mine")

    if wrong:
        x = case.spec.nodes[0].attributes["x"].file
        np.save(x, np.full((200, 5), np.nan, np.float32))
    with counted(event), pytest.raises(ValueError, match="finite") if wrong else nullcontext():
        case.run()
    assert all(path.read_text() == "mine" for path in mine)
    assert {*os.listdir(case.part)} == {"mine", *["graph"] * wrong}
    if not wrong:
        assert_same_files(case.out, case.saved)


def test_a_folder_that_appears_meanwhile_stays(case: Case) -> None:
    """The conversion is kept, and takes its place when that is free."""
    mine = case.out / "mine"

    def event() -> None:
        if case.graph_exists() and not case.out.exists():
            case.out.mkdir()
            mine.write_text("mine")

    with counted(event), pytest.raises(FileExistsError, match=r"exists\. Choose another path"):
        case.run()
    assert mine.read_text() == "mine"
    shutil.rmtree(case.out)
    case.run()
    assert_same_files(case.out, case.saved)


def test_two_processes_do_not_convert_to_one_place(case: Case) -> None:
    def event() -> None:
        with pytest.raises(BlockingIOError, match="Another process"):
            case.run()

    once = [event]
    with counted(lambda: once.pop()() if once and case.part.exists() else None):
        case.run()
    assert_same_files(case.out, case.saved)
