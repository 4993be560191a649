"""Compiled kernels are kept where they can be, and their loss is said aloud."""

import gc
import os
import subprocess
import sys
import unittest
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba.core import caching

from pyg_direct.kernels import jit

PROGRAM = """
import torch
from torch_geometric.data import Data
from pyg_direct import NeighborLoader
data = Data(x=torch.zeros(10, 2), edge_index=torch.randint(10, (2, 30)))
next(iter(NeighborLoader(data, [2])))
from pyg_direct.kernels.gather import gather_tables as kernel
print(sum(kernel.stats.cache_hits.values()), sum(kernel.stats.cache_misses.values()))
import sys
import unittest
names = ["numba.np.arrayobj", "scipy.linalg", "pyg_direct.models.training.accelerate"]
print(*(name in sys.modules for name in names))
"""


def plus_one(x):
    return x + 1


def test_without_a_writable_folder_kernels_compile_and_a_warning_says_so(monkeypatch):
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.warns(RuntimeWarning, match="no writable folder.*NUMBA_CACHE_DIR"):
        compiled = jit.kernel(plus_one)
    assert compiled(2) == 3


def test_other_errors_of_numba_are_not_hidden(monkeypatch):
    def broken(**kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr(jit.numba, "njit", broken)
    with pytest.raises(RuntimeError, match="planted"):
        jit.kernel(plus_one)


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory):
    """The lines that a first process prints, its messages, and those of one with its cache."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path_factory.mktemp("kernels"))}
    command = [sys.executable, "-c", PROGRAM]
    runs = [
        subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    return [(run.stdout.splitlines(), run.stderr) for run in runs]


@pytest.mark.slow
def test_the_second_process_compiles_nothing_and_says_nothing(two_processes):
    (first, first_text), (second, second_text) = two_processes
    assert first[0] == "0 1"
    assert first_text.count("Compiling CPU kernels") == 1
    assert second[0] == "1 0"
    assert "Compiling" not in second_text


@pytest.mark.slow
def test_a_process_with_compiled_kernels_loads_nothing_of_the_compiler(two_processes):
    """Nor what has nothing to do with loading; else its first batch takes three times as long."""
    (first, _), (second, _) = two_processes
    assert first[1].startswith("True")
    assert second[1] == "False False False"


def compilation_of(module):
    function = SimpleNamespace(__module__=module)
    return SimpleNamespace(data={"dispatcher": SimpleNamespace(py_func=function)})


def test_no_garbage_is_collected_while_a_kernel_and_its_helpers_compile():
    event, enabled = compilation_of("pyg_direct.kernels.gather"), []
    compilation = jit._Compilation()
    start, end = compilation.on_start, compilation.on_end
    for step in (start, start, end, end):
        step(event)
        enabled.append(gc.isenabled())
    assert enabled == [False, False, False, True]
    compilation.on_start(compilation_of("somebody.else"))
    assert gc.isenabled(), "it is not ours"
    gc.disable()
    try:
        compilation.on_start(event)
        compilation.on_end(event)
        assert not gc.isenabled(), "the user had stopped it"
    finally:
        gc.enable()


def test_the_collector_runs_again_where_a_gpus_kernels_compile_meanwhile():
    """Of which another thread may begin before numba does, or end after it."""
    listener = jit._Compilation()
    listener.given = True
    event = compilation_of("pyg_direct.kernels.gather")
    with jit.COMPILING:
        listener.on_start(event)
        assert not gc.isenabled()
        listener.on_end(event)
        assert gc.isenabled()
    listener.on_start(event)
    with jit.COMPILING:
        listener.on_end(event)
        assert gc.isenabled()
    assert jit.COMPILING.state[-1] is None


def test_seconds_of_compiling_until_an_earlier_moment(monkeypatch):
    """As of a span of time that is added up after kernels of a later batch were compiled."""
    moments = iter([10.0, 12.0, 20.0, 23.0, 30.0])
    monkeypatch.setattr(jit, "perf_counter", lambda: next(moments))
    compiling = jit.Compiling()
    for _ in range(2):
        with compiling:
            pass
    assert [compiling.seconds(t) for t in (9.0, 11.0, 15.0, 21.0, 25.0)] == [0, 1, 2, 3, 5]
    compiling.__enter__()
    assert [compiling.seconds(t) for t in (15.0, 25.0, 31.0)] == [2, 5, 6]


def test_seconds_of_loading_a_kernel_are_told_apart_from_sampling(cache_folder):
    """Else the first epoch of a process says that sampling is the bottleneck."""

    def double(x):
        return 2 * x

    assert jit.kernel(double)(4) == 8
    before = jit.COMPILING.state[:2]
    loaded = jit.kernel(double)
    assert loaded(4) == 8
    assert sum(loaded.stats.cache_hits.values()) == 1
    past, seconds, _ = jit.COMPILING.state
    assert len(past) == len(before[0]) + 1
    assert seconds > before[1]


def test_a_function_of_no_module_compiles():
    """As one that a user makes by `exec`, while our listener hears of all that numba compiles."""
    names = {}
    exec("def double(x):\n    return 2 * x", names)
    names["double"].__module__ = None
    assert numba.njit(names["double"])(4) == 8


def test_a_light_kernel_makes_no_arrays(cache_folder):
    def make(n):
        return np.empty(n).size

    def make_light(n):  # another function: numba's cache does not know how one is compiled
        return np.empty(n).size

    assert jit.kernel(make)(3) == 3
    with pytest.raises(numba.errors.NumbaError, match=r"NRT|empty"):
        jit.light_kernel(make_light)(3)


def test_a_notice_of_our_kernels_alone():
    compilation, logs = jit._Compilation(), unittest.TestCase()

    def compiles(module):
        event = compilation_of(module)
        compilation.on_start(event)
        compilation.on_end(event)

    with logs.assertNoLogs():
        compiles("somebody.else")
    with logs.assertLogs("pyg_direct"):
        compiles("pyg_direct.kernels.gather")
    with logs.assertNoLogs():  # once is enough
        compiles("pyg_direct.kernels.sample")


@pytest.fixture
def cache_folder(tmp_path, monkeypatch):
    """A cache of its own, in which each kernel made anew is as in a new process."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(jit._Cache, "warned", False)
    return tmp_path


