"""Write `full_batches.json`: what PyG's own NeighborLoader gives, for machines where it cannot run.

Run it where torch_sparse is installed, from the root of the repository:

    python tests/data/make_expectations.py

The small graph is stored with its complete batches. For the real graphs, where they are
at hand, hashes of every tensor of some batches are stored.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_geometric.loader
from torch import Tensor
from torch_geometric.data import Data, HeteroData

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE.parent / "support")]

import determined_pyg  # noqa: E402
import graphs  # noqa: E402

TARGET = HERE / "full_batches.json"
HOPS = [-1, -1]
BATCH_SIZE = 24
NUM_BATCHES = 3


def seeds_of(data: Data) -> Tensor:
    """Return the seeds that all comparisons on real graphs use: spread, and in no order."""
    return torch.arange(BATCH_SIZE * NUM_BATCHES) * 7919 % data.num_nodes


def digest(value: Tensor) -> str:
    """Return a hash of the dtype, the shape and the elements."""
    head = f"{value.dtype} {tuple(value.shape)}".encode()
    return hashlib.sha256(head + value.contiguous().numpy().tobytes()).hexdigest()[:24]


def digests(batch: Data | HeteroData) -> dict[str, Any]:
    """Return the hashes of the tensors of a batch, and its other numbers as they are."""
    return {
        key: digest(value) if isinstance(value, Tensor) else value
        for key, value in graphs.fields(batch).items()
        if not graphs.is_hop_count(key) and isinstance(value, (Tensor, int))
    }


def as_lists(batch: Data) -> dict[str, Any]:
    """Return everything in a batch, tensors as (dtype, lists)."""
    return {
        key: [str(value.dtype), value.tolist()] if isinstance(value, Tensor) else value
        for key, value in batch.to_dict().items()
        if key not in graphs.HOP_COUNTS
    }


def main() -> None:
    determined_pyg.determine(pytest.MonkeyPatch())
    loader = torch_geometric.loader.NeighborLoader
    example = graphs.example_graph()
    expected: dict[str, Any] = {
        "edge_index": example.edge_index.tolist(),
        "example": {
            kind: [as_lists(b) for b in loader(example, HOPS, batch_size=5, subgraph_type=kind)]
            for kind in ("directional", "bidirectional", "induced")
        },
        "real": {},
    }
    for name in graphs.REAL_GRAPHS if graphs.DATA_FOLDER.is_dir() else ("debian",):
        with tempfile.TemporaryDirectory() as work:
            data = graphs.load_real_graph(name, Path(work))
        batches = loader(data, HOPS, input_nodes=seeds_of(data), batch_size=BATCH_SIZE)
        expected["real"][name] = [digests(batch) for batch in batches]
    TARGET.write_text(json.dumps(expected, indent=None, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
