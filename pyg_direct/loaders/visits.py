"""How likely each node is in a batch of a loader."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..loading.cache import visits_of_batches
from ..partitions.sampler import PartedSampler
from ..sampling.sampler import NeighborSampler
from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader


def expected_visits(loader: Any) -> Tensor | dict[Any, Tensor]:
    """Return how likely each node is in a batch of a loader, by its seeds, fan-outs and degrees.

    What `cache=` of a loader and ``save(..., row_order=)`` go by. Nodes count as drawn
    independently of each other; weights and times are not looked at. Nothing is drawn: one pass
    over the edges for each hop, in memory of 8 bytes a node.

    Args:
        loader: a `NeighborLoader` or `LinkNeighborLoader` whose sampler is this package's own.

    Returns:
        float64 [N], in [0, 1]; a dict of such by node type if nodes have types.

    Raises:
        ValueError: something else, a loader with another sampler, or one over a partition.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=32)
        >>> visits = pyg_direct.expected_visits(loader)
        >>> pyg_direct.save(data, "by_visits", row_order=visits)
    """
    of_hops = isinstance(loader, (NeighborLoader, LinkNeighborLoader))
    sampler = loader._sampler if of_hops else None
    if not isinstance(sampler, NeighborSampler):
        raise ValueError(
            f"expected_visits needs a NeighborLoader or LinkNeighborLoader with pyg_direct's own "
            f"NeighborSampler, got {type(loader).__name__}."
        )
    if isinstance(sampler, PartedSampler):
        raise ValueError(
            "expected_visits goes over all edges, and those of a partition lie in parts. Give a "
            "loader over the graph that it was made of."
        )
    found = visits_of_batches(loader)
    return found[None] if list(found) == [None] else found
