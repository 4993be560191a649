"""The CPU half without what only some systems offer: fork hooks, resource limits, affinity."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# What Windows lacks is taken away once torch and numba, which know Windows, are imported.
WITHOUT = """
import os, sys, torch_geometric.loader, numba
for name in ("register_at_fork", "sched_getaffinity", "sched_setaffinity", "fork"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = None
"""


def run(program: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", WITHOUT + program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_an_epoch_with_threads() -> None:
    text = run(
        "import torch\n"
        "from torch_geometric.data import Data\n"
        "from pyg_direct import NeighborLoader\n"
        "data = Data(x=torch.eye(9), edge_index=torch.randint(9, (2, 30)))\n"
        "loader = NeighborLoader(data, [2, 2], batch_size=3, num_workers=2)\n"
        "print([int(batch.n_id[0]) for batch in loader])\n"
    )
    assert text.strip() == "[0, 3, 6]"


def test_the_report() -> None:
    text = run("from pyg_direct import info\nprint(info.report(bandwidth=False))\n")
    cores = next(line for line in text.splitlines() if line.startswith("cores:"))
    assert int(cores.split()[-1]) >= 1


def test_the_check_catches_what_is_missing() -> None:
    with pytest.raises(AssertionError, match="resource"):
        run("import resource\n")


def test_affinity_is_refused_with_a_reason() -> None:
    text = run(
        "import warnings; warnings.simplefilter('ignore')\n"
        "import torch\n"
        "from torch_geometric.data import Data\n"
        "from pyg_direct import NeighborLoader\n"
        "data = Data(edge_index=torch.randint(9, (2, 30)), num_nodes=9)\n"
        "loader = NeighborLoader(data, [2], batch_size=3, num_workers=1)\n"
        "loader.loader_cores, loader._old_worker_init_fn = [0], None\n"
        "try:\n"
        "    loader._aff_init_fn(0)\n"
        "except NotImplementedError as error:\n"
        "    print(error)\n"
    )
    assert "sched_setaffinity is missing" in text
