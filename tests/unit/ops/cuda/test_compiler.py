"""What CuPy is asked to do, and errors that say what a GPU needs."""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from descriptors import filled

from pyg_direct.ops.cuda import compiler as compiling
from pyg_direct.ops.cuda import nvrtc
from pyg_direct.ops.cuda.compiler import require_cuda
from pyg_direct.ops.cuda.launch import BLOCK_THREADS, STANDARD, Library
from pyg_direct.ops.devices import backend_for

CUDA = torch.device("cuda", 0)


def _pretend(
    monkeypatch: pytest.MonkeyPatch,
    version: str | None = "12.8",
    available: bool = True,
    cupy: int | None = 12090,
) -> None:
    monkeypatch.setattr(torch.version, "cuda", version)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    module = None
    if cupy is not None:
        module = types.ModuleType("cupy")
        module.__version__ = "13.6.0"
        runtime = types.SimpleNamespace(runtimeGetVersion=lambda: cupy)
        module.cuda = types.SimpleNamespace(runtime=runtime)
    monkeypatch.setitem(sys.modules, "cupy", module)


@pytest.mark.parametrize(
    ("pretend", "message"),
    [
        ({"version": None}, r"built without\. .*pip install 'cupy-cuda12x>=13\.\d'"),
        ({"available": False}, r"needs an NVIDIA GPU and its driver, .*nvidia-smi.* CUDA 12\.8"),
        ({"cupy": None}, r"needs CuPy.*pip install 'cupy-cuda12x>=13\.\d'"),
        ({"cupy": None, "version": "13.0"}, r"needs CuPy.*pip install 'cupy-cuda13x>=13\.\d'"),
        (
            {"cupy": 12090, "version": "13.0"},
            r"CuPy 13\.6\.0 is for CUDA 12, .* CUDA 13\.0\. .*"
            r"pip uninstall -y cupy-cuda12x && pip install 'cupy-cuda13x>=13\.\d'",
        ),
        ({"cupy": 13000}, r"CuPy 13\.6\.0 is for CUDA 13, .* CUDA 12\.8\. .*'cupy-cuda12x>="),
    ],
)
def test_errors_say_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, pretend: dict, message: str
) -> None:
    _pretend(monkeypatch, **pretend)
    with pytest.raises(RuntimeError, match=message):
        require_cuda(CUDA)


class _FakeCupy:
    """Records what CuPy is asked to do."""

    __version__ = "13.6.0"

    def __init__(self, has_from_external: bool) -> None:
        self.log: list = []
        self.current = 1  # device of the thread
        log = self.log

        class Context:
            def __init__(self, *arguments: object) -> None:
                self.arguments = arguments
                self.attributes = {"MultiProcessorCount": 132}

            def __enter__(self) -> None:
                log.append(("enter", *self.arguments))

            def __exit__(self, *error: object) -> None:
                log.append(("leave", *self.arguments))

        class RawModule:
            def __init__(self, **arguments: object) -> None:
                log.append(("module", arguments))

            def get_function(self, name: str) -> object:
                return lambda *launch, **named: log.append(("launch", name, *launch, named))

        def from_external(stream: object) -> Context:
            return Context("stream", stream.__cuda_stream__())  # type: ignore[attr-defined]

        self.RawModule = RawModule
        self.cuda = types.SimpleNamespace(
            runtime=types.SimpleNamespace(
                runtimeGetVersion=lambda: 12090, getDevice=lambda: self.current
            ),
            Device=Context,
            Stream=types.SimpleNamespace(
                **{"from_external": from_external} if has_from_external else {}
            ),
            ExternalStream=lambda handle, index: Context("old stream", handle, index),
        )


