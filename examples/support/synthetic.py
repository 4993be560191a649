"""Power-law graphs with learnable labels, made in seconds: the same for a seed on any machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch_geometric.data import Data

CHUNK = 1 << 21  # edges or feature values that are drawn at a time: a few tens of MB of scratch
TRAIN, VAL = 0.5, 0.25  # shares of the nodes; the rest is the test split

# One random stream for each thing that is drawn, so that nothing is correlated by accident. They
# begin at 1, as NumPy takes the seed [s, 0] for the same as s.
NODES, EDGES, CENTROIDS, FEATURES, SPLIT = range(1, 6)


def power_law_graph(
    num_nodes: int,
    num_edges: int,
    num_features: int = 32,
    num_classes: int = 8,
    *,
    skew: int = 3,
    homophily: float = 0.7,
    signal: float = 1.0,
    seed: int = 0,
) -> Data:
    """Make a directed graph whose labels a GNN can learn much better than an MLP.

    Node i of n in the order of popularity is an end point with density ~ i^(1/skew - 1), so both
    degrees follow a power law: exponent 3 for skew 2, 2.5 for skew 3. A node's class moves its
    features by `signal` standard deviations, too little to be told from one node alone; an edge
    leads from a node of the same class with probability `homophily` (else from any), so averages
    over neighbours tell it. Edges are in random order, and may be parallel.

    Args:
        num_nodes: at least `num_classes`.
        num_edges: drawn independently of each other.
        num_features: columns of `x`, float32.
        num_classes: labels in `y`, equally frequent.
        skew: 1 makes all nodes equally popular.
        homophily: in [0, 1].
        signal: distance of a class centroid from the origin; the noise has deviation 1 per column.
        seed: the same seed gives the same graph, on any number of threads.

    Returns:
        `x`, `y`, `edge_index`, `train_mask`, `val_mask` and `test_mask`.
    """
    if num_nodes < num_classes:
        raise ValueError(f"num_nodes={num_nodes} is fewer than num_classes={num_classes}.")
    rng = np.random.default_rng([seed, NODES])
    # Popularity rank -> node id. Rank r has class r % num_classes, so every class has its hubs.
    node_of_rank = rng.permutation(num_nodes)
    y = np.empty(num_nodes, np.int64)
    y[node_of_rank] = np.arange(num_nodes) % num_classes

    edge_index = torch.empty((2, num_edges), dtype=torch.int64)
    ends = edge_index.numpy()

    def draw_edges(first: int, last: int) -> None:
        chunk = np.random.default_rng([seed, EDGES, first // CHUNK])
        col = _ranks(chunk, last - first, num_nodes, skew)
        row = _ranks(chunk, last - first, num_nodes, skew)
        alike = chunk.random(last - first) < homophily
        # The nearest rank of the wanted class is as popular as the one drawn.
        same = row - row % num_classes + col % num_classes
        same[same >= num_nodes] -= num_classes
        ends[0, first:last] = node_of_rank[np.where(alike, same, row)]
        ends[1, first:last] = node_of_rank[col]

    _in_chunks(num_edges, CHUNK, draw_edges)
    x = _features(y, num_features, num_classes, signal, seed)
    data = Data(x=x, y=torch.from_numpy(y), edge_index=edge_index)
    return random_split(data, TRAIN, VAL, seed)


def random_split(data: Data, train: float, val: float, seed: int) -> Data:
    """Give `data` random masks: shares `train` and `val` of its nodes, and the rest to test."""
    num_nodes = int(data.num_nodes)
    order = torch.from_numpy(np.random.default_rng([seed, SPLIT]).permutation(num_nodes))
    ends = [0, int(train * num_nodes), int((train + val) * num_nodes), num_nodes]
    for name, first, last in zip(("train", "val", "test"), ends[:-1], ends[1:], strict=True):
        mask = torch.zeros(num_nodes, dtype=torch.bool)
        mask[order[first:last]] = True
        data[f"{name}_mask"] = mask
    return data


def _ranks(rng: np.random.Generator, size: int, num_nodes: int, skew: int) -> np.ndarray:
    """Draw popularity ranks by inverting their distribution function, u -> num_nodes * u^skew."""
    uniform = rng.random(size)
    value = uniform.copy()
    for _ in range(skew - 1):  # products are the same on every machine; pow() is not
        value *= uniform
    value *= num_nodes
    return value.astype(np.int64)


def _features(
    y: np.ndarray, num_features: int, num_classes: int, signal: float, seed: int
) -> torch.Tensor:
    """Return noise around one centroid for each class, float32 [num_nodes, num_features]."""
    centroids = np.random.default_rng([seed, CENTROIDS]).standard_normal(
        (num_classes, num_features)
    )
    centroids *= signal / np.linalg.norm(centroids, axis=1, keepdims=True)
    centroids = centroids.astype(np.float32)
    # torch's memory, not NumPy's, which would lie on huge pages: what users' tensors lie on.
    x = torch.empty((len(y), num_features))
    rows = x.numpy()
    step = max(1, CHUNK // num_features)

    def draw_rows(first: int, last: int) -> None:
        chunk = np.random.default_rng([seed, FEATURES, first // step])
        chunk.standard_normal(dtype=np.float32, out=rows[first:last])
        rows[first:last] += centroids[y[first:last]]

    _in_chunks(len(y), step, draw_rows)
    return x


def _in_chunks(size: int, step: int, task: Callable[[int, int], None]) -> None:
    """Call ``task(first, last)`` for all chunks of [0, size), on all cores: NumPy frees the GIL."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        starts = range(0, size, step)
        # list(): raises what a task raised
        list(pool.map(lambda first: task(first, min(first + step, size)), starts))
