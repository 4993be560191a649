"""Graphs as raw files, and what is expected of their conversion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data

from pyg_direct.files.convert.spec import EdgeSpec, GraphSpec, NodeSpec, Source


def attributed(nodes: int = 200, edges: int = 3000) -> Data:
    """Return a graph with attributes of all shapes, parallel edges and self-loops."""
    generator = torch.Generator().manual_seed(0)
    return Data(
        x=torch.randn(nodes, 5, generator=generator),
        y=torch.arange(nodes),
        edge_index=torch.randint(nodes, (2, edges), generator=generator),
        edge_attr=torch.randn(edges, 3, generator=generator),
        edge_weight=torch.randn(edges, generator=generator),
    )


def as_npy(data: Data, folder: Path) -> GraphSpec:
    """Write a graph to ``.npy`` files, and return what converts them."""
    folder.mkdir(exist_ok=True)
    sources = {}
    for name, value in data.to_dict().items():
        np.save(folder / f"{name}.npy", value.numpy())
        sources[name] = Source(str(folder / f"{name}.npy"))
    ends = sources.pop("edge_index")
    of_edges = {name: sources.pop(name) for name in [*sources] if name.startswith("edge_")}
    return GraphSpec([NodeSpec(None, None, sources)], [EdgeSpec(None, ends, of_edges)])


def contents(folder: Path) -> dict[str, bytes]:
    """Return all files of a directory."""
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def assert_same_files(one: Path, other: Path) -> None:
    """Compare two saved graphs bit for bit, headers included."""
    left, right = contents(one), contents(other)
    assert left.keys() == right.keys()
    for name in left:
        assert left[name] == right[name], name


def edge_list(data: Any) -> list[tuple[int, int]]:
    """Return (source, destination) of all edges, in their order."""
    source, target = (part.tolist() for part in data.edge_index.dense())
    return list(zip(source, target, strict=True))