@pytest.mark.parametrize("has_from_external", [True, False])
def test_cupy_gets_the_text_instances_arguments_and_stream(
    monkeypatch: pytest.MonkeyPatch, has_from_external: bool
) -> None:
    """The whole text, all instances, pointers and scalars of the right width, torch's stream."""
    _pretend(monkeypatch)
    cupy = _FakeCupy(has_from_external)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    current = types.SimpleNamespace(cuda_stream=4711)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: current)
    compiler = compiling.CupyCompiler(CUDA)
    assert compiler.processors == 132
    library = compiling.Library(compiler)
    types_ = {"I": "i32", "P": "i64", "kHashed": "true"}
    kernels = library.load("relabel.cu", **types_)
    (module,) = (entry[1] for entry in cupy.log if entry[0] == "module")
    assert "#include" not in module["code"]
    assert module["options"] == (
        STANDARD, f"-DBLOCK_THREADS={BLOCK_THREADS}", "-DINSTANCE_I=i32", "-DINSTANCE_P=i64",
        "-DINSTANCE_kHashed=true",
    )  # fmt: skip
    assert set(module) == {"code", "options"}  # CuPy's disk cache takes no name expressions
    assert library.load("relabel.cu", **types_) is kernels

    kernel = library.load("gather.cu", V="u32", kPlaced="false")["gather_rows"]
    kernel._device = kernels["mark_first"]._device = torch.device("cpu")
    del cupy.log[:]
    ids, table = torch.zeros(1, dtype=torch.int64), torch.zeros(64, dtype=torch.uint8)
    named = {"rows": 1, "end": 2, "row_bytes": 32, "lanes": 8, "line_mask": 0, "pieces": 1}
    none = ids[:0]
    kernel(3, table=table, index=ids, place=none, wrong=none, out=table.clone(), **named)
    stream = ("stream", (0, 4711)) if has_from_external else ("old stream", 4711, 0)
    assert cupy.log[0] == ("enter", 0)  # the thread's device is another one
    _, name, grid, block, arguments, given = cupy.log[1]
    assert (name, grid, block) == ("gather_rows", (3, 1, 1), (BLOCK_THREADS, 1, 1))
    assert given["stream"].arguments == stream
    assert arguments[0] == table.data_ptr()
    array, count, number = np.uint64, np.int64, np.int32
    widths = [array] * 3 + [count] * 2 + [array, count] + [number] * 3 + [array]
    assert [type(value) for value in arguments] == widths
    cupy.current = 0
    del cupy.log[:]
    descriptor = filled(kernels["mark_first"].descriptor("batch"))
    launch = kernels["mark_first"].bind(batch=descriptor, hop=2)
    launch(kernel.grid(1))
    ((what, *_, arguments, _),) = cupy.log
    assert what == "launch"
    assert arguments == (descriptor.placed.data_ptr(), 2)
    assert [type(value) for value in arguments] == [np.uint64, np.int32]
    for handle in (99, 4711):  # of the thread that launches, whatever it was before
        monkeypatch.setattr(current, "cuda_stream", handle)
        del cupy.log[:]
        launch(kernel.grid(1))
        stream = ("stream", (0, handle)) if has_from_external else ("old stream", handle, 0)
        assert cupy.log[0][-1]["stream"].arguments == stream


def test_kernels_that_cannot_be_kept_are_compiled_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """CuPy writes a file when it compiles, and fails where it cannot."""
    monkeypatch.setenv("CUPY_CACHE_IN_MEMORY", "")
    cupy = _FakeCupy(True)
    get_function = cupy.RawModule.get_function

    def needs_no_disk(module: object, name: str) -> object:
        if os.environ["CUPY_CACHE_IN_MEMORY"] != "1":
            raise OSError(28, "No space left on device")
        return get_function(module, name)

    monkeypatch.setattr(cupy.RawModule, "get_function", needs_no_disk)
    monkeypatch.setattr(compiling, "require_cuda", lambda device: cupy)
    library = Library(compiling.CupyCompiler(CUDA))
    with pytest.warns(RuntimeWarning, match="CuPy cannot keep .*No space left on device"):
        library.load("gather.cu", V="u32", kPlaced="false")
    library.load("gather.cu", V="u64", kPlaced="false")  # with another warning the test would fail


