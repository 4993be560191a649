"""Graphs without parallel edges, which LABOR needs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch_geometric.data import Data
from torch_geometric.utils import coalesce

from examples.support.datasets import load_dataset
from examples.support.synthetic import power_law_graph, random_split

INSIDE = 0.85  # share of the edges whose source is of the destination's group
GROUP = 250  # nodes
CLASSES = 10
# ogbn-products (Hu et al., "Open Graph Benchmark", 2020), and what a batch of three hops of 10
# visits of it around 1,000 seeds (Balin and Catalyurek, "Layer-neighbor sampling", 2023, table 2).
PRODUCTS_NODES, PRODUCTS_PAIRS = 2_449_029, 61_859_140
PRODUCTS_SEEDS, PRODUCTS_VISITED = 1000, 513_000
# Chosen so that a graph with as many pairs for a node is visited as much.
SPREAD = 1.0  # standard deviation of the logarithms of popularities
COMMUNITY, PRODUCTS_INSIDE = 500, 0.88
DRAWN = 1.25  # pairs that are drawn for one that stays: not a loop, nor drawn before
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


def products_like(num_nodes: int) -> Data:
    """Return a graph that is to ogbn-products what its number of nodes is to that one's.

    Nodes have log-normal popularities, and lie in communities. A pair of nodes, linked both ways,
    begins at a node by its popularity, and ends at one of the same community in most cases, else
    anywhere, by popularity again. No attributes; ids tell nothing of communities.
    """
    random = np.random.default_rng(0)
    popularity = np.exp(SPREAD * random.standard_normal(num_nodes))
    upto = np.concatenate([[0.0], popularity.cumsum()])

    def drawn(low: np.ndarray, high: np.ndarray) -> np.ndarray:
        at = low + random.random(len(low)) * (high - low)
        return np.minimum(upto.searchsorted(at, side="right") - 1, num_nodes - 1)

    wanted = round(num_nodes * PRODUCTS_PAIRS / PRODUCTS_NODES)
    count = round(DRAWN * wanted)
    one = drawn(np.zeros(count), np.full(count, upto[-1]))
    first = one // COMMUNITY * COMMUNITY
    inside = random.random(count) < PRODUCTS_INSIDE
    low = np.where(inside, upto[first], 0.0)
    high = np.where(inside, upto[np.minimum(first + COMMUNITY, num_nodes)], upto[-1])
    ends = np.stack([one, drawn(low, high)])
    ends.sort(axis=0)
    keys = np.unique(ends[0][ends[0] < ends[1]] * num_nodes + ends[1][ends[0] < ends[1]])
    keys = random.permutation(keys)[:wanted]
    place = random.permutation(num_nodes)
    pairs = torch.from_numpy(place[np.stack([keys // num_nodes, keys % num_nodes])])
    return Data(edge_index=torch.cat([pairs, pairs.flip(0)], 1), num_nodes=num_nodes)


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
