"""How likely each node is in a batch of a loader."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..loading.cache import visits_of_batches
from ..sampling.sampler import NeighborSampler


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
        ValueError: something else, or a loader with another sampler.

    Example:
        >>> loader = pyg_direct.NeighborLoader(data, [10, 5], batch_size=32)
        >>> visits = pyg_direct.expected_visits(loader)
        >>> pyg_direct.save(data, "by_visits", row_order=visits)
    """
    if not isinstance(getattr(loader, "_sampler", None), NeighborSampler):
        raise ValueError(
            f"expected_visits needs a NeighborLoader or LinkNeighborLoader with pyg_direct's own "
            f"NeighborSampler, got {type(loader).__name__}."
        )
    found = visits_of_batches(loader)
    return found[None] if list(found) == [None] else found
