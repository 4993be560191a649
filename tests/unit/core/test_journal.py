"""Conversions, partitions and inference that end at any write: resumed, refused, and removed."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from crashes import INPUTS, crashed, events_of
from torch_geometric.data import Data
from torch_geometric.nn import SAGEConv

import pyg_direct
from pyg_direct.core.journal import LOCK, WorkFolder, WorkKind
from pyg_direct.files.convert import convert as conversion
from pyg_direct.files.convert import edge_files, edge_table, node_files
from pyg_direct.files.convert.convert import convert
from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec

pytest.importorskip("pyarrow")
pytest.importorskip("duckdb")

GENERATOR = torch.Generator().manual_seed(0)
EDGES = torch.randint(30, (2, 90), generator=GENERATOR)
DATA = Data(x=torch.randn(30, 4, generator=GENERATOR), edge_index=EDGES, y=torch.arange(30))


class Net(torch.nn.Module):
    """Two layers, of which the first is kept."""

    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second, self.factor = SAGEConv(4, 8), SAGEConv(8, 3), factor

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.second((self.first(x, edge_index) * self.factor).relu(), edge_index)


class Kind(NamedTuple):
    """One that can be resumed: what it does below a folder, with an option that changes it."""

    work: Callable[[Path, int], object]
    folder: str
    result: str
    state: str
    moment: int  # of a crash when some steps are done


def convert_to(root: Path, option: int) -> None:
    raw = root / INPUTS
    if not raw.exists():
        raw.mkdir()
        for name in ("x", "edge_index"):
            np.save(raw / f"{name}.npy", DATA[name].numpy())
    node = NodeSpec(None, None, {"x": ArraySource(str(raw / "x.npy"))})
    edge = EdgeSpec(None, ArraySource(str(raw / "edge_index.npy")), deduplicate=option > 0)
    convert(GraphSpec([node], [edge]), root / "out", memory_bytes=10**9)


def partition_to(root: Path, option: int) -> None:
    pyg_direct.partition(DATA, root / "out", 2 + option, "hash")


def infer_to(root: Path, option: int) -> None:
    pyg_direct.inference(Net(1.0 + option), DATA, out=root / "out.npy", resume=True, num_workers=1)


KINDS = {
    "convert": Kind(convert_to, "out.part", "out", "state.json", 40),
    "partition": Kind(partition_to, ".out.unfinished", "out", "partition.json.unfinished", 40),
    "inference": Kind(infer_to, "out.npy.partial", "out.npy", "layers_of_inference", 15),
}


pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="what is synced is seen in /proc, and locks are those of Linux"
)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> Kind:
    return KINDS[request.param]


@pytest.fixture(autouse=True)
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many steps, and so many moments to crash at."""
    monkeypatch.setattr(edge_files, "STEP_EDGES", 20)
    monkeypatch.setattr(edge_table, "SORT_BYTES", 10**7)
    monkeypatch.setattr(node_files, "STEP_BYTES", 100)
    monkeypatch.setattr(conversion, "PIECE_BYTES", 10**6)


def contents(path: Path) -> dict[str, bytes]:
    """Return the files of a result, but for those that a crash at its very end leaves in it."""
    paths = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    names = (LOCK, KINDS["partition"].state)
    return {str(p.relative_to(path)): p.read_bytes() for p in paths if p.name not in names}


