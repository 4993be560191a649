"""JSON files in the user's folder for caches."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyg_direct.ops.cuda.cache_file import cache_file, read_json, write_json


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


def test_a_value_comes_back(folder: Path) -> None:
    assert read_json("a.json") is None
    for value in ({"GPU é": [1, 2.5]}, []):
        assert write_json("a.json", value)
        assert read_json("a.json") == value
    assert [path.name for path in (folder / "pyg_direct").iterdir()] == ["a.json"]


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_a_broken_file_is_as_none(content: bytes) -> None:
    assert write_json("a.json", 1)
    cache_file("a.json").write_bytes(content)
    assert read_json("a.json") is None
    assert write_json("a.json", 2)
    assert read_json("a.json") == 2


def test_a_write_that_breaks_off_leaves_what_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a process read half of what another one is writing."""
    write, seen = Path.write_text, []

    def half(self: Path, text: str, **options: str) -> None:
        write(self, text[: len(text) // 2], **options)
        seen.append(read_json("a.json"))
        raise OSError("the disk is full")

    assert write_json("a.json", [1])
    monkeypatch.setattr(Path, "write_text", half)
    assert not write_json("a.json", [1, 2, 3])
    assert [*seen, read_json("a.json")] == [[1], [1]]


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "pyg_direct").write_text("")
    assert not write_json("a.json", 1)
    assert read_json("a.json") is None


def test_a_folder_that_is_not_named(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable names none, as the specification of XDG has it."""
    monkeypatch.setattr(Path, "home", lambda: folder)
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_file("a.json") == folder / ".cache" / "pyg_direct" / "a.json"


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", home)
    assert not write_json("a.json", 1)
    assert read_json("a.json") is None
