"""Real graphs with `train_mask`, `val_mask` and `test_mask`, by name."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch_geometric.datasets
from torch_geometric.data import Data
from torch_geometric.utils import to_undirected

from .ogb_compat import ogb_files_readable
from .synthetic import random_split

DEFAULT_ROOT = Path("data")  # PyG and ogb download into it
DEBIAN_FILE = "debian_bookworm.npz"
DEBIAN_ROOT = Path(__file__).resolve().parents[2] / "shared" / "data" / "debian"

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
        root: the folder that holds it, or that it shall be downloaded to. For ``debian``: the
            folder of its file, or the one above.
        seed: of the random split, where the data set has no split of its own.
    """
    if name == "debian":
        return _debian(DEBIAN_ROOT if root is None else Path(root))
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
    if not raw.is_dir() or (raw.parent / "processed").is_dir():
        return make(str(folder), dataset.name)[0]
    # Raw files alone are somebody's collection, perhaps read-only. PyG would write beside them.
    with tempfile.TemporaryDirectory() as scratch:
        link = Path(scratch) / dataset.name / "raw"
        link.parent.mkdir()
        link.symlink_to(raw.resolve(), target_is_directory=True)
        return make(scratch, dataset.name)[0]


def _debian(root: Path) -> Data:
    """Packages of Debian 12 and their dependencies; the label is the section of the archive."""
    places = [root / DEBIAN_FILE, root / "debian" / DEBIAN_FILE]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"No {DEBIAN_FILE} in {root} or in its folder debian/. It is not downloadable: pass "
            f"--root with the folder that holds the file, or choose another data set."
        )
    with np.load(path) as arrays:
        x, y, edge_index, split = (arrays[key] for key in ("x", "y", "edge_index", "split"))
    data = Data(
        x=torch.from_numpy(x.astype(np.float32)).log1p(),  # counts of words
        y=torch.from_numpy(y.astype(np.int64)),
        # A package is told by what it needs and by what needs it.
        edge_index=to_undirected(torch.from_numpy(edge_index.astype(np.int64)), num_nodes=len(y)),
    )
    for value, key in enumerate(("train_mask", "val_mask", "test_mask")):
        data[key] = torch.from_numpy(split == value)
    return data


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
