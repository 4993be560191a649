"""Real graphs with `train_mask`, `val_mask` and `test_mask`, by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch_geometric.datasets
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from .debian import packages
from .ogb_compat import ogb_files_readable
from .synthetic import random_split

DEFAULT_ROOT = Path("data")  # PyG and ogb download into it

TRAIN, VAL = 0.6, 0.2  # shares of the nodes, where a data set comes without a split


class PygDataset(NamedTuple):
    """Where PyG has a data set."""

    cls: str  # in torch_geometric.datasets
    folder: str  # under the root
    name: str


PYG_DATASETS = {
    "cora": PygDataset("Planetoid", "planetoid", "Cora"),
    "citeseer": PygDataset("Planetoid", "planetoid", "CiteSeer"),
    "pubmed": PygDataset("Planetoid", "planetoid", "PubMed"),
    "coauthor_cs": PygDataset("Coauthor", "coauthor", "CS"),
    "coauthor_physics": PygDataset("Coauthor", "coauthor", "Physics"),
    "amazon_photo": PygDataset("Amazon", "amazon", "Photo"),
    "amazon_computers": PygDataset("Amazon", "amazon", "Computers"),
    "dblp_citation": PygDataset("CitationFull", "citation_full", "dblp"),
}
OGB_DATASETS = ("ogbn-arxiv", "ogbn-products")
NAMES = (*PYG_DATASETS, "debian", *OGB_DATASETS)


def load_dataset(name: str, root: str | Path | None = None, seed: int = 0) -> Data:
    """Return the data set `name`, one of `NAMES`, undirected and with masks.

    Args:
        name: which one.
        root: the folder that holds it, or that it shall be downloaded to; ``debian`` lies here.
        seed: of the random split, where the data set has no split of its own.
    """
    if name == "debian":
        return packages()
    folder = DEFAULT_ROOT if root is None else Path(root)
    if name in OGB_DATASETS:
        return _ogb(name, folder)
    if name not in PYG_DATASETS:
        raise ValueError(f"No data set {name!r}. There are: {', '.join(NAMES)}.")
    data = _pyg(PYG_DATASETS[name], folder)
    return data if "train_mask" in data else random_split(data, TRAIN, VAL, seed)


def _pyg(dataset: PygDataset, root: Path) -> Data:
    make: Any = getattr(torch_geometric.datasets, dataset.cls)
    folder = root / dataset.folder
    raw = folder / dataset.name / "raw"
    try:
        if not raw.is_dir() or (raw.parent / "processed").is_dir():
            return make(str(folder), dataset.name)[0]
        # Raw files alone are somebody's collection, perhaps read-only. PyG would write beside them.
        with tempfile.TemporaryDirectory() as scratch:
            link = Path(scratch) / dataset.name / "raw"
            link.parent.mkdir()
            link.symlink_to(raw.resolve(), target_is_directory=True)
            return make(scratch, dataset.name)[0]
    except OSError as error:  # of the network, as well
        raise OSError(
            f"{dataset.name} is not in {raw} and cannot be downloaded ({error}): put its raw files "
            f"there, or pass another folder (--root), which holds {dataset.folder}/."
        ) from error


def _ogb(name: str, root: Path) -> Data:
    try:
        from ogb.nodeproppred import PygNodePropPredDataset
    except ImportError as error:
        raise ImportError(f'{name} needs ogb: pip install "ogb>=1.3.6"') from error
    with ogb_files_readable():
        dataset = PygNodePropPredDataset(name, root=str(root))
    data = dataset[0]
    data.y = data.y.view(-1)
    if name == "ogbn-arxiv":
        data.edge_index = to_undirected(data.edge_index, num_nodes=data.num_nodes)
    split = dataset.get_idx_split()
    for key, nodes in (("train", "train"), ("val", "valid"), ("test", "test")):
        mask = torch.zeros(data.num_nodes, dtype=torch.bool)
        mask[split[nodes]] = True
        data[f"{key}_mask"] = mask
    return data
