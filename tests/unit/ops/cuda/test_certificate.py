"""The check at the first use of a GPU: right devices pass, wrong ones are named and refused."""

from __future__ import annotations

import json
import unittest
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulator import EmulatedDevice, EmulatorError, emulated

from pyg_direct.ops import devices
from pyg_direct.ops.cpu.backend import CpuBackend
from pyg_direct.ops.cuda import certificate
from pyg_direct.ops.cuda import compiler as compiling
from pyg_direct.ops.cuda.backend import CudaBackend
from pyg_direct.ops.cuda.certificate import DIGESTS, SWITCH, check, digests
from pyg_direct.ops.cuda.pinning import PinningError
from pyg_direct.ops.cuda.source import FILES, read_source
from pyg_direct.tools import info
from pyg_direct.tools.doctor.facts import Machine, find_out


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(SWITCH, raising=False)
    monkeypatch.setattr(devices, "_checked", {})
    return tmp_path / "pyg_direct" / "certificates.json"


def test_the_cpu_backend_gives_the_digests_that_ship() -> None:
    expected = json.loads(DIGESTS.read_text())
    assert dict(digests(CpuBackend())) == expected
    assert dict(digests(CpuBackend(threads=3))) == expected
    assert len(set(expected.values())) == len(expected) == 15


def test_a_right_device_passes_once_and_for_all(cache: Path) -> None:
    with emulated() as backend:
        device = backend.library.compiler
        assert check(backend, device.identity) == "passed"
        launches = device.launches
        assert launches > 100
        assert json.loads(cache.read_text()) == [device.identity]
        assert check(backend, device.identity).startswith("passed before")
        assert device.launches == launches
        assert check(backend, "another driver") == "passed"
        assert json.loads(cache.read_text()) == [device.identity, "another driver"]


@pytest.mark.parametrize(
    ("planted", "message"),
    [
        (("round < 10", "round < 9"), r"does not give the batches that the CPU gives: uniform"),
        (("item_degree[item] = span.degree;", "item_degree;"), "failed a check .*unwritten memory"),
        (("(sizeof(V)) -\n", "(sizeof(V)) +\n"), r"CPU gives: gather float32 100 .*on the GPU"),
    ],
)
def test_a_wrong_device_is_refused(cache: Path, planted: tuple[str, str], message: str) -> None:
    assert any(planted[0] in read_source(file) for file in FILES), "nothing to replace"
    with emulated(planted=[planted]) as backend:
        with pytest.raises(RuntimeError, match=rf"(?s){message}.*{SWITCH}=0 skips"):
            check(backend, backend.library.compiler.identity)
        assert not cache.exists(), "it is checked again next time"


def test_a_device_that_cannot_read_host_memory_is_refused() -> None:
    with emulated() as backend:
        copy = backend.memory._registry.pinned_copy
        backend.memory._registry.pinned_copy = lambda array, name: copy(array, name).zero_()
        with pytest.raises(RuntimeError, match="graph and features on the host"):
            check(backend, "wrong values over the link")


def test_it_can_be_turned_off(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "0")
    with emulated(planted=[("round < 10", "round < 9")]) as backend:
        assert "turned off" in check(backend, "any")
        assert backend.library.compiler.launches == 0
    assert not cache.exists()


