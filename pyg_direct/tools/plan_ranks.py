"""What several ranks load in a step: each for itself, and in common (`share_rows=True`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch_geometric.data import Data, HeteroData
from torch_geometric.sampler import NodeSamplerInput
from torch_geometric.typing import NodeType

from ..core.units import size_text
from ..sampling.sampler import NeighborSampler
from .plan_batches import node_counts, shuffled_seeds

STEPS = 4


class StepOfRanks(NamedTuple):
    """Rows of features of a step, means over some steps, all ranks together.

    Attributes:
        ranks: how many make a batch each.
        alone: rows of their batches, each of which reads its own.
        common: distinct rows of all of them.
        alone_bytes, common_bytes: of those rows.
        sent_bytes: that leave the ranks where rows have owners by hash: a row goes to each batch
            that needs it, but for that of its owner.
    """

    ranks: int
    alone: float
    common: float
    alone_bytes: float
    common_bytes: float
    sent_bytes: float


def step_of_ranks(
    data: Data | HeteroData,
    fanout: Sequence[int],
    batch_size: int,
    row_bytes: Mapping[Any, int],
    ranks: int,
    seed_type: NodeType | None = None,
) -> StepOfRanks:
    """Sample the batches of `STEPS` steps, and count their rows.

    Args:
        data: the graph; only its edges are looked at.
        fanout: of each hop, and each edge type.
        batch_size: seeds of a batch.
        row_bytes: of the features, by node type.
        ranks: how many make a batch each in a step.
        seed_type: node type of the seeds; None in a homogeneous graph.
    """
    sampler, sums = NeighborSampler(data, list(fanout), seed=0), np.zeros(4)
    of_steps = shuffled_seeds(node_counts(data)[seed_type], ranks * batch_size, 1)
    for seeds in islice(of_steps, STEPS):
        found: dict[Any, list[Any]] = {kind: [] for kind in row_bytes}
        for batch in seeds.tensor_split(ranks):
            out: Any = sampler.sample_from_nodes(
                NodeSamplerInput(None, batch, input_type=seed_type)
            )
            for kind, ids in (out.node if isinstance(out.node, dict) else {None: out.node}).items():
                found[kind].append(ids)
        for kind, batches in found.items():
            if batches:
                alone, common = sum(map(len, batches)), len(np.unique(torch.cat(batches).numpy()))
                width = row_bytes[kind]
                sums += alone, common, alone * width, common * width
    alone, common, alone_bytes, common_bytes = (sums / STEPS).tolist()
    sent = alone_bytes * (ranks - 1) / ranks
    return StepOfRanks(ranks, alone, common, alone_bytes, common_bytes, sent)


def ranks_text(step: StepOfRanks) -> str:
    """Return what ranks load in a step, and what has to be true for sharing rows to pay."""
    each, saved = step.ranks, step.alone_bytes - step.common_bytes
    lines = [
        f"a step of {step.ranks} ranks: {step.alone:,.0f} rows where each loads alone, "
        f"{size_text(int(step.alone_bytes / each))} a rank; {step.common:,.0f} rows with "
        f"share_rows=True, {size_text(int(step.common_bytes / each))} a rank "
        f"({step.alone / max(1.0, step.common):.2f} times less)",
        f"  each rank sends {size_text(int(step.sent_bytes / each))} a step, owners by hash",
    ]
    if saved > 0:
        lines.append(
            f"  that pays where ranks send {step.sent_bytes / saved:.1f} times as fast as they "
            f"load, or where a machine has no room for all rows"
        )
    return "\n".join(lines)