@pytest.mark.parametrize("error", [PermissionError(13, "/.cupy"), ValueError("of any kind")])
def test_a_cupy_that_fails_on_import_is_named(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """So that a loader without device= goes on on the CPU, with a warning."""
    _pretend(monkeypatch)

    def fails(name: str, path: object, target: object = None) -> None:
        if name == "cupy":
            raise error

    monkeypatch.delitem(sys.modules, "cupy")
    finder = types.SimpleNamespace(find_spec=fails)
    monkeypatch.setattr(sys, "meta_path", [finder, *sys.meta_path])
    with pytest.raises(RuntimeError, match=f"needs CuPy, .*imported \\({type(error).__name__}"):
        require_cuda(CUDA)


def test_the_identity_of_kernels_covers_gpu_driver_compiler_and_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A certificate holds for one GPU, driver, compiler and package."""

    def identity(
        gpu: str = "H100", minor: int = 0, runtime: int = 12080, driver: str = "570.1",
        nvrtc: tuple[int, int] = (12, 8), version: str = "13.6.0", kernels: str = "f00",
    ) -> str:  # fmt: skip
        cupy = _FakeCupy(True)
        cupy.__version__ = version
        cupy.cuda.runtime.driverGetVersion = lambda: runtime
        cupy.cuda.nvrtc = types.SimpleNamespace(getVersion=lambda: nvrtc)
        monkeypatch.setitem(sys.modules, "cupy", cupy)
        properties = types.SimpleNamespace(name=gpu, major=9, minor=minor)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
        monkeypatch.setattr(compiling, "driver_version", lambda: driver)
        monkeypatch.setattr(compiling, "sources_digest", lambda: kernels)
        return compiling.CupyCompiler(CUDA).identity

    _pretend(monkeypatch)
    found = [
        identity(), identity(gpu="H200"), identity(minor=1), identity(runtime=13000),
        identity(driver="575.2"), identity(nvrtc=(12, 9)), identity(version="14.0.0"),
        identity(kernels="ba5"),
    ]  # fmt: skip
    assert len(set(found)) == len(found)


def test_nvrtc_is_loaded_from_the_first_wheel_that_has_a_whole_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found, opened = None, []

    def load(name: str, mode: int) -> None:
        opened.append(name)
        if "whole" not in name:
            raise OSError(name)

    monkeypatch.setattr(nvrtc.ctypes, "CDLL", load)
    monkeypatch.setattr(nvrtc.importlib.util, "find_spec", lambda name: found)
    assert nvrtc.preload_nvrtc(12) is None, "there is no wheel"
    for folder in ("broken", "whole"):
        (tmp_path / folder / "lib").mkdir(parents=True)
        (tmp_path / folder / "lib" / "libnvrtc.so.12").touch()
    found = types.SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    whole = tmp_path / "whole" / "lib" / "libnvrtc.so.12"
    assert nvrtc.preload_nvrtc(12) == whole
    assert opened[-1] == str(whole)
    assert len(opened) == 1 + 3


def test_free_memory_is_that_of_the_driver_and_of_torchs_cache(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = {"mem_get_info": (7, 1000), "memory_reserved": 100, "memory_allocated": 60}
    for name, value in known.items():
        monkeypatch.setattr(torch.cuda, name, lambda device, value=value: value)
    monkeypatch.setattr(compiling, "require_cuda", lambda device: _FakeCupy(True))
    assert compiling.CupyCompiler(CUDA).free_bytes() == 7 + 40


def test_free_memory_beside_a_foreign_allocator_is_that_of_the_driver(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuses(device: torch.device) -> int:
        raise RuntimeError("CUDAPluggableAllocator does not yet support getDeviceStats.")

    for name in ("memory_reserved", "memory_allocated"):
        monkeypatch.setattr(torch.cuda, name, refuses)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (7, 1000))
    monkeypatch.setattr(torch.cuda, "get_allocator_backend", lambda: "pluggable")
    monkeypatch.setattr(compiling, "require_cuda", lambda device: _FakeCupy(True))
    assert compiling.CupyCompiler(CUDA).free_bytes() == 7


def test_a_missing_cuda_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch)
    assert require_cuda(CUDA) is sys.modules["cupy"]
    with pytest.raises(RuntimeError, match="'cuda:3' does not exist: there are 1"):
        require_cuda(torch.device("cuda", 3))


def test_a_backend_for_an_unusable_device_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    compiling.library_for.cache_clear()
    _pretend(monkeypatch, version=None)
    with pytest.raises(RuntimeError, match="built without"):
        backend_for(torch.device("cuda"))
    with pytest.raises(NotImplementedError, match="use 'cpu', 'cuda' or 'cuda:0'"):
        backend_for(torch.device("meta"))