def test_a_file_with_something_else_is_as_none(cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text('{"a": 1}')
    with emulated() as backend:
        assert check(backend, "here") == "passed"
    assert json.loads(cache.read_text()) == ["here"]


def test_an_unwritable_folder_of_certificates_is_logged(cache: Path) -> None:
    cache.parent.write_text("a file where the folder should be")
    with emulated() as backend, unittest.TestCase().assertLogs("pyg_direct", "WARNING") as logs:
        assert check(backend, "here") == "passed"
    assert "certificates.json cannot be written" in logs.output[-1]
    assert "XDG_CACHE_HOME" in logs.output[-1]


def test_the_first_use_says_what_it_waits_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with emulated() as backend, unittest.TestCase().assertLogs("pyg_direct", "WARNING") as logs:
        for _ in range(2):
            check(backend, "here")
        monkeypatch.setenv(SWITCH, "0")
        check(backend, "there")
    (said,) = logs.output
    assert "Compiling GPU kernels and comparing batches of" in said


@pytest.fixture
def first_use(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """`self_check` over an emulated device; `planted` says what is wrong with it."""
    given: dict[str, Any] = {"planted": [], "opened": 0}
    with pytest.MonkeyPatch.context() as patch:

        def backend(device: torch.device, library: Any = None) -> CudaBackend:
            if library is not None:
                return CudaBackend(device, library)
            given["opened"] += 1
            context = emulated(planted=given["planted"])
            given.setdefault("open", []).append(context)
            return context.__enter__()

        patch.setattr("pyg_direct.ops.cuda.backend.CudaBackend", backend)
        patch.setattr(compiling, "require_cuda", lambda device: None)
        yield given
        for context in reversed(given.get("open", [])):
            context.__exit__(None, None, None)


def test_each_device_is_checked_once_in_a_process(first_use: dict[str, Any]) -> None:
    for _ in range(2):
        assert devices.self_check(torch.device("cuda", 0)) == "passed"
    assert first_use["opened"] == 1


class CupyError(Exception):
    """As CuPy's errors of the driver, with a `CUresult`."""

    status = 2


@pytest.mark.parametrize(
    ("place", "error", "raised"),
    [
        ("probe", torch.cuda.OutOfMemoryError("CUDA out of memory"), torch.cuda.OutOfMemoryError),
        ("probe", MemoryError(), MemoryError),
        ("probe", PinningError("Not enough memory can be page-locked"), RuntimeError),
        ("probe", RuntimeError("CUDA error: out of memory"), RuntimeError),
        ("probe", KeyboardInterrupt(), KeyboardInterrupt),
        ("sampled", RuntimeError("CUDA error: out of memory"), RuntimeError),
    ],
)
def test_a_failed_self_check_is_not_cached(
    first_use: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    place: str,
    error: BaseException,
    raised: type[BaseException],
) -> None:
    """There may be room, or a longer limit, when the next loader is made."""

    def fail(*_: Any) -> None:
        raise error

    with pytest.MonkeyPatch.context() as patch:
        if place == "probe":
            patch.setattr(EmulatedDevice, "probe", fail)
        else:
            patch.setattr(certificate, "sampled", fail)
        for _ in range(2):
            with pytest.raises(raised) as caught:
                devices.self_check(torch.device("cuda", 0))
            assert str(error) in str(caught.value)
    assert devices.self_check(torch.device("cuda", 0)) == "passed"


def test_out_of_memory_does_not_mean_the_cpu(
    first_use: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(devices, "cuda_available", lambda: True)
    monkeypatch.setattr(certificate, "sampled", fail)
    with pytest.raises(torch.cuda.OutOfMemoryError, match="CUDA out of memory"):
        devices.process_device([torch.device("cuda", 0)])


def test_by_default_a_wrong_device_means_the_cpu(
    first_use: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    first_use["planted"] = [("round < 10", "round < 9")]
    monkeypatch.setattr(devices, "cuda_available", lambda: True)
    for _ in range(2):  # the decision stands
        with pytest.warns(RuntimeWarning, match=r"made on the CPU: .*does not give the batches"):
            choice = devices.process_device([torch.device("cuda", 0)])
        assert choice.device == devices.HOST
        assert "does not give the batches" in choice.reason
    assert first_use["opened"] == 1


def test_a_device_that_was_asked_for_is_an_error(first_use: dict[str, Any]) -> None:
    first_use["planted"] = [("round < 10", "round < 9")]
    with pytest.raises(RuntimeError, match="does not give the batches"):
        devices.self_check(torch.device("cuda", 0))


def probed(monkeypatch: pytest.MonkeyPatch, error: Exception) -> compiling.CupyCompiler:
    """Return a compiler whose CuPy imports, and raises an error at the first kernel."""

    class Broken:
        __version__ = "13.6.0"

        class cuda:  # noqa: N801
            Device = staticmethod(lambda index: pytest.MonkeyPatch.context())

        @staticmethod
        def RawModule(**_: Any) -> None:  # noqa: N802
            raise error

    mine = object.__new__(compiling.CupyCompiler)
    mine._cupy, mine.device = Broken, torch.device("cuda", 0)
    mine._stream = lambda handle: pytest.MonkeyPatch.context()
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *a, device, **k: zeros(*a, **k))
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(
        torch.cuda, "current_stream", lambda index: type("S", (), {"cuda_stream": 0})()
    )
    return mine


def test_a_probe_without_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = probed(monkeypatch, CupyError("CUDA_ERROR_OUT_OF_MEMORY: out of memory"))
    with pytest.raises(torch.cuda.OutOfMemoryError, match=r"^CUDA_ERROR_OUT_OF_MEMORY"):
        mine.probe()


def test_a_compiler_that_cannot_compile_is_refused_with_a_remedy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As CuPy 13 without a libnvrtc that it finds."""
    missing = OSError("libnvrtc.so.12: cannot open shared object file")
    mine = probed(monkeypatch, missing)
    command = "pip install 'nvidia-cuda-nvrtc-cu12>=12.0' 'nvidia-cuda-runtime-cu12>=12.0'"
    with pytest.raises(RuntimeError, match=r"libnvrtc\.so\.12: cannot open") as caught:
        mine.probe()
    assert command in str(caught.value)


def test_an_emulated_error_is_no_runtime_error() -> None:
    """So that the check, and not the emulator, is what refuses a device above."""
    assert not issubclass(EmulatorError, RuntimeError)
    assert certificate.BATCHES > 1, "workspaces are used again"


@pytest.mark.parametrize("planted", [None, ("round < 10", "round < 9")])
def test_info_says_every_check(planted: tuple[str, str] | None) -> None:
    with emulated(planted=[planted] if planted else []) as backend:
        checks = list(certificate.results(backend))
    assert len(checks) == 30  # in both memories
    facts = replace(find_out(Machine(), bandwidth=False), checks=checks)
    rows = [value for _, value in info.check_rows(facts)]
    wrong = [row for row in rows if row.startswith("FAIL")]
    assert len(rows) == 30
    assert len(wrong) == (0 if planted is None else 14), "what is drawn, not what is gathered"
    assert ("FAIL: uniform (graph and features on the host)" in wrong) == (planted is not None)
    assert len(list(info.check_problems(facts))) == (planted is not None)


def test_tables_that_a_tool_keeps_alive_do_not_fail_the_check(monkeypatch) -> None:
    """Debuggers and sanitizers keep frames, and the tables of the first place with them."""
    kept, table = [], certificate._table
    monkeypatch.setattr(certificate, "_table", lambda *a: kept.append(table(*a)) or kept[-1])
    with emulated() as backend:
        assert all(passed for _, passed in certificate.results(backend))
    assert kept


def test_both_ways_of_small_hops_are_checked() -> None:
    """By one block in the memory of the GPU, and by many blocks in that of the host."""
    for file, memory in (("small.cu", "GPU"), ("sample.cu", "host")):
        call = f"step::sample_floyd(*batch, {SAMPLED_BY[file]}, lanes);"
        assert call in read_source(file)
        plant = (call, call.replace("sample_floyd", "sample_replace"))
        with emulated(planted=[plant]) as backend:
            wrong = [name for name, passed in certificate.results(backend) if not passed]
        assert f"uniform (graph and features on the {memory})" in wrong
        assert {name.rpartition(" ")[2] for name in wrong} == {f"{memory})"}


SAMPLED_BY = {"small.cu": "hop", "sample.cu": "hop_of(*batch, hop)"}
