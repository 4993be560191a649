"""Checks of what crosses the seam between hops, for both backends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..core.types import Frontier, Picks

LISTS_ELSEWHERE = (
    "The edges between the sampled nodes cannot be listed, as some hops took edges whose lists are "
    "not in this graph. Ask for the edges that were drawn."
)


def check_frontier(items: Frontier, types: int, ids: torch.dtype, disjoint: bool) -> None:
    """Raise a ValueError unless a frontier has the shapes and dtypes that draws need.

    Args:
        items: the frontier.
        types: T.
        ids: dtype of node ids.
        disjoint: whether nodes belong to subgraphs.
    """
    if (items.seed_of is not None) != disjoint:
        raise ValueError(
            f"Frontier.seed_of must be {'given' if disjoint else 'None'}, as the plan is "
            f"{'' if disjoint else 'not '}disjoint."
        )
    lists = {"node": (items.node, ids), "local": (items.local, torch.int32)}
    if items.seed_of is not None:
        lists["seed_of"] = (items.seed_of, torch.int32)
    for name, (values, dtype) in lists.items():
        if len(values) != types:
            raise ValueError(f"Frontier.{name} must have {types} tensors, got {len(values)}.")
        for value, node in zip(values, items.node, strict=True):
            _check(f"Frontier.{name}", value, (len(node),), dtype)


def check_picks(picks: Picks, items: int, ids: torch.dtype, positions: torch.dtype) -> None:
    """Raise a ValueError unless picks have the shapes and dtypes of a hop of so many items.

    Args:
        picks: of the hop.
        items: (relation, frontier node) pairs.
        ids: dtype of node ids.
        positions: dtype of positions in the CSC.

    Waits for the device of the picks.
    """
    if (picks.position is None) == (picks.edge is None):
        raise ValueError("Picks need either `position` or `edge`, and not both.")
    _check("Picks.counts", picks.counts, (items,), torch.int32)
    edges = tuple(picks.source.shape[:1])
    for name, value, dtype in (
        ("source", picks.source, ids),
        ("position", picks.position, positions),
        ("edge", picks.edge, torch.int64),
    ):
        if value is not None:
            _check(f"Picks.{name}", value, edges, dtype)
    least, total = 0, 0
    if items > 0:
        least, total = torch.stack([picks.counts.amin(), picks.counts.sum()]).tolist()
    if least < 0 or total != len(picks.source):
        raise ValueError(
            f"Picks.counts must be the edges of each item, which are {len(picks.source)} in all, "
            f"got a sum of {total} and a least of {least}."
        )


def _check(name: str, value: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    if tuple(value.shape) != shape or value.dtype != dtype:
        raise ValueError(
            f"{name} must be {dtype} of shape {shape}, got {value.dtype} of shape "
            f"{tuple(value.shape)}."
        )


def put_edge_ids(
    edge: Sequence[Tensor], num_edges: Sequence[Sequence[int]], given: Mapping[int, Tensor]
) -> None:
    """Write the ids of edges that came from elsewhere to their places in a batch.

    Args:
        edge: R x int64 [e_r], each relation's edges hop by hop; changed in place.
        num_edges: R x [hops].
        given: `Picks.edge` of some hops.

    Example: relations of [1, 2] and [1, 1] edges in two hops, of which the second has the ids
    [7, 8, 9]: the first relation ends in 7, 8 and the second in 9.
    """
    for hop, ids in given.items():
        counts = [by_hop[hop] for by_hop in num_edges]
        for out, by_hop, part in zip(edge, num_edges, torch.split(ids, counts), strict=True):
            first = sum(by_hop[:hop])
            out[first : first + len(part)] = part
