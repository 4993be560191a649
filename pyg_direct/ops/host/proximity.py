"""Numbers for nodes that are close for nodes that are near each other in the graph."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...core.types import Csc
from ...kernels.traverse import breadth_first


def breadth_first_ranks(csc: Csc) -> list[Tensor]:
    """Return for each node type int64 [N_t]: how many nodes of all types a search meets before.

    The searches begin at nodes in a random order, which is the same in every call.

    Args:
        csc: a graph on the host, verified.
    """
    total = int(csc.node_base[-1])
    generator = torch.Generator().manual_seed(0)
    root = torch.randperm(total, generator=generator).numpy()
    rank, met = np.full(total, -1, np.int64), np.empty(total, np.int64)
    breadth_first(
        csc.indptr, csc.indptr_base, csc.indices, csc.src_type, csc.dst_type, csc.node_base, root,
        rank, met,
    )  # fmt: skip
    return list(torch.split(torch.from_numpy(rank), csc.num_nodes.tolist()))
