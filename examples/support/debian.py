"""The package graph of Debian 12, which lies beside this file; data/README.md describes it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import to_undirected

FILE = Path(__file__).parents[1] / "data" / "debian_bookworm.npz"
RELATIONS = ("depends", "pre_depends", "recommends", "suggests")


def typed_packages() -> HeteroData:
    """Return packages, sources and maintainers, with the edges in the direction of the index."""
    data = HeteroData()
    with np.load(FILE) as arrays:
        package = data["package"]
        package.x = torch.from_numpy(arrays["word_counts"].astype(np.float32))
        package.y = _integers(arrays["section"])
        package.split = _integers(arrays["split"])
        package.installed_size_kb = torch.from_numpy(arrays["installed_size_kb"])
        package.arch_all = torch.from_numpy(arrays["arch_all"])
        package.num_nodes = len(package.y)
        data["source"].num_nodes = int(arrays["num_sources"])
        data["maintainer"].num_nodes = int(arrays["num_maintainers"])
        edge_index, weight = _dependencies(arrays), torch.from_numpy(arrays["edge_weight"]).float()
        for number, relation in enumerate(RELATIONS):
            chosen = torch.from_numpy(arrays["relation"] == number)
            store = data["package", relation, "package"]
            store.edge_index, store.edge_weight = edge_index[:, chosen], weight[chosen]
        source = _integers(arrays["source"])
        built_from = torch.stack([torch.arange(len(source)), source])
        data["package", "built_from", "source"].edge_index = built_from
        data["source", "maintained_by", "maintainer"].edge_index = _integers(arrays["maintained"])
    return data


def packages() -> Data:
    """Return the packages alone, undirected and with masks; `y` is the section."""
    with np.load(FILE) as arrays:
        section, split = _integers(arrays["section"]), _integers(arrays["split"])
        data = Data(
            x=torch.from_numpy(arrays["word_counts"].astype(np.float32)).log1p(),
            y=section,
            # A package is told by what it needs and by what needs it.
            edge_index=to_undirected(_dependencies(arrays), num_nodes=len(section)),
        )
    for value, key in enumerate(("train_mask", "val_mask", "test_mask")):
        data[key] = split == value
    return data


def _dependencies(arrays: np.lib.npyio.NpzFile) -> Tensor:
    """Return the edges, int64 [2, 319492], package by package."""
    count = arrays["dependencies_of"]
    row = np.repeat(np.arange(len(count)), count)
    return torch.stack([torch.from_numpy(row), _integers(arrays["needed"])])


def _integers(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array.astype(np.int64))