def hits_of(kernel):
    assert kernel(2) == 3
    return sum(kernel.stats.cache_hits.values())


@pytest.mark.parametrize("ending", ["nbi", "nbc"])
@pytest.mark.parametrize("left_bytes", [0, 40])
def test_a_truncated_cache_file_is_compiled_anew_and_replaced(cache_folder, ending, left_bytes):
    assert hits_of(jit.kernel(plus_one)) == 0
    assert hits_of(jit.kernel(plus_one)) == 1
    for file in cache_folder.rglob(f"*.{ending}"):
        file.write_bytes(file.read_bytes()[:left_bytes])
    with pytest.warns(RuntimeWarning, match="are compiled again.*NUMBA_CACHE_DIR"):
        assert hits_of(jit.kernel(plus_one)) == 0
    assert hits_of(jit.kernel(plus_one)) == 1


class Removed(NamedTuple):
    """A type of arguments that a later version of the package does not have."""

    value: int


class Renamed(NamedTuple):
    """What a later version has in its place."""

    value: int


def test_a_cache_of_an_earlier_version_is_replaced_without_a_warning(cache_folder, monkeypatch):
    def value_of(record):
        return record.value

    assert jit.kernel(value_of)(Removed(3)) == 3
    monkeypatch.delitem(globals(), "Removed")
    for hits in (0, 1):
        compiled = jit.kernel(value_of)
        assert compiled(Renamed(4)) == 4  # with a warning the test would fail
        assert sum(compiled.stats.cache_hits.values()) == hits


