"""Files of a saved graph that change while it is open."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
import torch
from torch_geometric.data import Data

import pyg_direct


@pytest.mark.parametrize("how", ["written", "cut", "longer"])
@pytest.mark.parametrize("number", [-1, -2])
def test_a_file_that_changes_while_it_is_open_ends_in_words(
    tmp_path: Path, how: str, number: int
) -> None:
    data = Data(x=torch.randn(4000, 3), edge_index=torch.randint(4000, (2, 20000)))
    pyg_direct.save(data, tmp_path / "graph")
    opened = pyg_direct.open(tmp_path / "graph")
    loader = pyg_direct.NeighborLoader(opened, [2], batch_size=100)
    next(iter(loader))  # nothing is made ahead, which would read what is cut off
    # The largest files: of the edges, and of x.
    path = sorted((tmp_path / "graph").iterdir(), key=lambda path: path.stat().st_size)[number]
    with path.open("r+b") as file:
        if how == "written":
            file.write(bytes(8))
        else:
            file.truncate(path.stat().st_size + (-4096 if how == "cut" else 4096))
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 1))  # on a clock that is coarser than this test
    with pytest.raises(ValueError, match=f"{path.name} was written to or cut off after it was"):
        iter(loader)
    if how == "written":
        next(iter(pyg_direct.NeighborLoader(pyg_direct.open(tmp_path / "graph"), [2])))


@pytest.mark.parametrize("how", ["saved again", "deleted"])
def test_a_graph_that_another_one_replaced_stays_what_it_was(tmp_path: Path, how: str) -> None:
    data = Data(x=torch.randn(4000, 3), edge_index=torch.randint(4000, (2, 20000)))
    pyg_direct.save(data, tmp_path / "graph")
    opened = pyg_direct.open(tmp_path / "graph")
    loader = pyg_direct.NeighborLoader(opened, [2], batch_size=4000)
    if how == "saved again":
        other = Data(x=torch.zeros(10, 3), edge_index=data.edge_index % 10)
        pyg_direct.save(other, tmp_path / "graph", overwrite=True)
    else:
        shutil.rmtree(tmp_path / "graph")
    for batch in loader:
        assert torch.equal(batch.x, data.x[batch.n_id])
