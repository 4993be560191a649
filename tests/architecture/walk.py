"""Count how a batch, and the construction of a loader, walk through the files of the package.

    python tests/architecture/walk.py

For two loaders and the third batch of the second: calls of functions of the package, files in which
they stand, and returns. A stay is a run of calls in one file; returns are stays less files, so none
are left if each file is visited once.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch_geometric.data import Data

from pyg_direct import NeighborLoader

PACKAGE = str(Path(__file__).parents[2] / "pyg_direct")


class Walk(NamedTuple):
    """Calls, files and returns."""

    calls: int
    files: int
    returns: int


def walk(action: Callable[[], Any]) -> tuple[Walk, Any]:
    """Return how an action walks through the package, and its result."""
    visited: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            visited.append(frame.f_code.co_filename)

    gc.collect()  # what others have left must not be finalized within
    gc.disable()
    sys.setprofile(note)
    try:
        result = action()
    finally:
        sys.setprofile(None)
        gc.enable()
    stays = bool(visited) + sum(one != other for one, other in pairwise(visited))
    return Walk(len(visited), len(set(visited)), stays - len(set(visited))), result


def main() -> None:
    """Print the walks of a loader and of a batch."""
    generator = torch.Generator().manual_seed(0)
    data = Data(
        x=torch.randn(2000, 16, generator=generator),
        y=torch.randint(5, (2000,), generator=generator),
        edge_index=torch.randint(2000, (2, 20_000), generator=generator),
    )

    def build() -> NeighborLoader:
        return NeighborLoader(data, [10, 5], batch_size=64, shuffle=True, seed=0)

    first, loader = walk(build)
    second, loader = walk(build)
    batches = iter(loader)
    for _ in range(2):
        next(batches)
    batch, _ = walk(lambda: next(batches))
    for name, found in (("first loader", first), ("second loader", second), ("batch", batch)):
        print(f"{name:<14}{found.calls:>5} calls{found.files:>5} files{found.returns:>5} returns")


if __name__ == "__main__":
    main()
