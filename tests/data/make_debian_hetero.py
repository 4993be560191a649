"""Write `debian_hetero.json`: a piece of a real heterogeneous graph, and what PyG makes of it.

Run it where torch_sparse is installed, from the repository's root:

    python tests/data/make_debian_hetero.py

Stored are the piece itself, 300 Debian packages with their sources and maintainers, and hashes
of every tensor of some batches of PyG's own NeighborLoader, of the piece and of the whole graph.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch_geometric.loader
import torch_geometric.sampler.utils
from torch import Tensor
from torch_geometric.data import HeteroData

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "support")]

import graphs  # noqa: E402
from data.make_expectations import digests  # noqa: E402

TARGET = HERE / "debian_hetero.json"
HOPS = [-1, -1]
SEED_TYPES = ("package", "source", "maintainer")
BATCH_SIZE, NUM_BATCHES = 12, 2
RANKS = slice(20, 320)  # of the packages, by number of relations


def by_name(data: HeteroData) -> HeteroData:
    """Return the same graph with its edge types sorted by name.

    torch_sparse visits edge types in that order and we in the order of the data, as pyg-lib does.
    """
    out = HeteroData()
    for name, store in data.node_items():
        out[name].update(store.to_dict())
    for key in sorted(data.edge_types):
        out[key].update(data[key].to_dict())
    return out


def whole_graph() -> HeteroData:
    """Return debian_hetero."""
    with tempfile.TemporaryDirectory() as work:
        return by_name(graphs.load_real_graph("debian_hetero", Path(work)))


def piece_of(data: HeteroData) -> HeteroData:
    """Return packages with many relations between them, with their sources and maintainers."""
    degree = torch.zeros(data["package"].num_nodes)
    for key in data.edge_types:
        if key[::2] == ("package", "package"):
            degree += torch.bincount(data[key].edge_index.view(-1), minlength=len(degree))
    chosen = degree.argsort(descending=True, stable=True)[RANKS].sort().values
    nodes = {"package": chosen}
    for key in (("package", "built_from", "source"), ("source", "maintained_by", "maintainer")):
        edges = data[key].edge_index
        nodes[key[2]] = edges[1, torch.isin(edges[0], nodes[key[0]])].unique()
    return data.subgraph(nodes)


def as_json(data: HeteroData) -> dict[str, Any]:
    """Return what `from_json` makes a graph of."""
    return {
        "nodes": {name: data[name].num_nodes for name in data.node_types},
        "y": data["package"].y.tolist(),
        "edges": [[*key, data[key].edge_index.tolist()] for key in data.edge_types],
    }


def from_json(stored: dict[str, Any]) -> HeteroData:
    """Return the stored piece."""
    data = HeteroData()
    for name, size in stored["nodes"].items():
        data[name].num_nodes = size
        data[name].number = torch.arange(size)
    data["package"].y = torch.tensor(stored["y"])
    for *key, edges in stored["edges"]:
        data[tuple(key)].edge_index = torch.tensor(edges, dtype=torch.int64).view(2, -1)
        data[tuple(key)].number = torch.arange(data[tuple(key)].edge_index.size(1))
    return data


def seeds_of(data: HeteroData, name: str) -> Tensor:
    """Return the seeds of one type: spread, and in no order."""
    return torch.arange(BATCH_SIZE * NUM_BATCHES) * 7919 % data[name].num_nodes


def arguments_for(data: HeteroData, name: str) -> dict[str, Any]:
    """Return the arguments of all loaders that are compared."""
    seeds = (name, seeds_of(data, name))
    return {"num_neighbors": HOPS, "input_nodes": seeds, "batch_size": BATCH_SIZE}


def main() -> None:
    sort = torch.sort
    torch_geometric.sampler.utils.index_sort = lambda x, *_, **__: sort(x, stable=True)
    whole = whole_graph()
    stored: dict[str, Any] = {"graph": as_json(piece_of(whole))}
    for label, data in (("piece", from_json(stored["graph"])), ("whole", whole)):
        stored[label] = {}
        for name in SEED_TYPES:
            loader = torch_geometric.loader.NeighborLoader(data, **arguments_for(data, name))
            stored[label][name] = [digests(batch) for batch in loader]
    TARGET.write_text(json.dumps(stored, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
