"""How likely each node is in a batch of a loader."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..exchange.parted_sampler import PartedSampler
from ..loading.visits import visits_of_batches, why_no_visits
from ..sampling.sampler import NeighborSampler
from .link_loader import LinkNeighborLoader
from .loader import NeighborLoader


def expected_visits(loader: Any) -> Tensor | dict[Any, Tensor]:
    """Return how likely each node is in a batch of a loader, by its seeds, fan-outs and degrees.

    What `cache=` of a loader and ``save(..., row_order=)`` go by: one pass over the edges for each
    hop, in memory of 8 bytes a node and hop. Seeds, ends of links and negatives have the
    probability that they have. Nodes of the hops count as drawn independently of each other, and
    how many there are in each hop, which that overstates where several paths lead from one seed to
    the same node, is taken from 64 batches that are sampled: so the sum over the nodes is
    that of batches, and of single nodes those near many others are given less than they have.
    Nothing that the loader draws changes.

    Args:
        loader: a `NeighborLoader` or `LinkNeighborLoader` whose sampler is this package's own.

    Returns:
        float64 [N], in [0, 1]; a dict of such by node type if nodes have types.

    Raises:
        ValueError: something else, a loader with another sampler, or one over a partition; or with
            `sampler=`, `batch_sampler=`, LABOR or adaptive fan-outs, times, weights, `disjoint`,
            `exclude_seed_edges`, `strict_negatives`, `transform_sampler_output` or `cooperative`,
            which decide what is visited and are not looked at.

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
    argument = why_no_visits(loader)
    if argument:
        raise ValueError(
            f"expected_visits does not know what {argument} does to batches. Give a loader without "
            f"it, or count the nodes of some batches: numbers [num_nodes] of yours are taken as "
            f"cache_policy= and row_order= as well."
        )
    found = visits_of_batches(loader)
    return found[None] if list(found) == [None] else found
