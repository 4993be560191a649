"""Loaders in a forked child of a process that has used OpenMP's threads and has loaders of its own.

In a process of its own: what goes wrong here hangs, and pytest's process must not be forked so.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from graphs import example_graph

from pyg_direct import NeighborLoader
from pyg_direct.loading import stages

SCRIPT = """
import os, signal, sys
import torch
from torch_geometric.data import Data
import pyg_direct

torch.set_num_threads(2)
nodes, edges = 100_000, 300_000
generator = torch.Generator().manual_seed(0)
data = Data(
    x=torch.randn(nodes, 4, generator=generator),
    edge_index=torch.randint(nodes, (2, edges), generator=generator),
    weight=torch.rand(edges, generator=generator),
    mask=torch.rand(nodes, generator=generator) < 0.9,
)
ids = torch.arange(nodes)

def nodes_of(**options):
    return pyg_direct.NeighborLoader(data, [4, 4], batch_size=2048, seed=1, shuffle=True, **options)

def links_of():
    return pyg_direct.LinkNeighborLoader(
        data, [3], batch_size=40_000, edge_label_index=data.edge_index, neg_sampling="binary",
        seed=1,
    )

MAKERS = {
    "plain": lambda: nodes_of(input_nodes=ids),
    "mask": lambda: nodes_of(input_nodes=data.mask),
    "weighted": lambda: nodes_of(weight_attr="weight"),
    "producers": lambda: nodes_of(num_workers=2),
    "persistent": lambda: nodes_of(num_workers=2, persistent_workers=True),
    "links": links_of,
}

def batches(loader):
    return [(b.n_id.tolist(), b.edge_index.tolist()) for b, _ in zip(loader, range(2))]

kept = {name: make() for name, make in MAKERS.items()}
for name, loader in kept.items():
    list(loader) if name == "persistent" else batches(loader)
assert torch.randn(3_000_000).sum() != 0  # begins OpenMP's threads
child = os.fork()
if child == 0:
    signal.alarm(90)
for name, make in MAKERS.items():
    result = repr((batches(kept[name]), batches(make()), torch.get_num_threads()))
    with open(f"{sys.argv[1]}/{name}.{'child' if child == 0 else 'parent'}", "w") as file:
        file.write(result)
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0, "the child hung or failed"
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows cannot fork")
def test_a_child_gets_the_batches_of_its_parent(tmp_path: Path) -> None:
    """From loaders of its own, and from those of the parent, whose next epoch it begins."""
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path)],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    of_child, of_parent = (
        {path.stem: path.read_text() for path in tmp_path.glob(f"*.{who}")}
        for who in ("child", "parent")
    )
    assert run.returncode == 0, (sorted(of_child), run.stderr)
    assert len(of_child) == 6
    for name, batches in of_child.items():
        assert batches == of_parent[name], name
        assert batches.endswith(", 2)"), "the user's number of threads is what it was"


def test_one_thread_after_a_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    threads = torch.get_num_threads()
    seen = []

    @stages.serial_after_fork
    def look(depth: int) -> int:
        seen.append((torch.get_num_threads(), stages.torch_threads()))
        if depth == 0:
            raise KeyError
        return look(depth - 1)

    torch.set_num_threads(2)
    try:
        for is_child, found in ((False, (2, 2)), (True, (1, 2))):
            monkeypatch.setattr(stages, "FORKED", [True] * is_child)
            with pytest.raises(KeyError):
                look(1)
            assert seen == [found] * 2
            assert torch.get_num_threads() == 2
            seen.clear()
    finally:
        torch.set_num_threads(threads)


def test_every_entry_of_a_loader_has_one_thread_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also `filter_fn` by itself, of the sampler's output."""
    threads, seen = torch.get_num_threads(), []
    loader = NeighborLoader(example_graph(), [2], filter_per_worker=False)
    loader.transform = lambda batch: seen.append(torch.get_num_threads())
    torch.set_num_threads(2)
    try:
        monkeypatch.setattr(stages, "FORKED", [True])
        loader.filter_fn(loader.collate_fn([0]))
    finally:
        torch.set_num_threads(threads)
    assert seen == [1]
