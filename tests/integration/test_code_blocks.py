"""Every Python block of the README and the guides runs: those of a page in order, and alone."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from graphs import citations
from torch_geometric.nn import GraphSAGE

from pyg_direct import NeighborLoader

ROOT = Path(__file__).parents[2]
BUILT = {"_build", "_generated"}  # by Sphinx
PAGES = ["README.md"] + sorted(
    str(path.relative_to(ROOT))
    for path in (ROOT / "docs").rglob("*.md")
    if not BUILT & set(path.parts)
)


def names_for(page: str, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what the reader of a page has already: on the README a script, on others nothing."""
    if page != "README.md":
        return {}
    torch.manual_seed(0)
    data = citations()
    package, train = types.ModuleType("their_project"), types.ModuleType("their_project.train")
    train.main = lambda: None  # type: ignore[attr-defined]
    package.train = train  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "their_project", package)
    monkeypatch.setitem(sys.modules, "their_project.train", train)
    return {
        "torch": torch, "F": F, "data": data, "model": GraphSAGE(16, 8, 3, 4).eval(),
        "rank": 0, "world_size": 2,
        "loader": NeighborLoader(data, [5, 5, 5], batch_size=50),
        "train_nodes": data.train_mask.nonzero().view(-1),
    }  # fmt: skip


def blocks_of(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```(python|diff)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [block if kind == "python" else changed(block) for kind, block in blocks]


def changed(diff: str) -> str:
    """Return the code behind a change."""
    return re.sub(
        r"^[+ ] ", "", re.sub(r"^- .*\n", "", diff, flags=re.MULTILINE), flags=re.MULTILINE
    )


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")
def test_blocks_of_each_page_run_in_order(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = names_for(page, monkeypatch)
    for number, block in enumerate(blocks_of(page)):
        exec(compile(block, f"{page}, block {number}", "exec"), names)


def test_there_are_blocks() -> None:
    assert sum(len(blocks_of(page)) for page in PAGES) >= 10
