"""The CPU half without what only some systems offer: fork hooks, resource limits, affinity."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]

# What Windows lacks is taken away once torch and numba, which know Windows, are imported.
PROGRAM = """
import json, os, sys, warnings, torch, torch_geometric.loader, numba
for name in ("register_at_fork", "sched_getaffinity", "sched_setaffinity", "fork"):
    if hasattr(os, name):
        delattr(os, name)
sys.modules["resource"] = None
warnings.simplefilter("ignore")

def error_of(function):
    try:
        function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"

from torch_geometric.data import Data
from pyg_direct import NeighborLoader, info
data = Data(x=torch.eye(9), edge_index=torch.randint(9, (2, 30)))
loader = NeighborLoader(data, [2, 2], batch_size=3, num_workers=2)
out = {"epoch": [int(batch.n_id[0]) for batch in loader]}
out["report"] = info.report(bandwidth=False).splitlines()
out["resource"] = error_of(lambda: __import__("resource"))
loader.loader_cores, loader._old_worker_init_fn = [0], None
out["affinity"] = error_of(lambda: loader._aff_init_fn(0))
print(json.dumps(out))
"""


@pytest.fixture(scope="module")
def output() -> dict[str, object]:
    """Return what a program prints in a process without these parts of the system."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_modules_taken_away_cannot_be_imported(output) -> None:
    assert output["resource"].startswith("ModuleNotFoundError")


def test_an_epoch_with_threads(output) -> None:
    assert output["epoch"] == [0, 3, 6]


def test_the_report_names_the_cores(output) -> None:
    cores = next(line for line in output["report"] if line.startswith("cores:"))
    assert int(cores.split()[-1]) >= 1


def test_affinity_is_refused_with_a_reason(output) -> None:
    assert "NotImplementedError" in output["affinity"]
    assert "sched_setaffinity is missing" in output["affinity"]
