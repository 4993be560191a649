"""The real CuPy, as the extras install it, finds NVIDIA's compiler in wheels. No GPU needed."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

import pytest

NVRTC_MODULE = Path(__file__).parents[2] / "pyg_direct" / "ops" / "cuda" / "nvrtc.py"
# CuPy asks the driver which architecture to compile for, so the step below that is called here.
SCRIPT = f"""
import importlib.util, sys
from unittest import mock

spec = importlib.util.spec_from_file_location("nvrtc", {str(NVRTC_MODULE)!r})
nvrtc = importlib.util.module_from_spec(spec)
spec.loader.exec_module(nvrtc)
if len(sys.argv) > 1:
    nvrtc.preload_nvrtc(int(sys.argv[1]))
import cupy
import cupy.cuda.compiler as compiler

text = 'extern "C" __global__ void probe(int *out) {{ *out = 42; }}'
with mock.patch.object(compiler, "_get_arch", lambda: "80", create=True):
    code, _ = compiler._NVRTCProgram(text, "probe.cu").compile(("-std=c++17", "-arch=sm_80"))
assert len(code) > 100
print("compiled")
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the wheels are for Linux")
@pytest.mark.parametrize(
    ("major", "version", "finds_it_alone"),
    [(12, "13.6.*", False), (12, "14.*", True), (13, "13.6.*", False), (13, "14.*", True)],
)
def test_cupy_compiles_with_what_lies_in_wheels(
    tmp_path: Path, major: int, version: str, finds_it_alone: bool
) -> None:
    """As the extras `cuda12` and `cuda13` install CuPy for CUDA `major`, and NVIDIA's wheels."""
    venv.create(tmp_path / "env")
    python = str(tmp_path / "env" / "bin" / "python")
    suffix = "-cu12" if major == 12 else ""
    nvidia = [f"nvidia-cuda-{part}{suffix}=={major}.*" for part in ("nvrtc", "runtime")]
    wheels = [f"cupy-cuda{major}x=={version}", *nvidia]
    # This environment's pip, and no bytecode: both would take longer than what is tested.
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, *wheels], check=True)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [python, "-I", "-c", SCRIPT, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    preloaded = run(str(major))
    assert preloaded.stdout.strip() == "compiled", preloaded.stderr[-2000:]
    alone = run()
    if finds_it_alone:
        assert alone.stdout.strip() == "compiled", alone.stderr[-2000:]
    elif "compiled" in alone.stdout:
        pytest.skip("the system has a libnvrtc of its own")
    else:
        assert f"libnvrtc.so.{major}" in alone.stderr
