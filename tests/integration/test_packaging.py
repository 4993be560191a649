"""What a user gets who installs the wheel."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    return path


def test_the_wheel_holds_the_package_the_kernels_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    kernels = {f"pyg_direct/cuda/{path.name}" for path in (ROOT / "cuda").glob("*.cu*")}
    assert kernels
    assert kernels <= set(names)
    assert "pyg_direct/py.typed" in names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "pyg_direct").rglob("*.py")}
    assert sources <= set(names)
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pyg_direct"}


def test_the_sdist_holds_what_it_takes_to_build_and_test(tmp_path):
    command = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"} <= names
    for folder in ("cuda", "pyg_direct", "tests", "docs", "examples", "benchmarks"):
        ignored = {"__pycache__", "_build", "_generated"}
        files = (
            p for p in (ROOT / folder).rglob("*") if p.is_file() and not ignored & set(p.parts)
        )
        assert {str(file.relative_to(ROOT)) for file in files} <= names
    assert not any(part in name for part in ("_build/", "_generated/") for name in names)


@pytest.mark.slow
def test_the_wheel_works_from_anywhere(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path)
    program = (
        "import pyg_direct, torch\n"
        "from torch_geometric.data import Data\n"
        "from pyg_direct.ops.cuda import source\n"
        "data = Data(num_nodes=9, edge_index=torch.randint(9, (2, 30)))\n"
        "print(pyg_direct.__file__)\n"
        "print(sum(1 for _ in pyg_direct.NeighborLoader(data, [2], batch_size=3)))\n"
        "print(source.source_folder())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.splitlines()
    assert result == [
        str(tmp_path / "pyg_direct" / "__init__.py"),
        "3",
        str(tmp_path / "pyg_direct" / "cuda"),
    ]
