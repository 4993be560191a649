"""Programs written for PyG's loaders on several GPUs run with the import swapped, and learn."""

from pathlib import Path
from typing import Any

import multi_gpu_programs as programs
import pytest
import torch
import torch.multiprocessing as mp

pytestmark = pytest.mark.slow


def run(program: Any, data: Any, folder: Path) -> dict[str, float]:
    """Return what the program has found on two ranks that are spawned, as in those programs."""
    mp.spawn(program, args=(2, data, folder), nprocs=2, join=True)
    found: dict[str, float] = torch.load(folder / "found.pt")
    return found


def test_the_program_for_nodes_learns_on_several_ranks(tmp_path: Path) -> None:
    found = run(programs.nodes, programs.node_graph(), tmp_path)
    assert found.keys() == {"train", "val", "all"}
    assert min(found.values()) > 0.7, found  # a quarter is chance


def test_the_program_for_links_learns_on_several_ranks(tmp_path: Path) -> None:
    found = run(programs.links, programs.link_graphs(), tmp_path)
    assert found["last"] > max(0.8, found["first"]), found  # a half is chance


def test_nodes_of_several_types(tmp_path: Path) -> None:
    found = run(programs.typed, programs.typed_graph(), tmp_path)
    assert found["val"] > 0.7, found
