"""`pyg-direct info --compile`: afterwards no loader waits for a kernel to be compiled."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

import pyg_direct
from pyg_direct.tools import compiling, info

ROOT = Path(__file__).parents[3]

# Compiled when they are needed: for graphs of billions of edges, files larger than memory, weights
# whose sums overflow, and `Backend.reduce`, which no loader or model calls.
LATER = {
    "alias.rescale",
    "counting_sort.fill_buckets",
    "counting_sort.sort_buckets",
    "gather.pages_of_rows",
    "gather.request_pages",
    "aggregate.reduce_rows",
}

MISSING = """
import importlib, pkgutil
import pyg_direct.kernels
from pyg_direct.tools.info import main
main(["--compile", "--no-bandwidth"])
for found in pkgutil.iter_modules(pyg_direct.kernels.__path__):
    module = importlib.import_module(f"pyg_direct.kernels.{found.name}")
    for name, kernel in vars(module).items():
        if getattr(getattr(kernel, "py_func", None), "__module__", None) == module.__name__:
            if not kernel.overloads and "inline" not in kernel.targetoptions:
                print(f"missing: {found.name}.{name}")
"""

# Written as a user would; other numbers of nodes, edges and features than those that were compiled.
PROGRAM = """
import torch
from torch_geometric.data import Data
from torch_geometric.nn import GraphSAGE
import pyg_direct
data = Data(
    x=torch.randn(300, 5), y=torch.arange(300), edge_index=torch.randint(300, (2, 2_000)),
    time=torch.arange(300), rating=torch.rand(2_000), train_mask=torch.rand(300) < 0.5,
)
options = dict(num_neighbors=[5, 2], batch_size=32)
for more in (
    {"input_nodes": data.train_mask, "shuffle": True, "num_workers": 2}, {"disjoint": True},
    {"weight_attr": "rating"}, {"time_attr": "time", "input_time": data.time},
):
    for batch in pyg_direct.NeighborLoader(data, **options, **more):
        pass
next(iter(pyg_direct.LinkNeighborLoader(data, **options, neg_sampling="binary")))
simple = data.coalesce()
for order in ("proximity", simple.y // 10):
    next(iter(pyg_direct.NeighborLoader(simple, **options, sampling="labor", order=order)))
next(iter(pyg_direct.ShaDowKHopSampler(data, 2, 3, batch_size=8)))
next(iter(pyg_direct.PageRankLoader(data, 3, batch_size=8)))
data.x = pyg_direct.quantize(data.x)
next(iter(pyg_direct.NeighborLoader(data, **options)))
from pyg_direct.tools import plan
for more in ("", " --sampling labor", " --ranks 2"):
    plan.main(f"--nodes 300 --edges 2000 --fanout 5,2 --batch-size 32{more}".split())
"""


def test_the_kernels_are_compiled_before_the_report(monkeypatch, capsys):
    done = []
    monkeypatch.setattr(compiling, "compile_kernels", lambda: done.append("compiled"))
    monkeypatch.setattr(info, "report", lambda bandwidth: f"report {done} {bandwidth}")
    info.main(["--no-bandwidth"])
    info.main(["--compile", "--no-bandwidth"])
    assert capsys.readouterr().out.splitlines() == ["report [] False", "report ['compiled'] False"]


@pytest.mark.slow
def test_nothing_is_compiled_afterwards(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}

    def run(code):
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=500,
            check=True,
        )

    compiling = run(MISSING)
    assert "Compiling" in compiling.stderr
    missing = [line for line in compiling.stdout.splitlines() if line.startswith("missing: ")]
    assert {line.removeprefix("missing: ") for line in missing} <= LATER
    assert "Compiling" not in run(PROGRAM).stderr


def test_kernels_of_cluster_loaders_are_compiled_without_metis(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    kinds = [type(loader).__name__ for loader in compiling._loaders(pyg_direct)]
    assert kinds.count("ClusterLoader") == 2


def test_walks_and_narrow_rows_of_every_kind_are_compiled() -> None:
    package = MagicMock()
    for _ in compiling._loaders(package):
        pass
    walks = {call.kwargs["p"] for call in package.Node2Vec.call_args_list}
    assert walks == {1.0, 2.0}  # a walk with p = q = 1 draws by a kernel of its own
    stored = [call.args[1] for call in package.quantize.call_args_list]
    calls = package.NeighborLoader.call_args_list
    decoded = [call.kwargs["feature_dtype"] for call in calls if "feature_dtype" in call.kwargs]
    every = itertools.product(compiling.NARROW, (torch.float32, torch.bfloat16))
    assert set(zip(stored, decoded, strict=True)) == {*every}
