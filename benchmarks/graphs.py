"""Heterogeneous and temporal graphs: real ones from a folder, and generated ones."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.transforms import ToUndirected

from examples.support.debian import typed_packages

FILES = {
    "collegemsg": Path("collegemsg", "collegemsg.npz"),
}
NUM_NODE_TYPES = 5
SKEW = 3  # popularity of a node ~ rank^(1/3 - 1), as in `power_law_graph`


def _path(name: str, root: Path | None) -> Path:
    path = None if root is None else root / FILES[name]
    if path is None or not path.is_file():
        raise FileNotFoundError(
            f"{name} is not in the repository, as its data states no licence: pass --root with the "
            f"folder that holds {FILES[name]}, made of SNAP's CollegeMsg."
        )
    return path


def debian_hetero() -> HeteroData:
    """Return the packages of Debian 12 with their sources and maintainers, in both directions.

    Sources and maintainers have no features: a constant, so that only their neighbours tell them
    apart. `y` of a package is its section.
    """
    data = typed_packages()
    for node_type in ("source", "maintainer"):
        data[node_type].x = torch.ones(data[node_type].num_nodes, 1)
    package = data["package"]
    package.x = package.x.log1p()  # counts of words
    for value, key in enumerate(("train_mask", "val_mask", "test_mask")):
        package[key] = package.split == value
    for store in (*data.node_stores, *data.edge_stores):
        for name in ("split", "installed_size_kb", "arch_all", "num_nodes", "edge_weight"):
            store.pop(name, None)
    return ToUndirected()(data)


def collegemsg(root: Path | None) -> Data:
    """Return messages between students, in the order of their `time`."""
    with np.load(_path("collegemsg", root)) as arrays:
        edge_index = torch.from_numpy(arrays["edge_index"].astype(np.int64))
        time = torch.from_numpy(arrays["edge_time"].astype(np.int64))
    return _in_order(edge_index, time, int(edge_index.max()) + 1)


def messages(num_nodes: int, num_edges: int) -> Data:
    """Return a toy in place of `collegemsg`."""
    generator = torch.Generator().manual_seed(0)
    edge_index = torch.randint(num_nodes, (2, num_edges), generator=generator)
    return _in_order(edge_index, torch.randperm(num_edges, generator=generator), num_nodes)


def _in_order(edge_index: Tensor, time: Tensor, num_nodes: int) -> Data:
    order = time.argsort(stable=True)
    return Data(edge_index=edge_index[:, order], time=time[order], num_nodes=num_nodes)


def many_types(num_nodes: int, num_edges: int, num_features: int) -> HeteroData:
    """Return a power-law graph with 5 node types and an edge type for each of the 20 pairs.

    Args:
        num_nodes: in total; all node types are equally large.
        num_edges: in total; all edge types are equally large.
        num_features: columns of `x`, float32.
    """
    rng = np.random.default_rng(0)
    names = [f"n{i}" for i in range(NUM_NODE_TYPES)]
    pairs = list(permutations(names, 2))
    nodes, edges = num_nodes // len(names), num_edges // len(pairs)
    data = HeteroData()
    node_of_rank = {}
    for name in names:
        data[name].x = torch.from_numpy(rng.random((nodes, num_features), dtype=np.float32)).clone()
        data[name].y = torch.arange(nodes) % 8
        data[name].train_mask = torch.from_numpy(rng.random(nodes) < 0.5)
        data[name].test_mask = ~data[name].train_mask
        node_of_rank[name] = rng.permutation(nodes)
    for source, target in pairs:
        ends = torch.empty((2, edges), dtype=torch.int64)
        for row, name in enumerate((source, target)):
            ranks = (nodes * rng.random(edges) ** SKEW).astype(np.int64)
            ends[row] = torch.from_numpy(node_of_rank[name][ranks])
        data[source, "to", target].edge_index = ends
    return data


def bare(data: Data | HeteroData) -> Data | HeteroData:
    """Return the graph without any attribute."""
    if isinstance(data, Data):
        return Data(edge_index=data.edge_index, num_nodes=data.num_nodes)
    result = HeteroData()
    for name in data.node_types:
        result[name].num_nodes = data[name].num_nodes
    for edge_type in data.edge_types:
        result[edge_type].edge_index = data[edge_type].edge_index
    return result
