"""What several ranks do in a step with batches of their own, and with rows that they share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.typing import NodeType

from ..core.units import size_text
from ..sampling.sampler import NeighborSampler
from .plan_orders import node_counts, shuffled_seeds

STEPS = 4  # as many as ranks make together where they share rows


class RanksAsked(NamedTuple):
    """What is asked about a step of several ranks.

    Attributes:
        ranks: how many have a loop.
        fanout: of each hop, and each edge type.
        batch_size: seeds of each loop in a step.
        row_bytes: of the features, by node type.
        seed_type: node type of the seeds; None in a homogeneous graph.
        sampling: as of the loaders.
        columns: of the features, by node type; needed with `widths`.
        widths: columns that each layer of a model writes, first to last, as many as hops; () for
            no model.
        steps: that are looked at, whose means are told; where ranks share rows, they are made
            together, as by loaders with producers; 1 for those without.
    """

    ranks: int
    fanout: Sequence[int]
    batch_size: int
    row_bytes: Mapping[Any, int]
    seed_type: NodeType | None = None
    sampling: str = "uniform"
    columns: Mapping[Any, int] = {}
    widths: Sequence[int] = ()
    steps: int = STEPS


class Work(NamedTuple):
    """What ranks do in a step, means over some steps, all ranks together.

    Attributes:
        rows: of features that are loaded.
        row_bytes: of these.
        edges: that are sampled.
        read_edges: that layers read, each edge once in each layer that needs it.
        flop: of the layers, see `layer_flop`.
    """

    rows: float
    row_bytes: float
    edges: float
    read_edges: float
    flop: float


class StepOfRanks(NamedTuple):
    """A step of ranks with batches of their own, means over some steps, all ranks together.

    Attributes:
        ranks: how many make a batch each.
        alone: where each loads for itself.
        together: steps whose rows are loaded and sent once.
        common: distinct rows of the batches of these, by step.
        common_bytes: of these.
        sent_bytes: that leave the ranks where rows have owners by hash: a row goes once to each
            other rank whose batches need it.
    """

    ranks: int
    alone: Work
    together: int
    common: float
    common_bytes: float
    sent_bytes: float


def step_of_ranks(data: Data | HeteroData, asked: RanksAsked) -> StepOfRanks:
    """Sample the batches of some steps, and count what they hold.

    Args:
        data: the graph; only its edges are looked at.
        asked: about it.
    """
    sampler, sums = sampler_of(data, asked), np.zeros(len(Work._fields))
    # By node type and rank, the rows of all steps.
    found: dict[Any, list[list[Tensor]]] = {
        kind: [[] for _ in range(asked.ranks)] for kind in asked.row_bytes
    }
    for seeds in seeds_of_steps(data, asked):
        for rank, batch in enumerate(seeds):
            given = NodeSamplerInput(None, batch, input_type=asked.seed_type)
            out: Any = sampler.sample_from_nodes(given)
            for kind, ids in _by_type(out.node).items():
                found[kind][rank].append(ids)
            hops = _by_type(out.num_sampled_nodes), _by_type(out.num_sampled_edges)
            rows = {kind: len(ids) for kind, ids in _by_type(out.node).items()}
            sums += work_of(rows, *hops, asked)
    common = common_bytes = sent = 0.0
    for kind, ranks in found.items():
        of_ranks = [np.unique(torch.cat(ids).numpy()) for ids in ranks if ids]
        count = len(np.unique(np.concatenate(of_ranks))) if of_ranks else 0
        width = asked.row_bytes[kind] / asked.steps
        common += count / asked.steps
        common_bytes += count * width
        sent += sum(map(len, of_ranks)) * width * (asked.ranks - 1) / asked.ranks
    alone = Work(*(sums / asked.steps).tolist())
    return StepOfRanks(asked.ranks, alone, asked.steps, common, common_bytes, sent)


def sampler_of(data: Data | HeteroData, asked: RanksAsked) -> NeighborSampler:
    """Return what samples for ranks."""
    return NeighborSampler(data, list(asked.fanout), seed=0, sampling=asked.sampling)


def seeds_of_steps(data: Data | HeteroData, asked: RanksAsked) -> Iterator[tuple[Tensor, ...]]:
    """Yield the seeds of each rank in each step, by rank."""
    num_seeds = asked.ranks * asked.batch_size
    of_steps = shuffled_seeds(node_counts(data)[asked.seed_type], num_seeds, 1)
    for seeds in islice(of_steps, asked.steps):
        yield seeds.tensor_split(asked.ranks)


def work_of(
    rows: Mapping[Any, int],
    nodes: Mapping[Any, Sequence[int]],
    edges: Mapping[Any, Sequence[int]],
    asked: RanksAsked,
) -> Work:
    """Return what a batch takes, or a part of it.

    Args:
        rows: that are loaded, by node type.
        nodes: by node type, how many each hop found, [hops + 1] with the seeds.
        edges: by edge type, how many each hop has, [hops].
        asked: about the ranks.
    """
    counts = np.array([list(by_hop) for by_hop in edges.values()])
    return Work(
        sum(rows.values()),
        sum(count * asked.row_bytes[kind] for kind, count in rows.items()),
        int(counts.sum()),
        int(counts.cumsum(1).sum()),
        layer_flop(nodes, edges, asked),
    )


def layer_flop(
    nodes: Mapping[Any, Sequence[int]], edges: Mapping[Any, Sequence[int]], asked: RanksAsked
) -> float:
    """Return additions and multiplications of layers, forward and backward.

    In each layer a row of a destination gets, from each edge type, the mean of its sources' rows
    by a matrix and its own row by another one, as in `SAGEConv`. The backward takes as much as the
    forward for the matrices' gradients, and again for those of the rows, but for the features.

    Args:
        nodes, edges: as of `work_of`.
        asked: has the layers.
    """
    total, columns = 0.0, dict(asked.columns)
    for layer, width in enumerate(asked.widths):
        hops, of_features = len(asked.widths) - layer, layer == 0
        for kind, by_hop in edges.items():
            source, destination = (None, None) if kind is None else (kind[0], kind[-1])
            rows = sum(nodes[destination][:hops])
            products = 2 * rows * (columns[source] + columns[destination]) * width
            sums = sum(by_hop[:hops]) * columns[source]
            total += products * (2 if of_features else 3) + sums * (1 if of_features else 2)
        columns = dict.fromkeys(columns, width)
    return total


def _by_type(values: Any) -> dict[Any, Any]:
    return values if isinstance(values, dict) else {None: values}


def ranks_text(step: StepOfRanks) -> str:
    """Return what ranks load in a step, and what has to be true for sharing rows to pay."""
    each, alone = step.ranks, step.alone
    saved = alone.row_bytes - step.common_bytes
    lines = [
        f"a step of {step.ranks} ranks: {alone.rows:,.0f} rows where each loads alone, "
        f"{size_text(int(alone.row_bytes / each))} a rank; {step.common:,.0f} rows with "
        f"share_rows=True, {size_text(int(step.common_bytes / each))} a rank "
        f"({alone.rows / max(1.0, step.common):.2f} times less), as {step.together} steps are made "
        f"together",
        f"  each rank sends {size_text(int(step.sent_bytes / each))} a step, owners by hash",
    ]
    if saved > 0:
        lines.append(
            f"  that pays where ranks send {step.sent_bytes / saved:.1f} times as fast as they "
            f"load, or where a machine has no room for all rows"
        )
    return "\n".join(lines)
