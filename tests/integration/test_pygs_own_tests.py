"""The program that runs PyG's own tests with our classes, and those tests where there are any."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).parents[1] / "support" / "pyg_own_tests.py"
CHECKOUT = "PYG_DIRECT_PYG_TESTS"  # the folder test/ of a checkout of PyG
DATA = "PYG_DIRECT_DATA"  # holds planetoid/
FILES = [
    *(f"loader/test_{name}.py" for name in ("cluster", "graph_saint", "hgt_loader", "shadow")),
    "nn/models/test_node2vec.py",
]

SMALL = """
import pytest
import torch_geometric.typing
from torch_geometric.loader import ShaDowKHopSampler
from torch_geometric.testing import withPackage

@withPackage("torch_sparse")
@pytest.mark.skipif(True, reason="always")
def test_ours():
    assert ShaDowKHopSampler.__module__.startswith("pyg_direct")
    assert not torch_geometric.typing.WITH_TORCH_SPARSE

def test_wrong():
    assert 1 == 2

def test_given_up():
    pytest.skip("not lifted")
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "ignore", str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow  # a process that imports torch and PyG
def test_marks_are_lifted_and_failures_reported(tmp_path: Path) -> None:
    file = tmp_path / "test_small.py"
    file.write_text(SMALL)
    done = run(str(file))
    assert done.stdout.splitlines()[-3:] == [
        "passed   test_small.py::test_ours",
        "failed   test_small.py::test_wrong",
        "skipped  test_small.py::test_given_up",
    ], done.stderr
    assert done.returncode == 1
    file.write_text(SMALL.split("def test_wrong")[0])
    assert run(str(file)).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(
    CHECKOUT not in os.environ or DATA not in os.environ,
    reason=f"PyG's tests are not in its wheel: set {CHECKOUT} to test/ of a checkout, {DATA} to a "
    f"folder with planetoid/",
)
def test_pygs_tests_pass() -> None:
    folder = Path(os.environ[CHECKOUT])
    done = run(*(str(folder / file) for file in FILES), "--root", os.environ[DATA])
    assert done.returncode == 0, done.stdout + done.stderr
