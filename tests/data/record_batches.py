"""Write `recorded_batches.json`: digests of our own batches, which no change may alter.

A test compares them with what both backends give. Run it from the root of the repository, and only
where batches are meant to change, which breaks the reproducibility of users' runs across versions:

    python tests/data/record_batches.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent), str(HERE.parent / "support")]

import graphs  # noqa: E402
from data.make_expectations import digest  # noqa: E402

import pyg_direct  # noqa: E402
from pyg_direct import LinkNeighborLoader, NeighborLoader  # noqa: E402

TARGET = HERE / "recorded_batches.json"
SEED = 20_240_229

NODES, EDGES = 150, 2_000
SIZES = {"paper": 120, "author": 60, "venue": 5}
RELATIONS = {
    ("author", "writes", "paper"): 700,
    ("paper", "cites", "paper"): 900,
    ("paper", "at", "venue"): 120,
    ("venue", "of", "paper"): 300,
}

WITH_TIME = {"time_attr": "time", "input_time": torch.arange(600, 600 + 4 * 20, 4)}
NODE_CASES: dict[str, dict[str, Any]] = {
    "uniform": {},
    "three hops": {"num_neighbors": [7, 3, 2]},
    "more than a warp": {"num_neighbors": [40, 2]},
    "all neighbours": {"num_neighbors": [-1, 4]},
    "no neighbours": {"num_neighbors": [0, 4]},
    "replace": {"replace": True},
    "disjoint": {"disjoint": True},
    "induced": {"subgraph_type": "induced"},
    "induced disjoint": {"subgraph_type": "induced", "disjoint": True},
    "bidirectional": {"subgraph_type": "bidirectional"},
    "weighted": {"weight_attr": "weight"},
    "weighted replace": {"weight_attr": "weight", "replace": True},
    "temporal": WITH_TIME,
    "temporal last": {**WITH_TIME, "temporal_strategy": "last"},
    "temporal replace": {**WITH_TIME, "replace": True},
    "temporal weighted": {**WITH_TIME, "weight_attr": "weight"},
    "temporal weighted last": {
        **WITH_TIME, "weight_attr": "weight", "temporal_strategy": "last", "replace": True,
    },
    "temporal induced": {**WITH_TIME, "subgraph_type": "induced"},
    "times of edges": {**WITH_TIME, "time_attr": "edge_time"},
    "shuffled, prefetched": {"shuffle": True, "num_workers": 2, "drop_last": True},
    "adaptive": {"sampling": "adaptive"},
}  # fmt: skip
LINK_CASES: dict[str, dict[str, Any]] = {
    "links": {},
    "binary negatives": {"neg_sampling": "binary"},
    "triplets": {"neg_sampling": {"mode": "triplet", "amount": 2}},
    "links disjoint": {"disjoint": True, "neg_sampling": "binary"},
    "links weighted": {"weight_attr": "weight", "neg_sampling": "binary"},
    "links temporal": {"time_attr": "time", "edge_label_time": torch.arange(600, 680, 4)},
}
FAMILY: dict[str, tuple[Any, ...]] = {  # with what each takes before `batch_size`
    "HGTLoader": ([8, 8], ("paper", torch.arange(0, 120, 6))),
    "ShaDowKHopSampler": (2, 3, torch.arange(0, 150, 7)),
    "GraphSAINTNodeSampler": (20, 3),
    "GraphSAINTEdgeSampler": (20, 3),
    "GraphSAINTRandomWalkSampler": (8, 2, 3),
}


def scattered(size: int, end: int, salt: int) -> Tensor:
    """Return int64 [size] in [0, end): the same on every machine and with every version."""
    words = np.arange(size, dtype=np.uint64) + np.uint64(1 + (salt << 32))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # splitmix64
        words = (words ^ (words >> np.uint64(shift))) * np.uint64(factor)
    return torch.from_numpy(((words ^ (words >> np.uint64(31))) % np.uint64(end)).astype(np.int64))


def set_edges(store: Any, num_src: int, num_dst: int, size: int, salt: int) -> None:
    """Give edges, with a hub, their numbers, times and weights to a store."""
    row, col = scattered(size, num_src, salt), scattered(size, num_dst, salt + 1)
    col[: size // 8] = num_dst // 2
    store.edge_index = torch.stack([row, col])
    store.edge_attr = torch.arange(size)
    store.edge_time = scattered(size, 1000, salt + 2)
    store.weight = scattered(size, 8, salt + 3).double() / 4  # an eighth of them 0


def set_nodes(store: Any, size: int, salt: int) -> None:
    """Give features, labels and times to a store."""
    store.x = scattered(size * 3, 1000, salt).view(size, 3).float()
    store.y = torch.arange(size)
    store.time = scattered(size, 1000, salt + 1)


def homogeneous() -> Data:
    data = Data()
    set_nodes(data, NODES, 1)
    set_edges(data, NODES, NODES, EDGES, 11)
    return data


def heterogeneous() -> HeteroData:
    data = HeteroData()
    for i, (name, size) in enumerate(SIZES.items()):
        set_nodes(data[name], size, 100 + 10 * i)
    for i, (key, size) in enumerate(RELATIONS.items()):
        set_edges(data[key], SIZES[key[0]], SIZES[key[2]], size, 200 + 10 * i)
    return data


def loader_of(case: str) -> Any:
    """Return the loader of a case, named "(homo|hetero) (nodes|links|family): name"."""
    kind, name = case.split(": ")
    graph, seeds_of = kind.split()
    data = homogeneous() if graph == "homo" else heterogeneous()
    common = {"batch_size": 8, "seed": SEED}
    if seeds_of == "family":
        size = {} if name.startswith("GraphSAINT") else {"batch_size": 8}
        return getattr(pyg_direct, name)(data, *FAMILY[name], **size, seed=SEED)
    if seeds_of == "nodes":
        seeds = scattered(20, 100, 7)
        inputs: Any = seeds if graph == "homo" else ("paper", seeds)
        own = {"num_neighbors": [4, 3], **NODE_CASES[name]}
        return NeighborLoader(data, input_nodes=inputs, **common, **own)
    key = ("author", "writes", "paper")
    links = (data if graph == "homo" else data[key]).edge_index[:, 300:320]
    inputs = links if graph == "homo" else (key, links)
    return LinkNeighborLoader(data, [4, 3], edge_label_index=inputs, **common, **LINK_CASES[name])


def cases() -> list[str]:
    """Return the names of all cases. (Types without a reverse edge type have no bidirectional.)"""
    named = {"nodes": NODE_CASES, "links": LINK_CASES}
    every = [f"{g} {k}: {name}" for g in ("homo", "hetero") for k in named for name in named[k]]
    return [case for case in every if case != "hetero nodes: bidirectional"]


def family_cases() -> list[str]:
    """Return the names of the cases of other loaders, which sample on the host."""
    return [f"{'hetero' if name == 'HGTLoader' else 'homo'} family: {name}" for name in FAMILY]


def recorded(case: str) -> str:
    """Return one digest of every field of every batch of a case."""
    lines = [
        f"{number} {name} {digest(value) if isinstance(value, Tensor) else value}"
        for number, batch in enumerate(loader_of(case))
        for name, value in graphs.fields(batch).items()
        if value is not None
    ]
    return digest(torch.tensor(list("\n".join(lines).encode())))


def main() -> None:
    found = {case: recorded(case) for case in cases() + family_cases()}
    TARGET.write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
