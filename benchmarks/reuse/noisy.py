"""A graph on which a model that learns long learns noise."""

from __future__ import annotations

import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from examples.support.synthetic import random_split

CLASSES, COLUMNS, DEGREE = 8, 32, 10
HOMOPHILY = 0.6  # share of the edges whose source is drawn from the nodes of the same class
BY_CHANCE = 0.25  # share of the nodes whose label is any
TELLING = 0.3  # how far features of classes lie apart, in parts of their own deviation


def noisy_graph(num_nodes: int) -> Data:
    """Return a graph with labels of which a quarter is chance, half of them for the training."""
    draw = torch.Generator().manual_seed(0)
    kind = torch.randint(CLASSES, (num_nodes,), generator=draw)
    destination = torch.arange(num_nodes).repeat_interleave(DEGREE)
    by_kind, sizes = kind.argsort(), torch.bincount(kind, minlength=CLASSES)
    first = sizes.cumsum(0) - sizes
    own = kind[destination]
    place = torch.rand(len(destination), generator=draw) * sizes[own]
    alike = by_kind[first[own] + place.long()]
    inside = torch.rand(len(destination), generator=draw) < HOMOPHILY
    source = torch.where(
        inside, alike, torch.randint(num_nodes, (len(destination),), generator=draw)
    )
    centroids = torch.randn(CLASSES, COLUMNS, generator=draw) * TELLING
    x = centroids[kind] + torch.randn(num_nodes, COLUMNS, generator=draw)
    any_label = torch.randint(CLASSES, (num_nodes,), generator=draw)
    y = torch.where(torch.rand(num_nodes, generator=draw) < BY_CHANCE, any_label, kind)
    edge_index = coalesce(torch.stack([source, destination]), num_nodes=num_nodes)
    return random_split(Data(x=x, y=y, edge_index=edge_index), 0.5, 0.25, 0)
