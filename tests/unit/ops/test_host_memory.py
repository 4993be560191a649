"""What the system says about memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyg_direct.ops import host_memory
from pyg_direct.ops.cuda.compiler import CupyRuntime
from pyg_direct.ops.host_memory import UNLIMITED, usable_bytes


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "meminfo").write_text("MemFree: 1 kB\nMemAvailable:   4000 kB\n")
    monkeypatch.setattr(host_memory, "MEMINFO", str(tmp_path / "meminfo"))
    monkeypatch.setattr(host_memory, "CGROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(host_memory, "CGROUP_ROOT", tmp_path / "fs")
    return tmp_path


def limit(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def test_memory_without_groups_is_that_of_the_machine(root: Path) -> None:
    assert usable_bytes() == 4000 << 10


def test_a_system_without_meminfo_is_unlimited(root: Path) -> None:
    (root / "meminfo").unlink()
    assert usable_bytes() == UNLIMITED


@pytest.mark.parametrize(
    ("own", "above", "expected"), [("max", "max", 4000 << 10), ("7", "max", 7), ("9", "5", 5)]
)
def test_the_smallest_limit_of_nested_groups_of_version_2_counts(
    root: Path, own: str, above: str, expected: int
) -> None:
    (root / "groups").write_text("1:cpu:/x\n0::/a/b:c\n")
    limit(root / "fs/a/b:c/memory.max", own)
    limit(root / "fs/a/memory.max", above)
    assert usable_bytes() == expected


def test_the_limit_of_a_group_of_version_1_counts(root: Path) -> None:
    (root / "groups").write_text("4:cpu,memory:/a\n3:cpuset:/\n0::/\n")
    limit(root / "fs/memory/a/memory.limit_in_bytes", "77\n")
    limit(root / "fs/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert usable_bytes() == 77


def test_a_hidden_group_has_the_limit_of_the_visible_root(root: Path) -> None:
    """Its own limit is that of the root which it sees."""
    (root / "groups").write_text("4:memory:/hidden/one\n")
    limit(root / "fs/memory/memory.limit_in_bytes", "88\n")
    assert usable_bytes() == 88


def test_memory_held_by_a_group_of_version_2_is_subtracted(root: Path) -> None:
    """But not its pages of files, which can be let go; pages of shared memory cannot."""
    (root / "groups").write_text("0::/a/b\n")
    for group, held, limit_ in (("a/b", "90", "max"), ("a", "500", "600")):
        limit(root / "fs" / group / "memory.max", limit_)
        limit(root / "fs" / group / "memory.current", held)
        stat = "anon 100\nfile 400\nshmem 50\ninactive_file 200\nactive_file 150\n"
        limit(root / "fs" / group / "memory.stat", stat)
    assert usable_bytes() == 600 - (500 - 350)


def test_memory_held_by_a_group_of_version_1_is_subtracted(root: Path) -> None:
    (root / "groups").write_text("4:memory:/a\n")
    limit(root / "fs/memory/a/memory.limit_in_bytes", "100\n")
    limit(root / "fs/memory/a/memory.usage_in_bytes", "130\n")
    stat = "inactive_file 1\nactive_file 1\ntotal_inactive_file 40\ntotal_active_file 5\n"
    limit(root / "fs/memory/a/memory.stat", stat)
    assert usable_bytes() == 100 - (130 - 45)
    limit(root / "fs/memory/a/memory.usage_in_bytes", "190\n")
    assert usable_bytes() == 0


def test_page_locked_memory_is_limited_as_the_group_is(root: Path) -> None:
    (root / "groups").write_text("0::/a\n")
    limit(root / "fs/a/memory.max", "70")
    assert CupyRuntime.available_bytes(None) == 70  # type: ignore[arg-type]