def test_machine_code_of_another_signature_is_not_taken(cache_folder):
    """Two processes that compile at once may give the same file to different signatures."""
    compiled = jit.kernel(plus_one)
    assert (compiled(2), compiled(2.5)) == (3, 3.5)
    whole, fraction = sorted(cache_folder.rglob("*.nbc"))
    fraction.write_bytes(whole.read_bytes())
    for hits in (0, 1):
        compiled = jit.kernel(plus_one)
        assert compiled(2.5) == 3.5
        assert sum(compiled.stats.cache_hits.values()) == hits
        assert hits_of(compiled) == hits + 1


def test_an_unwritable_cache_warns_and_the_kernel_runs(cache_folder, monkeypatch):
    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(caching.IndexDataCacheFile, "save", full)
    compiled = jit.kernel(plus_one)
    with pytest.warns(RuntimeWarning, match="No space left on device"):
        assert compiled(2) == 3
    assert compiled(2.0) == 3.0  # with another warning the test would fail


def test_a_helper_has_no_entry_and_no_file_and_its_entry_has(cache_folder):
    helper = jit.helper(plus_one)
    compiled = jit.entry(helper)
    assert hits_of(compiled) == 0
    assert [path.suffix for path in sorted(cache_folder.rglob("*.nb*"))] == [".nbc", ".nbi"]
    assert hits_of(jit.entry(helper)) == 1


def test_the_compiler_is_loaded_where_numba_hides_its_functions(cache_folder, monkeypatch):
    assert hits_of(jit.kernel(plus_one)) == 0
    monkeypatch.setattr(jit, "_add_runtime_symbols", lambda: False)
    assert hits_of(jit.kernel(plus_one)) == 1


def test_kept_machine_code_is_of_the_text_of_all_kernels(tmp_path: Path) -> None:
    """One kernel calls others, from other files: when these change, it has to be compiled anew."""
    for name in ("one.py", "other.py"):
        (tmp_path / name).write_text("x = 1", encoding="utf-8")
    stamps = [jit.source_stamp(tmp_path)]
    (tmp_path / "other.py").write_text("x = 12", encoding="utf-8")
    jit.source_stamp.cache_clear()
    stamps.append(jit.source_stamp(tmp_path))
    assert len(set(stamps)) == 2
    from pyg_direct.kernels.gather import gather_tables

    kept = gather_tables._cache._cache_file._source_stamp
    assert {name for name, _, _ in kept} >= {"gather.py", "jit.py", "philox.py"}


WITH_A_LATER_NUMBA = """
from numba.core import caching
caching.Cache._load = caching.Cache._load_overload
def load_overload(self, sig, context):
    context.refresh()
    return self._load(sig, context)
caching.Cache.load_overload = load_overload
del caching.Cache._load_overload
"""
SAMPLED = """
import torch
from torch_geometric.data import Data
from pyg_direct import NeighborLoader
draw = torch.Generator().manual_seed(0)
edges = torch.randint(90, (2, 900), generator=draw)
data = Data(x=torch.randn(90, 3, generator=draw), edge_index=edges)
batch = next(iter(NeighborLoader(data, [4, 3], batch_size=9, seed=1)))
print(batch.n_id.tolist(), batch.e_id.tolist(), batch.edge_index.tolist(), batch.x.sum().item())
"""


@pytest.mark.slow
def test_a_later_numba_uses_its_own_cache_and_gives_the_same_batches(tmp_path):
    """Its own cache serves: the first process writes it, the second one reads it."""
    found = []
    later = WITH_A_LATER_NUMBA + SAMPLED
    for folder, program in (("now", SAMPLED), ("later", later), ("later", later)):
        environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / folder)}
        command = [sys.executable, "-c", program]
        found.append(subprocess.check_output(command, env=environment, text=True))
    assert found[0] == found[1] == found[2]
    assert len(found[0]) > 200
