"""What other orders of the same fan-outs, and fewer hops, would cost a training step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice, permutations
from typing import Any, NamedTuple

import numpy as np
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.typing import NodeType

from ..sampling.sampler import NeighborSampler
from .plan_batches import node_counts, shuffled_seeds

BATCHES = 4  # of each list of fan-outs
MOST_HOPS = 3  # whose orders are all tried: 6 of them


class LayerCosts(NamedTuple):
    """What a model computes that runs each layer on the rows that the seeds depend on.

    Attributes:
        fanout: of each hop, from the seeds.
        rows: rows that each layer writes, from the first layer, which reads the features.
        edges: edges that each layer reads.
        read_rows: rows of features of a batch.
    """

    fanout: tuple[int, ...]
    rows: tuple[float, ...]
    edges: tuple[float, ...]
    read_rows: float


def fanouts_to_try(fanout: Sequence[int]) -> list[tuple[int, ...]]:
    """Return a list of fan-outs, its other orders, and the lists of its first hops.

    Of more than `MOST_HOPS` hops only the ascending and the descending order are returned.

    Example: [15, 5] gives (15, 5), (5, 15) and (15,).
    """
    given = tuple(fanout)
    if len(given) <= MOST_HOPS:
        orders = sorted(set(permutations(given)), reverse=True)
    else:
        orders = [tuple(sorted(given, reverse=True)), tuple(sorted(given))]
    fewer = [given[:hops] for hops in range(len(given) - 1, 0, -1)]
    return list(dict.fromkeys([given, *orders, *fewer]))


def layer_costs(
    data: Data | HeteroData,
    fanout: Sequence[int],
    batch_size: int,
    seed_type: NodeType | None = None,
    sampling: str = "uniform",
) -> list[LayerCosts]:
    """Sample batches with each of the fan-outs to try; return means over the batches.

    Args:
        data: the graph; only its edges are looked at.
        fanout: of each hop, and each edge type.
        batch_size: seeds of a batch.
        seed_type: node type of the seeds; None in a homogeneous graph.
        sampling: as of the loaders.
    """
    num_nodes = node_counts(data)[seed_type]
    seeds = list(islice(shuffled_seeds(num_nodes, batch_size, 1), BATCHES))
    costs, samplers = [], []  # which share one copy of the graph as long as one of them lives
    for tried in fanouts_to_try(fanout):
        sampler = NeighborSampler(data, list(tried), seed=0, sampling=sampling)
        samplers.append(sampler)
        nodes, edges = [], []
        for batch in seeds:
            given = NodeSamplerInput(None, batch, input_type=seed_type)
            out: Any = sampler.sample_from_nodes(given)
            nodes.append(_up_to_each_hop(out.num_sampled_nodes))
            edges.append(_up_to_each_hop(out.num_sampled_edges))
        nodes_of_hop, edges_of_hop = np.mean(nodes, axis=0), np.mean(edges, axis=0)
        # The first layer writes the rows of all but the last hop, the last layer the seeds'.
        costs.append(
            LayerCosts(
                tried,
                tuple(nodes_of_hop[:-1][::-1].tolist()),
                tuple(edges_of_hop[::-1].tolist()),
                float(nodes_of_hop[-1]),
            )
        )
    return costs


def _up_to_each_hop(counts: Any) -> list[float]:
    """Return sums of counts by hop up to each hop, with hop 0 if it is counted; of all types."""
    lists = counts.values() if isinstance(counts, Mapping) else [counts]
    return [float(total) for total in np.array([list(each) for each in lists]).sum(0).cumsum()]


def orders_text(costs: Sequence[LayerCosts]) -> str:
    """Return a line for each list of fan-outs, the given one first."""
    given = sum(costs[0].rows)
    lines = [
        "a training step, where a layer computes the rows that the seeds depend on (accelerate, "
        "trim_to_layer), by layer from the first:"
    ]
    for cost in costs:
        rows, edges = (" + ".join(f"{n:,.0f}" for n in each) for each in (cost.rows, cost.edges))
        lines.append(
            f"  fan-out {'/'.join(map(str, cost.fanout))}: {rows} rows "
            f"({sum(cost.rows) / given:.2f} of the first line), {edges} edges; "
            f"{cost.read_rows:,.0f} rows of features"
        )
    lines.append(
        "  other orders and fewer hops are other samples: compare their accuracy before you choose"
    )
    return "\n".join(lines)
