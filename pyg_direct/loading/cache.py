"""Which rows a loader asks its backend to cache: those that its batches are expected to visit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..batch.assemble import node_tables_of
from ..ops.host.hottest import Candidate
from ..sampling.sampler import NeighborSampler, keyed
from .visits import presampled, visits_of_batches, why_no_visits


def fill_cache(loader: Any) -> None:
    """Fill the cache that a `DirectLoader` asks for, unless its backend has none or it is filled.

    Raises:
        ValueError: a policy that does not fit the graph or the sampler.
    """
    backend = loader._backend
    wanted = backend.cache
    if wanted is None or wanted.filled or not backend.caches_rows:
        return
    tables = list(node_tables_of(loader.data))
    num_nodes = {kind: len(table) for kind, _, table, _ in tables}
    visits = _visits(loader, wanted.policy, num_nodes)
    backend.fill_cache(
        [
            Candidate(name, table, _by_row(visits[kind], positions))
            for kind, name, table, positions in tables
        ],
        wanted.size,
    )
    wanted.filled = True


def _visits(loader: Any, policy: Any, num_nodes: Mapping[Any, int]) -> dict[Any, Tensor]:
    """Return how often each node is expected to be visited, float64 [N_t] by type, on any scale."""
    if not isinstance(policy, str):
        return given_visits(policy, num_nodes)
    if policy == "visits":
        return likely_visits(loader, num_nodes)
    if policy == "presample":
        return presampled_visits(loader, num_nodes)
    if not isinstance(loader._sampler, NeighborSampler):
        raise ValueError(
            f"cache_policy='degree' needs pyg_direct's own NeighborSampler, which knows the graph, "
            f"got {type(loader._sampler).__name__}. Use 'presample', or pass a tensor."
        )
    return keyed(loader._sampler).out_degrees()


def likely_visits(loader: Any, num_nodes: Mapping[Any, int] | None = None) -> dict[Any, Tensor]:
    """Return how likely each node is in a batch; counted where it does not follow from arguments.

    Args:
        loader: of nodes or links.
        num_nodes: by type; None for those of its sampler, which is ours.
    """
    if not why_no_visits(loader):
        return visits_of_batches(loader)
    counts = keyed(loader._sampler).ends.node if num_nodes is None else num_nodes
    return presampled_visits(loader, counts)


def _by_row(visits: Tensor, positions: Tensor | None) -> Tensor:
    """Return the visits of the nodes in the order in which a table has their rows."""
    if positions is None:
        return visits
    return torch.empty_like(visits).index_copy_(0, positions, visits)


def given_visits(
    policy: Any, num_nodes: Mapping[Any, int], name: str = "cache_policy"
) -> dict[Any, Tensor]:
    """Return the user's numbers by node type; types without any are not cached.

    Raises:
        ValueError: a type that has no such number for each node, negative ones, or a tensor where
            nodes have types.
    """
    by_type = policy if isinstance(policy, Mapping) else {None: policy}
    unknown = [kind for kind in by_type if kind not in num_nodes]
    if unknown:
        raise ValueError(
            f"{name} has numbers for the nodes of {unknown}, but tables of nodes are those "
            f"of {list(num_nodes)}."
        )
    found = {}
    for kind, count in num_nodes.items():
        value = by_type.get(kind, torch.zeros(count)).detach().cpu().to(torch.float64)
        if len(value) != count or not bool((value >= 0).all()):
            raise ValueError(
                f"{name} must hold one number for each of {count} nodes, 0 or larger, got "
                f"{len(value)} numbers{'' if len(value) != count else ', of which some are not'}."
            )
        found[kind] = value
    return found


def presampled_visits(loader: Any, num_nodes: Mapping[Any, int]) -> dict[Any, Tensor]:
    """Count the nodes of batches around seeds at random; they change nothing that is drawn later.

    Between nodes that are met equally often, those with the lower id come first.
    """
    visits = {kind: torch.zeros(count, dtype=torch.float64) for kind, count in num_nodes.items()}
    for out in presampled(loader, loader._sample):
        nodes = out.node if isinstance(out.node, dict) else {None: out.node}
        for kind, ids in nodes.items():
            if kind in visits and ids is not None:
                ids = ids.cpu()
                visits[kind].index_add_(0, ids, torch.ones(len(ids), dtype=torch.float64))
    return visits
