"""JSON files in the user's folder for caches."""

from __future__ import annotations

import contextlib
import os
import resource
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyg_direct.ops.cuda.cache_file import (
    cache_file,
    choose_cupy_folder,
    keep_cupy_in_memory,
    read_json,
    write_json,
)


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


def test_an_unwritable_cache_folder_is_no_error(folder: Path) -> None:
    (folder / "pyg_direct").write_text("")
    assert not write_json("a.json", 1)
    assert read_json("a.json") is None


def test_an_empty_cache_variable_means_the_default_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Meanwhile nothing can be written to any file, not even what pytest says."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_keeps_no_part_of_a_file(folder: Path) -> None:
    with full_disk():
        written = write_json("a.json", 1)
    assert not written
    assert list((folder / "pyg_direct").iterdir()) == []


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch, folder: Path) -> pytest.MonkeyPatch:
    """A process that has said nothing of CuPy's cache; what is set meanwhile is taken back."""
    for name in ("CUPY_CACHE_DIR", "CUPY_CACHE_IN_MEMORY"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    return monkeypatch


def cupy_variables() -> tuple[str | None, str | None]:
    return os.environ.get("CUPY_CACHE_DIR"), os.environ.get("CUPY_CACHE_IN_MEMORY")


def test_the_folder_of_cupy_stays_where_it_can_be_written(
    variables: pytest.MonkeyPatch, folder: Path
) -> None:
    choose_cupy_folder()
    assert cupy_variables() == (None, None)
    variables.setenv("CUPY_CACHE_DIR", str(folder / "named"))
    choose_cupy_folder()
    assert cupy_variables() == (str(folder / "named"), None)


@pytest.mark.parametrize("named", ["", "/dev/null/kernels", "/proc/nowhere"])
def test_kernels_of_cupy_lie_beside_ours_where_its_own_folder_cannot_be_made(
    named: str, variables: pytest.MonkeyPatch, folder: Path
) -> None:
    variables.setenv("CUPY_CACHE_DIR", named)
    choose_cupy_folder()
    assert cupy_variables() == (str(folder / "pyg_direct" / "cupy"), None)


@pytest.mark.parametrize("home", ["/dev/null", "/proc/nowhere", "/etc/hostname"])
def test_cupy_keeps_nothing_where_no_folder_can_be_made(
    home: str, variables: pytest.MonkeyPatch
) -> None:
    variables.setenv("HOME", home)
    variables.delenv("XDG_CACHE_HOME")
    with pytest.warns(RuntimeWarning, match=r"CuPy cannot keep .*compiles them again.*CUPY_CACHE_"):
        choose_cupy_folder()
    named, in_memory = cupy_variables()
    assert in_memory == "1"
    assert named is not None
    assert os.path.isdir(named), "CuPy 14 makes it on import"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        choose_cupy_folder()


def test_cupy_keeps_nothing_on_a_full_disk(variables: pytest.MonkeyPatch, folder: Path) -> None:
    with pytest.warns(RuntimeWarning, match=r"CuPy cannot keep .*File too large"), full_disk():
        choose_cupy_folder()
    assert cupy_variables() == (None, "1")


def test_an_error_that_stays_with_kernels_in_memory_is_raised(
    variables: pytest.MonkeyPatch,
) -> None:
    problem = OSError(28, "No space left on device")
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        keep_cupy_in_memory(problem)
    with pytest.raises(OSError, match="No space left on device"):
        keep_cupy_in_memory(problem)
