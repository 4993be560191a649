"""The work of ranks in a step: with batches of their own, and with shared rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData

from ..core.units import size_text
from ..exchange.batches import WINDOW
from ..exchange.owners import ranks_of
from .plan_orders import Batching, node_counts

STEPS = 4 * WINDOW


class RanksAsked(NamedTuple):
    """The inputs of a plan for several ranks.

    Attributes:
        ranks: how many there are.
        batching: of each loop.
        row_bytes: of the features, by node type.
        columns: of the features, by node type; needed with `widths`.
        widths: output columns of each layer of a model, one for each hop; () for no model.
        steps: of an epoch that are counted, from the first one on; at most all.
        window: steps whose rows are loaded together where ranks share them; 1 for loaders without
            producers.
    """

    ranks: int
    batching: Batching
    row_bytes: Mapping[Any, int]
    columns: Mapping[Any, int] = {}
    widths: Sequence[int] = ()
    steps: int = STEPS
    window: int = WINDOW

    def in_epoch_of(self, data: Data | HeteroData) -> RanksAsked:
        """Return the same for a graph whose epochs may have fewer steps."""
        full = node_counts(data)[self.batching.seed_type] // self.batching.batch_size
        steps = min(self.steps, max(1, full // self.ranks))
        return self._replace(steps=steps, window=min(self.window, steps))


class Work(NamedTuple):
    """What all ranks together do in a step; means over some steps.

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
    """A step of ranks with batches of their own; means over some steps, of all ranks together.

    Attributes:
        ranks: how many make a batch each.
        alone: work where each rank loads its rows itself.
        window: steps whose rows are loaded and sent once.
        common: distinct rows of the batches of a window, by step.
        common_bytes: of these.
        sent_bytes: that leave the ranks where rows have owners by hash: a row goes once to each
            other rank whose batches of a window need it.
    """

    ranks: int
    alone: Work
    window: int
    common: float
    common_bytes: float
    sent_bytes: float


def step_of_ranks(data: Data | HeteroData, asked: RanksAsked) -> StepOfRanks:
    """Sample the batches of some steps, and count their rows, edges and operations.

    They are those of loaders with ``seed=0, shuffle=True, split_by_rank=True`` in epoch 0.

    Args:
        data: the graph; only its edges are looked at.
        asked: about it.
    """
    asked, ranks = asked.in_epoch_of(data), asked.ranks
    counts, works = node_counts(data), list[Work]()
    owners = dict(zip(counts, ranks_of(None, [*counts.values()], ranks), strict=True))
    common = common_bytes = sent = 0
    batches = islice(asked.batching.sampled(data), asked.steps * ranks)
    while window := list(islice(batches, asked.window * ranks)):
        for batch in window:
            rows = {kind: len(ids) for kind, ids in batch.nodes.items()}
            works.append(work_of(rows, batch.num_nodes, batch.num_edges, asked))
        for kind, width in asked.row_bytes.items():
            found = [torch.cat([b.nodes[kind] for b in window[r::ranks]]) for r in range(ranks)]
            of_ranks = [np.unique(ids.numpy()) for ids in found]
            union = len(np.unique(np.concatenate(of_ranks)))
            common, common_bytes = common + union, common_bytes + union * width
            sent += width * sum(
                int((owners[kind][ids] != r).sum()) for r, ids in enumerate(of_ranks)
            )
    means = np.array([common, common_bytes, sent]) / asked.steps
    alone = Work(*(np.sum(works, 0) / asked.steps).tolist())
    return StepOfRanks(ranks, alone, asked.window, *means.tolist())


def work_of(
    rows: Mapping[Any, int],
    nodes: Mapping[Any, Sequence[int]],
    edges: Mapping[Any, Sequence[int]],
    asked: RanksAsked,
) -> Work:
    """Return the work of a batch, or of a part of it.

    Args:
        rows: that are loaded, by node type.
        nodes: by node type, how many each hop found, [hops + 1] with the seeds.
        edges: by edge type, how many each hop has, [hops].
        asked: the inputs.
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


def ranks_text(step: StepOfRanks) -> str:
    """Return what ranks load in a step, and when sharing rows pays."""
    each, alone = step.ranks, step.alone
    saved = alone.row_bytes - step.common_bytes
    lines = [
        f"a step of {step.ranks} ranks: {alone.rows:,.0f} rows where each loads alone, "
        f"{size_text(int(alone.row_bytes / each))} a rank; {step.common:,.0f} rows with "
        f"share_rows=True, {size_text(int(step.common_bytes / each))} a rank "
        f"({alone.rows / max(1.0, step.common):.2f} times less), as rows of {step.window} steps "
        f"are loaded together",
        f"  each rank sends {size_text(int(step.sent_bytes / each))} a step, owners by hash",
    ]
    if saved > 0:
        lines.append(
            f"  that pays where ranks send {step.sent_bytes / saved:.1f} times as fast as they "
            f"load, or where a machine has no room for all rows"
        )
    return "\n".join(lines)
