"""Graphs as raw files, and what is expected of their conversion."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from pyg_direct.files.convert.spec import ArraySource, EdgeSpec, GraphSpec, NodeSpec


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
        sources[name] = ArraySource(str(folder / f"{name}.npy"))
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


def typed() -> HeteroData:
    """Return two node types and three edge types, all edges with an attribute."""
    generator = torch.Generator().manual_seed(0)
    data = HeteroData()
    data["paper"].x = torch.randn(90, 4, generator=generator)
    data["author"].num_nodes = 50
    data["author"].x = torch.randn(50, 2, generator=generator)
    for key, sizes in {
        ("author", "writes", "paper"): (50, 90),
        ("paper", "by", "author"): (90, 50),
        ("paper", "cites", "paper"): (90, 90),
    }.items():
        ends = [torch.randint(size, (400,), generator=generator) for size in sizes]
        data[key].edge_index = torch.stack(ends)
        data[key].year = torch.randint(2000, 2026, (400,), generator=generator)
    return data


def write_typed(data: HeteroData, folder: Path) -> Path:
    """Write a heterogeneous graph in several formats, and the JSON that says where it is."""
    nodes: dict[str, Any] = {}
    for node_type, of_nodes in data.node_items():
        attributes = {name: value for name, value in of_nodes.items() if name != "num_nodes"}
        for name, value in attributes.items():
            np.savez(folder / f"{node_type}_{name}.npz", **{node_type: value.numpy()})
        files = {name: f"{node_type}_{name}.npz" for name in attributes}
        given = {"num_nodes": of_nodes.num_nodes} if "num_nodes" in of_nodes else {}
        nodes[node_type] = {**given, "attributes": files}
    edges = []
    for i, (key, store) in enumerate(data.edge_items()):
        names = [name for name in store if name != "edge_index"]
        columns = [*store.edge_index.tolist(), store.year.tolist()]
        lines = (",".join(map(str, row)) for row in zip(*columns, strict=True))
        (folder / f"{i}.csv").write_text("\n".join(lines))
        attributes = {name: f"{i}_{name}.npy" for name in names}
        for name, file in attributes.items():
            np.save(folder / file, store[name].numpy())
        attributes["year"] = {"columns": [2]}  # of the file of the edges
        edges.append({"type": key, "file": f"{i}.csv", "attributes": attributes})
    (folder / "spec.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    return folder / "spec.json"
