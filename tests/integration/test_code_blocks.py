"""Every Python block of the README and the guides runs, in order, with the names it speaks of."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import citations
from torch_geometric.data import Data
from torch_geometric.data.lightning import LightningNodeData
from torch_geometric.nn import GraphConv, GraphSAGE

import pyg_direct

ROOT = Path(__file__).parents[2]
BUILT = {"_build", "_generated"}  # by Sphinx
PAGES = ["README.md"] + sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if not BUILT & set(path.parts)
)


class WeightedNet(torch.nn.Module):
    """A model whose forward takes weights as an option."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = GraphConv(16, 4)

    def forward(self, x: Any, edge_index: Any, edge_weight: Any = None) -> Any:
        return self.conv(x, edge_index, edge_weight)


def names_for(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the reader of a page is supposed to have already."""
    torch.manual_seed(0)
    data: Data = citations()
    model: torch.nn.Module = GraphSAGE(16, 8, 3, 4).eval()
    loader = pyg_direct.NeighborLoader(data, [5, 5, 5], batch_size=50)
    package, train = types.ModuleType("their_project"), types.ModuleType("their_project.train")
    train.main = lambda: None  # type: ignore[attr-defined]
    package.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_project", package)
    monkeypatch.setitem(sys.modules, "their_project.train", train)
    return {
        "data": data, "model": model, "loader": loader, "torch": torch, "pyg_direct": pyg_direct,
        "train_loader": loader, "val_loader": loader, "LightningNodeData": LightningNodeData,
        "train_nodes": data.train_mask.nonzero().view(-1), "rank": 0, "world_size": 2,
    }  # fmt: skip


def names_for_block(page: str, number: int, names: dict[str, Any]) -> dict[str, Any]:
    """Return what a block speaks of besides."""
    if (page, number) == ("docs/guides/inference.md", 1):
        data = names["data"].clone()
        data.edge_weight, data.features = torch.rand(data.num_edges), data.x
        return {**names, "data": data, "model": WeightedNet().eval()}
    return names


def blocks_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_blocks_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names = names_for(page, monkeypatch)
    for number, block in enumerate(blocks_of(page)):
        exec(
            compile(block, f"{page}, block {number}", "exec"), names_for_block(page, number, names)
        )


def test_there_are_blocks() -> None:
    assert sum(len(blocks_of(page)) for page in PAGES) >= 10
