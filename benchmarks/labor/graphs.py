"""Graphs without parallel edges, which LABOR needs."""

from __future__ import annotations

from pathlib import Path

import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from examples.datasets import load_dataset
from examples.synthetic import power_law_graph, random_split

INSIDE = 0.85  # share of the edges whose source is of the destination's group
GROUP = 250  # nodes
CLASSES = 10
COLUMNS = 256  # of features, at most: more are projected at random


def community_graph(num_nodes: int, num_edges: int, num_features: int) -> Data:
    """Return a graph of groups of nodes, most of whose edges are among themselves.

    A group has one of ten labels, and so have its nodes, of which a tenth has any. `x` tells a
    node's label too weakly for a model without neighbours.
    """
    generator = torch.Generator().manual_seed(0)
    destination = torch.randint(num_nodes, (num_edges,), generator=generator)
    near = destination // GROUP * GROUP + torch.randint(GROUP, (num_edges,), generator=generator)
    far = torch.randint(num_nodes, (num_edges,), generator=generator)
    inside = torch.rand(num_edges, generator=generator) < INSIDE
    source = torch.where(inside, near.clamp(max=num_nodes - 1), far)
    edge_index = coalesce(torch.stack([source, destination]), num_nodes=num_nodes)
    group = torch.arange(num_nodes) // GROUP
    y = torch.randint(CLASSES, (int(group.max()) + 1,), generator=generator)[group]
    other = torch.rand(num_nodes, generator=generator) < 0.1
    y[other] = torch.randint(CLASSES, (int(other.sum()),), generator=generator)
    centroids = torch.randn(CLASSES, num_features, generator=generator) * 0.25
    x = centroids[y] + torch.randn(num_nodes, num_features, generator=generator)
    # So that ids tell nothing of groups.
    place = torch.randperm(num_nodes, generator=generator)
    data = Data(x=torch.empty_like(x), y=torch.empty_like(y), edge_index=place[edge_index])
    data.x[place], data.y[place] = x, y
    return random_split(data, 0.5, 0.25, 0)


def graph(name: str, root: Path | None, quick: bool) -> Data:
    """Return a graph by its name in the report."""
    nodes, edges = (2_000, 40_000) if quick else (200_000, 5_000_000)
    if name == "community":
        return community_graph(nodes, edges, 32)
    if name == "power law":
        data = power_law_graph(nodes, edges, 32, CLASSES)
    else:
        data = load_dataset(name, root)
        if "train_mask" not in data:
            data = random_split(data, 0.05, 0.65, 0)
    data.edge_index = coalesce(data.edge_index, num_nodes=data.num_nodes)
    for attribute in ("edge_attr", "edge_weight"):
        if attribute in data:
            del data[attribute]
    if data.x.size(1) > COLUMNS:  # training would take hours of products with words
        generator = torch.Generator().manual_seed(0)
        data.x = data.x @ torch.randn(data.x.size(1), COLUMNS, generator=generator)
    return data
