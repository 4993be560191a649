"""GraphBolt's loader, which has an API of its own; needs `dgl`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Data

NAME = "GraphBolt"


def installed() -> bool:
    """Whether DGL, which GraphBolt is a part of, can be imported."""
    return importlib.util.find_spec("dgl") is not None


def loader_of(
    data: Data, seeds: Tensor, fanout: Sequence[int], batch_size: int, num_workers: int
) -> Any:
    """Return a loader of GraphBolt's minibatches with features `x` and labels `y`, shuffled.

    Args:
        data: homogeneous.
        seeds: ids of nodes.
        fanout: as PyG's, from the seeds outwards.
        batch_size: seeds of a minibatch.
        num_workers: processes.
    """
    import dgl.graphbolt as gb

    row, col = data.edge_index
    order = torch.argsort(col, stable=True)
    indptr = torch.zeros(data.num_nodes + 1, dtype=torch.int64)
    torch.cumsum(torch.bincount(col, minlength=data.num_nodes), 0, out=indptr[1:])
    graph = gb.fused_csc_sampling_graph(indptr, row[order])
    features = gb.BasicFeatureStore({("node", None, "x"): gb.TorchBasedFeature(data.x)})
    items = gb.ItemSet((seeds, data.y[seeds]), names=("seeds", "labels"))
    pipe = gb.ItemSampler(items, batch_size=batch_size, shuffle=True)
    # GraphBolt's first entry is the layer that is furthest from the seeds.
    pipe = pipe.sample_neighbor(graph, list(reversed(fanout)))
    pipe = pipe.fetch_feature(features, node_feature_keys=["x"])
    return gb.DataLoader(pipe, num_workers=num_workers)


def size_of(minibatch: Any) -> tuple[int, int]:
    """Return the nodes and edges of a minibatch."""
    edges = sum(len(hop.sampled_csc.indices) for hop in minibatch.sampled_subgraphs)
    return len(minibatch.input_nodes), edges
