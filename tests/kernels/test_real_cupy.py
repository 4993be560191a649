"""CuPy itself, without a driver: it compiles, names, keeps and packs what we give it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import nvrtc
import pytest
from covering import extremes
from wheels import wheel_folder

from pyg_direct.ops.cuda.launch import BLOCK_THREADS, compile_options, threads_of
from pyg_direct.ops.cuda.source import FILES, declarations, read_source

ROOT = Path(__file__).resolve().parents[2]
CHILD = ROOT / "tests" / "support" / "cupy_child.py"
# For CUDA 12 and 13 the oldest that the extras allow and the last of each major version.
VERSIONS = [(12, "13.3.0"), (12, "13.6.0"), (12, "14.0.1"), (12, "14.2.0"),
            (13, "13.6.0"), (13, "14.2.0")]  # fmt: skip
NEWEST = "14.2.0"  # compiles all files, the others two: nothing in CuPy depends on what is in them
FEW_FILES = ("sample.cu", "gather.cu")
IMPORTED = {"13": "fastrlock", "14": "cuda-pathfinder"}  # by CuPy, by its major version
NVRTC_13 = "nvidia-cuda-nvrtc==13.5.37"  # that of CUDA 12 is in the environment of the tests


@pytest.mark.slow
@pytest.mark.parametrize(("major", "version"), VERSIONS)
def test_cupy_without_a_driver(major: int, version: str, tmp_path: Path) -> None:
    folder = wheel_folder(f"cupy-cuda{major}x=={version}", IMPORTED[version[:2]])
    library = nvrtc.path()
    if major == 13:
        (library,) = nvrtc.libraries([wheel_folder(NVRTC_13) / "nvidia"])
    given = modules(FILES if version == NEWEST else FEW_FILES)
    found = run_child(folder, library, tmp_path, given)
    assert found["version"] == version
    assert found["missing"] == []
    # The first process compiles each module, and no later one does.
    assert found["compiled"] == [len(given), 0]
    assert run_child(folder, library, tmp_path, given)["compiled"] == [0, 0]
    # Why kernels have C linkage: code with name expressions is compiled again before 14.2.
    assert found["with_name_expressions"] == (1 if version == "14.2.0" else 2)
    # Scalars are packed, and the launch goes on to the driver that is not there.
    refused = found["packing"].pop("object")
    assert refused == "TypeError"
    assert set(found["packing"].values()) == {"CUDARuntimeError"}


def modules(files: Sequence[str]) -> list[dict[str, Any]]:
    """Return what CuPy is given to compile: of each file two instances that differ in every value.

    `test_machine_code.py` compiles the others.
    """
    return [
        {
            "name": f"{file} {types}",
            "text": (text := read_source(file)),
            "options": compile_options(text, types, threads_of(file, BLOCK_THREADS)),
            "kernels": [kernel.name for kernel in declarations(text)],
        }
        for file in files
        for types in extremes(read_source(file))
    ]


def run_child(
    folder: Path, library: Path, cache: Path, given: list[dict[str, Any]]
) -> dict[str, Any]:
    (cache / "modules.json").write_text(json.dumps(given))
    environment = {**os.environ, "CUPY_CACHE_DIR": str(cache / "kept")}
    command = [sys.executable, "-W", "ignore", str(CHILD), str(folder), str(library)]
    command.append(str(cache / "modules.json"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])
