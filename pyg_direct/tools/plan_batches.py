"""Batches that a plan is made from: those of shuffled epochs, sampled on the CPU."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.typing import NodeType

from ..sampling.sampler import NeighborSampler


class Batches(NamedTuple):
    """What sampled batches hold, on average."""

    num_batches: int
    nodes: float  # of all types
    nodes_deviation: float  # between batches
    edges: float
    sampling_seconds: float  # on this machine, median, one thread
    node_ids: dict[Any, list[Tensor]]  # by node type, of each batch


def sample(
    data: Data | HeteroData,
    fanout: Sequence[int],
    batch_size: int,
    batches: int = 16,
    seed_type: NodeType | None = None,
    seed: int = 0,
    sampling: str = "uniform",
) -> Batches:
    """Sample some batches of shuffled epochs, and return what they hold.

    Args:
        data: the graph; only its edges are looked at.
        fanout: of each hop, and each edge type.
        batch_size: seeds of a batch.
        batches: how many to sample.
        seed_type: node type of the seeds; None in a homogeneous graph.
        seed: of the random numbers.
        sampling: as of the loaders.
    """
    sampler = NeighborSampler(data, list(fanout), seed=seed, sampling=sampling)
    given = shuffled_seeds(node_counts(data)[seed_type], batch_size, seed + 1)
    found, seconds = [], []
    for seeds in islice(given, batches + 1):  # the first one compiles
        start = time.perf_counter()
        out: Any = sampler.sample_from_nodes(NodeSamplerInput(None, seeds, input_type=seed_type))
        seconds.append(time.perf_counter() - start)
        typed = isinstance(out.node, dict)
        node, row = (out.node, out.row) if typed else ({None: out.node}, {None: out.row})
        found.append((node, sum(edges.numel() for edges in row.values() if edges is not None)))
    found = found[1:]
    nodes = np.array([sum(ids.numel() for ids in node.values()) for node, _ in found], float)
    edges = float(np.mean([count for _, count in found]))
    ids = {kind: [node[kind] for node, _ in found] for kind in found[0][0]}
    middle = float(np.median(seconds[1:]))
    return Batches(batches, float(nodes.mean()), float(nodes.std()), edges, middle, ids)


def shuffled_seeds(num_nodes: int, batch_size: int, seed: int) -> Iterator[Tensor]:
    """Yield the seeds of full batches of one shuffled epoch after another."""
    random, size = np.random.default_rng(seed), min(batch_size, num_nodes)
    while True:
        order = torch.from_numpy(random.permutation(num_nodes))
        yield from torch.split(order[: num_nodes // size * size], size)


def node_counts(data: Data | HeteroData) -> dict[Any, int]:
    """Return the number of nodes by type; by None in a homogeneous graph."""
    if isinstance(data, HeteroData):
        return {kind: int(data[kind].num_nodes or 0) for kind in data.node_types}
    return {None: int(data.num_nodes or 0)}
