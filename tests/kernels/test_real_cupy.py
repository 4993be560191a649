"""CuPy itself, without a driver: it compiles, names, keeps and packs what we give it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import nvrtc
import pytest
from wheels import wheel_folder

ROOT = Path(__file__).resolve().parents[2]
CHILD = ROOT / "tests" / "support" / "cupy_child.py"
# For CUDA 12 and 13 the oldest that the extras allow and the last of each major version.
VERSIONS = [(12, "13.3.0"), (12, "13.6.0"), (12, "14.0.1"), (12, "14.2.0"),
            (13, "13.6.0"), (13, "14.2.0")]  # fmt: skip
IMPORTED = {"13": "fastrlock", "14": "cuda-pathfinder"}  # by CuPy, by its major version
NVRTC_13 = "nvidia-cuda-nvrtc==13.5.37"  # that of CUDA 12 is in the environment of the tests


@pytest.mark.slow
@pytest.mark.timeout(1500)  # each compiles all modules once
@pytest.mark.parametrize(("major", "version"), VERSIONS)
def test_cupy_without_a_driver(major: int, version: str, tmp_path: Path) -> None:
    folder = wheel_folder(f"cupy-cuda{major}x=={version}", IMPORTED[version[:2]])
    library = nvrtc.path()
    if major == 13:
        (library,) = nvrtc.libraries([wheel_folder(NVRTC_13) / "nvidia"])
    found = run_child(folder, library, tmp_path)
    assert found["version"] == version
    assert found["modules"] > 40
    assert found["missing"] == []
    # The first process compiles each module, and no later one does.
    assert found["compiled"] == [found["modules"], 0]
    assert run_child(folder, library, tmp_path)["compiled"] == [0, 0]
    # Why kernels have C linkage: code with name expressions is compiled again before 14.2.
    assert found["with_name_expressions"] == (1 if version == "14.2.0" else 2)
    # Scalars are packed, and the launch goes on to the driver that is not there.
    refused = found["packing"].pop("object")
    assert refused == "TypeError"
    assert set(found["packing"].values()) == {"CUDARuntimeError"}


def run_child(folder: Path, library: Path, cache: Path) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "CUPY_CACHE_DIR": str(cache)}
    command = [sys.executable, "-W", "ignore", str(CHILD), str(folder), str(library)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
