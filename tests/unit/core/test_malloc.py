"""Memory that is freed stays with the process on request, and goes back on request."""

import ctypes
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import pyg_direct
import pyg_direct.models.training.accelerate
from pyg_direct.core import malloc

BLOCK_BYTES = 64 << 20
NO_HUGE_PAGES = 41  # PR_SET_THP_DISABLE of Linux

REPLACEMENT = """
#include <stddef.h>
extern "C" void *__libc_calloc(size_t, size_t);
extern "C" void *__libc_memalign(size_t, size_t);
extern "C" void *calloc(size_t n, size_t size) { return __libc_calloc(n, size); }
extern "C" int posix_memalign(void **out, size_t alignment, size_t size) {
    *out = __libc_memalign(alignment, size);
    return *out ? 0 : 12;
}
"""


@pytest.fixture(autouse=True)
def nothing_kept() -> None:
    """Undo what an example of the documentation asked for in this process."""
    pyg_direct.keep_memory(False)


def faults_of_a_block() -> int:
    """Return how many pages are new to the process where a large tensor is made and dropped."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.full((BLOCK_BYTES,), 1, dtype=torch.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def faults_in_the_end() -> int:
    """Return the faults of the last of some blocks: the first leave room between them."""
    return [faults_of_a_block() for _ in range(12)][-1]


def keep_and_give_back() -> None:
    ctypes.CDLL(None).prctl(NO_HUGE_PAGES, 1, 0, 0, 0)  # one fault of them is for many pages
    first = faults_of_a_block()
    # glibc maps it anew: that the package is imported changes nothing.
    assert faults_in_the_end() > first / 2
    pyg_direct.keep_memory()
    assert faults_in_the_end() < first / 100
    held = resident_bytes()
    pyg_direct.keep_memory(False)
    assert resident_bytes() < held - BLOCK_BYTES / 2  # a gap of the heap may still hold a block
    pyg_direct.keep_memory()
    assert faults_in_the_end() < first / 100


def test_memory_is_kept_and_given_back() -> None:
    """In a new process, whose heap has no blocks of other tests."""
    code = "import test_malloc; test_malloc.keep_and_give_back()"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_giving_back_changes_no_settings_that_were_not_made(monkeypatch) -> None:
    class Library:
        trimmed = 0

        def malloc_trim(self, pad):
            self.trimmed += 1

    library = Library()
    monkeypatch.setattr(malloc, "_glibc", lambda: library)
    pyg_direct.keep_memory(False)
    assert library.trimmed == 1


@pytest.mark.parametrize("keep", [1, None, "yes"])
def test_a_keep_that_is_no_bool_is_refused(keep) -> None:
    with pytest.raises(TypeError, match="keep must be True or False, got"):
        pyg_direct.keep_memory(keep)


def test_other_systems_are_refused(monkeypatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(RuntimeError, match="sets glibc's malloc, but on darwin there is another"):
        pyg_direct.keep_memory()


def test_another_c_library_is_refused(monkeypatch) -> None:
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda *args, **kwargs: object())
    with pytest.raises(RuntimeError, match="uses another C library, such as musl"):
        pyg_direct.keep_memory()


def test_settings_are_taken_back_once(monkeypatch) -> None:
    asked = []

    class Library:
        def mallopt(self, parameter, value):
            asked.append((parameter, value))
            return 1

        def malloc_trim(self, pad):
            asked.append("trimmed")

    monkeypatch.setattr(malloc, "_glibc", Library)
    pyg_direct.keep_memory()
    for _ in range(2):
        pyg_direct.keep_memory(False)
    keeping, giving_back = malloc.KEEPING.items(), malloc.GIVING_BACK.items()
    assert asked == [*keeping, *giving_back, "trimmed", "trimmed"]


def test_a_preloaded_allocator_is_refused(tmp_path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("needs g++")
    library = tmp_path / "allocator.so"
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(library)]
    subprocess.run(command, input=REPLACEMENT, text=True, check=True)
    done = subprocess.run(
        [sys.executable, "-c", "import pyg_direct; pyg_direct.keep_memory()"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
    )
    assert (
        f"another allocator has replaced it in this process (LD_PRELOAD={library})" in done.stderr
    )
    assert "RuntimeError: keep_memory() sets glibc's malloc" in done.stderr


def test_a_setting_that_is_refused_is_an_error(monkeypatch) -> None:
    class Library:
        def mallopt(self, parameter, value):
            return 0

    monkeypatch.setattr(malloc, "_glibc", Library)
    with pytest.raises(RuntimeError, match=r"mallopt\(-4, 0\) was refused"):
        pyg_direct.keep_memory()