def check_resumed_at(kind: Kind, root: Path, moments: int) -> None:
    """Crash before some events, each time from the beginning, and see that all are resumed."""
    (root / "whole").mkdir()
    kind.work(root / "whole", 0)
    expected, again = contents(root / "whole" / kind.result), root / "again"
    again.mkdir()
    kind.work(again, 0)  # all inputs are there

    def clean() -> None:
        result = again / kind.result
        shutil.rmtree(result) if result.is_dir() else result.unlink()

    clean()
    events = events_of(again, lambda: kind.work(again, 0))
    assert events > 20
    for moment in range(0, events, max(1, events // moments)):
        clean()
        crashed(again, lambda: kind.work(again, 0), moment)
        if (again / kind.result).exists():
            assert contents(again / kind.result) == expected
        try:
            kind.work(again, 0)
        except FileExistsError:  # it had come to its end
            assert not (again / kind.folder).exists()
        assert contents(again / kind.result) == expected, moment
        assert not (again / kind.folder).exists()


def test_work_is_resumed_after_crashes(kind: Kind, tmp_path: Path) -> None:
    check_resumed_at(kind, tmp_path, 6)


@pytest.mark.slow
def test_work_is_resumed_after_a_crash_at_every_write(kind: Kind, tmp_path: Path) -> None:
    check_resumed_at(kind, tmp_path, 1000)


@pytest.mark.slow
def test_work_is_resumed_after_crash_upon_crash(kind: Kind, tmp_path: Path) -> None:
    """Each time it comes a few events further, or begins again."""
    (tmp_path / "whole").mkdir()
    kind.work(tmp_path / "whole", 0)
    again = tmp_path / "again"
    again.mkdir()
    for _ in range(20):
        try:
            crashed(again, lambda: kind.work(again, 0), 11)
        except AssertionError:
            break
    else:
        kind.work(again, 0)
    assert contents(again / kind.result) == contents(tmp_path / "whole" / kind.result)


def begun(kind: Kind, root: Path) -> Path:
    """Begin some work that crashes when some steps are done; return its folder."""
    crashed(root, lambda: kind.work(root, 0), kind.moment)
    assert json.loads((root / kind.folder / kind.state).read_text())["steps"]
    return root / kind.folder


def test_half_a_journal_is_named_with_the_way_out(kind: Kind, tmp_path: Path) -> None:
    folder = begun(kind, tmp_path)
    state = folder / kind.state
    text = state.read_text()
    for half in (text[: len(text) // 2], "", "[]", '{"version": 1}'):
        state.write_text(half)
        with pytest.raises(ValueError, match=rf"{kind.state} is damaged .* or remove .*{folder}"):
            kind.work(tmp_path, 0)
    state.write_text(text)
    kind.work(tmp_path, 0)
    assert not folder.exists()


OWN_NAMES = {".part": "graph/900_x.bin", "ished": "part_000/900_x.bin", "rtial": "result9.npy"}


@pytest.mark.parametrize("name", ["thesis.txt", "sub/001_x.bin", "link"])
def test_files_of_others_in_unfinished_work_are_named_and_stay(
    kind: Kind, tmp_path: Path, name: str
) -> None:
    folder = begun(kind, tmp_path)
    if name == "link":
        name = OWN_NAMES[kind.folder[-5:]]
        (folder / name).symlink_to(tmp_path / "elsewhere")
    mine = folder / name
    mine.parent.mkdir(exist_ok=True)
    if not mine.is_symlink():
        mine.write_text("mine")
    found = name.partition("/")[0] if "sub" in name else name
    for option in (0, 1):
        with pytest.raises((FileExistsError, ValueError), match=f"holds '{found}', which no "):
            kind.work(tmp_path, option)
    assert os.path.lexists(mine)
    shutil.rmtree(mine.parent) if "sub" in name else mine.unlink()
    kind.work(tmp_path, 0)
    assert not folder.exists()


def test_files_of_others_that_come_meanwhile_stay(kind: Kind, tmp_path: Path) -> None:
    """They stay where they are, or with the result."""
    put = []

    def write() -> None:
        folder = tmp_path / kind.folder
        if folder.is_dir() and not put:
            (folder / "thesis.txt").write_text("mine")
            put.append(True)

    kind.work(tmp_path, 0)
    result = tmp_path / kind.result
    shutil.rmtree(result) if result.is_dir() else result.unlink()
    with pytest.MonkeyPatch.context() as patch:
        fsync = os.fsync
        patch.setattr(os, "fsync", lambda handle: (write(), fsync(handle)))
        kind.work(tmp_path, 0)
    assert [path.read_text() for path in tmp_path.rglob("thesis.txt")] == ["mine"]


@pytest.mark.parametrize("name", ["convert", "partition"])
def test_other_work_is_refused_with_the_difference(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    folder = begun(kind, tmp_path)
    told = {"convert": r"deduplicate is True, and was False", "partition": "parts is 3, and was 2"}
    match = rf"unfinished {kind.work.__name__[:5]}.* of something else: .*{told[name]}.* remove "
    with pytest.raises(ValueError, match=match):
        kind.work(tmp_path, 1)
    assert (folder / kind.state).exists()
    kind.work(tmp_path, 0)


def test_a_second_process_is_refused(kind: Kind, tmp_path: Path) -> None:
    told = []

    def second() -> None:
        if not told and (tmp_path / kind.folder / kind.state).exists():
            told.append(True)
            with pytest.raises(BlockingIOError, match="Another process is at work in"):
                kind.work(tmp_path, 0)

    with pytest.MonkeyPatch.context() as patch:
        fsync = os.fsync
        patch.setattr(os, "fsync", lambda handle: (second(), fsync(handle)))
        kind.work(tmp_path, 0)
    assert told


def test_a_folder_that_is_removed_while_it_is_locked_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the lock's opening and its locking, another process ends, and removes the folder."""
    folder = WorkFolder(tmp_path / "folder", WorkKind("work", "state.json", "x"))
    lock: Any = pyg_direct.core.journal.lock_file
    monkeypatch.setattr(
        "pyg_direct.core.journal.lock_file",
        lambda handle: (lock(handle), (tmp_path / "folder" / LOCK).unlink()),
    )
    with pytest.raises(BlockingIOError, match="Another process"):
        folder.hold()
    monkeypatch.undo()
    folder.hold()
    folder.release()
